/* Between float32 and int8, and functions of int8. */
#include <math.h>

#include "runtime/kernel.h"

/* int8 out[i] = min(max(rint(x[i] / scale), low), high) + zero_point; `low` and `high` keep the sum
 * in [-128, 127]. NaN becomes `low`. Where `columns` is not 0, rows of so many elements are
 * multiplied before by those of a second input, of float32. */
struct np_quantize_params {
  size_t count;
  size_t columns;
  float scale;
  float low;
  float high;
  int32_t zero_point;
};

/* float out[i] = (x[i] - zero_point) * scale. */
struct np_dequantize_params {
  size_t count;
  float scale;
  int32_t zero_point;
};

/* out[i] = table[x[i]], of bytes. */
struct np_table_params {
  size_t count;
  uint8_t table[256];
};

#define TILE 16384

typedef struct {
  const void *params;
  const void *in;
  void *out;
  const float *factors; /* of each column; NULL for none */
} job;

/* Divided, and not multiplied by the inverse: halves fall where the standard has them. */
NP_INLINE int8_t to_byte(const struct np_quantize_params *p, float value) {
  float x = rintf(value / p->scale);
  x = x > p->low ? x : p->low;
  x = x < p->high ? x : p->high;
  return (int8_t)((int32_t)x + p->zero_point);
}

NP_MULTIVERSIONED(void, quantize,
                  (const struct np_quantize_params *params, const float *in, int8_t *out,
                   size_t count),
                  (params, in, out, count)) {
  const struct np_quantize_params p = *params; /* which bytes that are written cannot change */
  for (size_t i = 0; i < count; i++) out[i] = to_byte(&p, in[i]);
}

NP_MULTIVERSIONED(void, quantize_multiplied,
                  (const struct np_quantize_params *params, const float *in, const float *factors,
                   int8_t *out, size_t count),
                  (params, in, factors, out, count)) {
  const struct np_quantize_params p = *params;
  for (size_t i = 0; i < count; i++) out[i] = to_byte(&p, in[i] * factors[i]);
}

static void quantize_tile(void *context, size_t start, size_t count) {
  const job *task = context;
  const struct np_quantize_params *p = task->params;
  const float *in = (const float *)task->in + start;
  int8_t *out = (int8_t *)task->out + start;
  if (!task->factors) {
    quantize(p, in, out, count);
    return;
  }
  for (size_t done = 0; done < count;) {
    const size_t column = (start + done) % p->columns;
    const size_t rest = p->columns - column;
    const size_t some = rest < count - done ? rest : count - done;
    quantize_multiplied(p, in + done, task->factors + column, out + done, some);
    done += some;
  }
}

NP_MULTIVERSIONED(void, dequantize,
                  (const struct np_dequantize_params *p, const int8_t *in, float *out,
                   size_t count),
                  (p, in, out, count)) {
  const float scale = p->scale;
  const int32_t zero_point = p->zero_point;
  for (size_t i = 0; i < count; i++) out[i] = (float)(in[i] - zero_point) * scale;
}

static void dequantize_tile(void *context, size_t start, size_t count) {
  const job *task = context;
  dequantize(task->params, (const int8_t *)task->in + start, (float *)task->out + start, count);
}

static void look_up_tile(void *context, size_t start, size_t count) {
  const job *task = context;
  const struct np_table_params *p = task->params;
  np_lookup_bytes(p->table, (const uint8_t *)task->in + start, (uint8_t *)task->out + start, count);
}

static int run(np_tile *tile, const void *params, size_t count, const void *const *inputs,
               void *out, size_t element_size, np_workers *workers) {
  job task = {params, inputs[0], out, inputs[1]};
  np_workers *const used = count * element_size < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  np_parallel_for_tiles(used, tile, &task, count, TILE, 0);
  return 0;
}

int np_quantize(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const size_t count = ((const struct np_quantize_params *)params)->count;
  return run(quantize_tile, params, count, inputs, out, sizeof(float), workers);
}

int np_dequantize(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const size_t count = ((const struct np_dequantize_params *)params)->count;
  return run(dequantize_tile, params, count, inputs, out, sizeof(float), workers);
}

int np_table(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const size_t count = ((const struct np_table_params *)params)->count;
  return run(look_up_tile, params, count, inputs, out, 1, workers);
}
