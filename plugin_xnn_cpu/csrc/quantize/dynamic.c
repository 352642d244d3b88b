/* DynamicQuantizeLinear: a tensor quantized by its own range. */
#include <math.h>
#include <string.h>

#include "runtime/kernel.h"

/* Of float32 elements, of which a thread takes `part` at a time; the workspace has two float32
 * numbers for each part. */
struct np_dynamic_range_params {
  size_t count;
  size_t part;
};

/* How a tensor is quantized: scale · (q - zero), with q an int8, which is the byte of
 * DynamicQuantizeLinear with its highest bit turned. */
struct np_dynamic_range {
  float scale;
  int8_t zero[4]; /* the first of them */
};

#define TILE 16384

typedef struct {
  float low;
  float high;
} extremes;

/* 0 is in the range in any case; NaN is in none. */
NP_MULTIVERSIONED(extremes, extremes_of, (const float *in, size_t count), (in, count)) {
  float low = 0.0f, high = 0.0f;
  for (size_t i = 0; i < count; i++) {
    low = in[i] < low ? in[i] : low;
    high = in[i] > high ? in[i] : high;
  }
  return (extremes){low, high};
}

typedef struct {
  const struct np_dynamic_range_params *params;
  const float *in;
  extremes *found; /* of each part */
} range_job;

static void range_part(void *context, size_t thread, size_t index) {
  const range_job *task = context;
  const struct np_dynamic_range_params *p = task->params;
  (void)thread;
  const size_t start = index * p->part;
  const size_t left = p->count - start;
  task->found[index] = extremes_of(task->in + start, left < p->part ? left : p->part);
}

int np_dynamic_range(const void *params, const void *const *inputs, void *out, void *workspace,
                     np_workers *workers) {
  const struct np_dynamic_range_params *p = params;
  range_job task = {p, inputs[0], workspace};
  const size_t parts = p->count == 0 ? 0 : (p->count + p->part - 1) / p->part;
  np_workers *const used = p->count * sizeof(float) < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  np_parallel_for(used, range_part, &task, parts, 0);
  float low = 0.0f, high = 0.0f;
  for (size_t i = 0; i < parts; i++) {
    low = task.found[i].low < low ? task.found[i].low : low;
    high = task.found[i].high > high ? task.found[i].high : high;
  }
  const float scale = low == high ? 1.0f : (high - low) / 255.0f;
  float zero = rintf(0.0f - low / scale);
  zero = zero > 0.0f ? zero : 0.0f; /* of a range that is not finite too */
  zero = zero < 255.0f ? zero : 255.0f;
  const struct np_dynamic_range found = {scale, {(int8_t)((int32_t)zero - 128)}};
  memcpy(out, &found, sizeof found);
  return 0;
}

typedef struct {
  const float *in;
  float scale;
  int32_t zero;
  int8_t *out;
} quantize_job;

/* Divided, and not multiplied by the inverse: halves fall where the standard has them. */
NP_MULTIVERSIONED(void, bytes,
                  (const quantize_job *job, const float *in, int8_t *out, size_t count),
                  (job, in, out, count)) {
  const float scale = job->scale;
  const int32_t zero = job->zero;
  const float least = (float)(-128 - zero), most = (float)(127 - zero);
  for (size_t i = 0; i < count; i++) {
    float x = rintf(in[i] / scale);
    x = x > least ? x : least;
    x = x < most ? x : most;
    out[i] = (int8_t)((int32_t)x + zero);
  }
}

static void quantize_tile(void *context, size_t start, size_t count) {
  const quantize_job *task = context;
  bytes(task, task->in + start, task->out + start, count);
}

typedef struct {
  const int8_t *in;
  float scale;
  int32_t zero;
  float *out;
} dequantize_job;

NP_MULTIVERSIONED(void, numbers,
                  (const int8_t *in, float *out, size_t count, float scale, int32_t zero),
                  (in, out, count, scale, zero)) {
  for (size_t i = 0; i < count; i++) out[i] = (float)(in[i] - zero) * scale;
}

static void dequantize_tile(void *context, size_t start, size_t count) {
  const dequantize_job *task = context;
  numbers(task->in + start, task->out + start, count, task->scale, task->zero);
}

int np_dynamic_dequantize(const void *params, const void *const *inputs, void *out,
                          np_workers *workers) {
  const struct np_dynamic_range_params *p = params;
  dequantize_job task = {.in = inputs[0], .zero = *(const int8_t *)inputs[2], .out = out};
  memcpy(&task.scale, inputs[1], sizeof task.scale);
  np_workers *const used = p->count * sizeof(float) < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  np_parallel_for_tiles(used, dequantize_tile, &task, p->count, TILE, 0);
  return 0;
}

int np_dynamic_quantize(const void *params, const void *const *inputs, void *out,
                        np_workers *workers) {
  const struct np_dynamic_range_params *p = params;
  quantize_job task = {.in = inputs[0], .zero = *(const int8_t *)inputs[2], .out = out};
  memcpy(&task.scale, inputs[1], sizeof task.scale);
  np_workers *const used = p->count * sizeof(float) < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  np_parallel_for_tiles(used, quantize_tile, &task, p->count, TILE, 0);
  return 0;
}
