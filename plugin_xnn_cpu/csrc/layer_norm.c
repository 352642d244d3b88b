/* Layer normalization and its form without a mean, in two passes over rows that lie in cache.
 *
 * The variance is that of the differences from the mean, not E[x²] - E[x]²: no cancellation. Sums
 * are kept in 16 lanes, so that the error grows with columns / 16. */
#include <math.h>

#include "run.h"

#define LANES 16

typedef struct {
  const struct np_layer_norm_params *params;
  const float *in;
  const float *scale;
  const float *bias;
  float *out;
} job;

NP_FOR_EACH_CPU
static void normalize(const float *x, const float *scale, const float *bias, float *out,
                      size_t columns, float epsilon, int mean_is_zero) {
  const size_t whole = columns - columns % LANES;
  float lanes[LANES];
  float mean = 0.0f;
  if (!mean_is_zero) {
    for (size_t l = 0; l < LANES; l++) lanes[l] = 0.0f;
    for (size_t i = 0; i < whole; i += LANES) {
      for (size_t l = 0; l < LANES; l++) lanes[l] += x[i + l];
    }
    float sum = 0.0f;
    for (size_t l = 0; l < LANES; l++) sum += lanes[l];
    for (size_t i = whole; i < columns; i++) sum += x[i];
    mean = sum / (float)columns;
  }
  for (size_t l = 0; l < LANES; l++) lanes[l] = 0.0f;
  for (size_t i = 0; i < whole; i += LANES) {
    for (size_t l = 0; l < LANES; l++) {
      const float d = x[i + l] - mean;
      lanes[l] += d * d;
    }
  }
  float squares = 0.0f;
  for (size_t l = 0; l < LANES; l++) squares += lanes[l];
  for (size_t i = whole; i < columns; i++) {
    const float d = x[i] - mean;
    squares += d * d;
  }
  const float factor = 1.0f / sqrtf(squares / (float)columns + epsilon);
  if (bias != NULL) {
    for (size_t i = 0; i < columns; i++) out[i] = (x[i] - mean) * factor * scale[i] + bias[i];
  } else {
    for (size_t i = 0; i < columns; i++) out[i] = (x[i] - mean) * factor * scale[i];
  }
}

static void rows(void *context, size_t start, size_t count) {
  const job *task = context;
  const struct np_layer_norm_params *p = task->params;
  for (size_t row = start; row < start + count; row++) {
    normalize(task->in + row * p->columns, task->scale, task->bias, task->out + row * p->columns,
              p->columns, p->epsilon, p->root_mean_square);
  }
}

int np_layer_norm(const void *params, const void *const *inputs, void *out, pthreadpool_t pool) {
  const struct np_layer_norm_params *p = params;
  if (p->rows == 0 || p->columns == 0) return 0;
  job task = {p, inputs[0], inputs[1], p->has_bias ? inputs[2] : NULL, out};
  const pthreadpool_t used = p->rows * p->columns * 4 < NP_SMALL ? NULL : pool;
  const size_t tile = 1 + NP_SMALL / 8 / p->columns;
  pthreadpool_parallelize_1d_tile_1d(used, rows, &task, p->rows, tile, NP_DISABLE_DENORMALS);
  return 0;
}
