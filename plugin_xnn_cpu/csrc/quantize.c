/* Between float32 and int8, and functions of int8. */
#include <math.h>

#include "run.h"

#define TILE 16384

typedef struct {
  const void *params;
  const void *in;
  void *out;
} job;

NP_FOR_EACH_CPU
static void quantize(const struct np_quantize_params *p, const float *in, int8_t *out,
                     size_t count) {
  const float scale = p->scale, low = p->low, high = p->high;
  const int32_t zero_point = p->zero_point;
  for (size_t i = 0; i < count; i++) {
    /* Divided, and not multiplied by the inverse: halves fall where the standard has them. */
    float x = rintf(in[i] / scale);
    x = x > low ? x : low;
    x = x < high ? x : high;
    out[i] = (int8_t)((int32_t)x + zero_point);
  }
}

static void quantize_tile(void *context, size_t start, size_t count) {
  const job *task = context;
  quantize(task->params, (const float *)task->in + start, (int8_t *)task->out + start, count);
}

NP_FOR_EACH_CPU
static void dequantize(const struct np_dequantize_params *p, const int8_t *in, float *out,
                       size_t count) {
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
  np_look_up(p->table, (const uint8_t *)task->in + start, (uint8_t *)task->out + start, count);
}

static int run(np_tile *tile, const void *params, size_t count,
               const void *in, void *out, size_t element_size, np_workers *workers) {
  job task = {params, in, out};
  np_workers *const used = count * element_size < NP_SMALL ? NULL : workers;
  np_divide_tiles(used, tile, &task, count, TILE, 0);
  return 0;
}

int np_quantize(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const size_t count = ((const struct np_quantize_params *)params)->count;
  return run(quantize_tile, params, count, inputs[0], out, sizeof(float), workers);
}

int np_dequantize(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const size_t count = ((const struct np_dequantize_params *)params)->count;
  return run(dequantize_tile, params, count, inputs[0], out, sizeof(float), workers);
}

int np_table(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const size_t count = ((const struct np_table_params *)params)->count;
  return run(look_up_tile, params, count, inputs[0], out, 1, workers);
}
