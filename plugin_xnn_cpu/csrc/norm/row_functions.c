/* Functions of rows of floats: softmax, its logarithm, hardmax, division by a norm. */
#include "norm/softmax_rows.h"
#include "simd/exp_log.h"

#define NP_ROWS_LOG_SOFTMAX 0
#define NP_ROWS_HARDMAX 1
#define NP_ROWS_L1_NORMALIZATION 2
#define NP_ROWS_L2_NORMALIZATION 3
#define NP_ROWS_SOFTMAX 4

/* A function of rows of float: softmax, or its logarithm; 1 at the first greatest element and 0
 * elsewhere; a row divided by its norm, or zeros where that is 0. */
struct np_rows_params {
  size_t rows;
  size_t columns;   /* not 0 */
  int32_t function; /* NP_ROWS_* */
  int32_t target;   /* NP_TARGET_* */
};

#define LANES 16

/* Whether the run is stopped, where element `at` is not the first of a row. */
NP_INLINE int stopped(size_t at) { return at > 0 && np_cancel_check(); }

/* The maximum of a row; NaN may be lost. */
NP_INLINE float maximum(const float *x, size_t count) {
  float lanes[4 * LANES], best = x[0];
  for (size_t c = 0; c < 4 * LANES; c++) lanes[c] = best;
  size_t i = 0;
  while (i + 4 * LANES <= count && !stopped(i)) {
    for (const size_t next = np_stretch(i, count); i + 4 * LANES <= next; i += 4 * LANES) {
      for (size_t c = 0; c < 4 * LANES; c++) lanes[c] = x[i + c] > lanes[c] ? x[i + c] : lanes[c];
    }
  }
  for (; i < count; i++) best = x[i] > best ? x[i] : best;
  for (size_t c = 0; c < 4 * LANES; c++) best = lanes[c] > best ? lanes[c] : best;
  return best;
}

/* exp is that of what is finite: with an element that is NaN the whole row is. */
NP_INLINE void log_softmax(const float *x, float *out, size_t count) {
  const float best = maximum(x, count);
  float lanes[2 * LANES], sum = 0.0f;
  int32_t strange[2 * LANES], any = 0;
  for (size_t c = 0; c < 2 * LANES; c++) lanes[c] = 0.0f;
  for (size_t c = 0; c < 2 * LANES; c++) strange[c] = 0;
  size_t i = 0;
  while (i + 2 * LANES <= count && !stopped(i)) {
    for (const size_t next = np_stretch(i, count); i + 2 * LANES <= next; i += 2 * LANES) {
      for (size_t c = 0; c < 2 * LANES; c++) {
        const float d = x[i + c] - best;
        lanes[c] += exp_of_minus_magnitude(d);
        strange[c] |= d != d;
      }
    }
  }
  if (np_cancelled()) return;
  for (; i < count; i++) {
    const float d = x[i] - best;
    sum += exp_of_minus_magnitude(d);
    any |= d != d;
  }
  for (size_t c = 0; c < 2 * LANES; c++) sum += lanes[c];
  for (size_t c = 0; c < 2 * LANES; c++) any |= strange[c];
  const float l = any ? NAN : logarithm_of(sum);
  for (i = 0; i < count && !stopped(i);) {
    for (const size_t next = np_stretch(i, count); i < next; i++) out[i] = (x[i] - best) - l;
  }
}

/* NaN counts as greater than any number, as in ArgMax. */
static void hardmax(const float *x, float *out, size_t count) {
  size_t best = 0;
  for (size_t i = 0; i < count && !stopped(i);) {
    for (const size_t next = np_stretch(i, count); i < next; i++) {
      if (x[i] > x[best] || (isnan(x[i]) && !isnan(x[best]))) best = i;
    }
  }
  for (size_t i = 0; i < count && !stopped(i);) {
    for (const size_t next = np_stretch(i, count); i < next; i++) out[i] = 0.0f;
  }
  out[best] = 1.0f;
}

NP_INLINE void divided(const float *x, float *out, size_t count, const int squared) {
  float lanes[LANES], sum = 0.0f;
  for (size_t c = 0; c < LANES; c++) lanes[c] = 0.0f;
  size_t i = 0;
  while (i + LANES <= count && !stopped(i)) {
    for (const size_t next = np_stretch(i, count); i + LANES <= next; i += LANES) {
      for (size_t c = 0; c < LANES; c++) {
        lanes[c] += squared ? x[i + c] * x[i + c] : fabsf(x[i + c]);
      }
    }
  }
  if (np_cancelled()) return;
  for (size_t c = 0; i + c < count; c++) {
    lanes[c] += squared ? x[i + c] * x[i + c] : fabsf(x[i + c]);
  }
  for (size_t c = 0; c < LANES; c++) sum += lanes[c];
  const float norm = squared ? sqrtf(sum) : sum;
  for (i = 0; i < count && !stopped(i);) {
    for (const size_t next = np_stretch(i, count); i < next; i++) {
      out[i] = norm == 0.0f ? 0.0f : x[i] / norm;
    }
  }
}

NP_TILE(rows) {
  const struct np_rows_params *p = job->params;
  for (size_t row = start; row < start + count; row++) {
    const float *x = (const float *)job->inputs[0] + row * p->columns;
    float *out = (float *)job->out + row * p->columns;
    switch (p->function) {
      case NP_ROWS_LOG_SOFTMAX: log_softmax(x, out, p->columns); break;
      case NP_ROWS_HARDMAX: hardmax(x, out, p->columns); break;
      case NP_ROWS_L1_NORMALIZATION: divided(x, out, p->columns, 0); break;
      default: divided(x, out, p->columns, 1);
    }
  }
}

static void softmax(np_job *job, size_t start, size_t count) {
  const struct np_rows_params *p = job->params;
  const size_t first = start * p->columns;
  const float *x = (const float *)job->inputs[0] + first;
  NP_FROM_SSE4(np_softmax_rows, p->target)(x, (float *)job->out + first, count, p->columns);
}

int np_rows(np_job *job) {
  const struct np_rows_params *p = job->params;
  if (p->rows == 0) return 0;
  const int is_softmax = p->function == NP_ROWS_SOFTMAX;
  return np_for_tiles(job, is_softmax ? softmax : rows, p->rows,
                      1 + NP_PARALLEL_MIN_BYTES / 16 / p->columns, p->rows * p->columns * 8,
                      is_softmax ? NP_DISABLE_DENORMALS : 0);
}
