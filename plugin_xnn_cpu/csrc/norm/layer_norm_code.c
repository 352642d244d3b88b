/* Layer normalization of rows for one instruction set; norm/layer_norm.c says how it is done. */
#include <math.h>

#include "norm/layer_norm_rows.h"
#include "simd/f32.h"

/* An element's accumulator is lane i % ADDED of 32, in the last ones i % 16 of 16, with every
 * instruction set. */
#define CHAINS (2 * SPANS)
#define ADDED (2 * REDUCED_LANES)
#define TOGETHER 2 /* rows: one waits for its mean and deviation, the other has work meanwhile */

/* Sum of the numbers of each row less its mean, or of their squares. */
NP_INLINE void total(const float *const x[], size_t columns, const float mean[], float result[],
                     const int rows, const int squared) {
  vec acc[TOGETHER][CHAINS];
  for (int r = 0; r < rows; r++) {
    for (int s = 0; s < CHAINS; s++) acc[r][s] = zero();
  }
  size_t i = 0;
  while (i + ADDED <= columns && (i == 0 || !np_cancel_check())) {
    for (const size_t next = np_stretch(i, columns); i + ADDED <= next; i += ADDED) {
      for (int r = 0; r < rows; r++) {
        UNROLL for (int s = 0; s < CHAINS; s++) {
          const vec d = load(x[r] + i + s * LANES) - mean[r];
          acc[r][s] = squared ? multiply_add(d, d, acc[r][s]) : (vec)(acc[r][s] + d);
        }
      }
    }
  }
  if (columns > NP_STRETCH && np_cancelled()) i = columns;
  for (; i < columns; i += REDUCED_LANES) {
    for (int r = 0; r < rows; r++) {
      UNROLL for (int s = 0; s < SPANS; s++) {
        const size_t some = lanes_of_span(columns - i, s);
        if (some == 0) break;
        const vec d = keep_some(load_some(x[r] + i + s * LANES, some) - mean[r], some);
        acc[r][s] = squared ? multiply_add(d, d, acc[r][s]) : (vec)(acc[r][s] + d);
      }
    }
  }
  for (int r = 0; r < rows; r++) {
    UNROLL for (int s = 0; s < SPANS; s++) acc[r][s] += acc[r][s + SPANS];
    result[r] = sum_of_spans(acc[r]);
  }
}

NP_INLINE void add(const float *x, const float *added, float *sum, size_t columns) {
  const size_t whole = columns - columns % LANES;
  for (size_t i = 0; i < whole;) {
    if (i > 0 && np_cancel_check()) return;
    for (const size_t next = np_stretch(i, whole); i < next; i += LANES) {
      store(sum + i, load(x + i) + load(added + i));
    }
  }
  for (size_t i = whole; i < columns; i++) sum[i] = x[i] + added[i];
}

/* Rows that lie where `x` and `to` say. */
NP_INLINE void normalize(const np_normal_rows *p, const float *const x[], float *const to[],
                         const int rows) {
  const size_t columns = p->columns, whole = columns - columns % LANES;
  const float count = (float)columns, *scale = p->scale, *bias = p->bias;
  const float none[TOGETHER] = {0};
  float mean[TOGETHER] = {0}, factor[TOGETHER];
  if (!p->root_mean_square) {
    total(x, columns, none, mean, rows, 0);
    for (int r = 0; r < rows; r++) mean[r] /= count;
  }
  total(x, columns, mean, factor, rows, 1);
  for (int r = 0; r < rows; r++) factor[r] = 1.0f / sqrtf(factor[r] / count + p->epsilon);
  for (size_t i = 0; i < whole;) {
    if (i > 0 && np_cancel_check()) return;
    for (const size_t next = np_stretch(i, whole); i < next; i += LANES) {
      const vec by = load(scale + i);
      const vec plus = bias == NULL ? zero() : load(bias + i);
      for (int r = 0; r < rows; r++) {
        const vec normal = (load(x[r] + i) - mean[r]) * factor[r];
        store(to[r] + i, multiply_add(normal, by, plus));
      }
    }
  }
  if (whole == columns || np_cancelled()) return;
  const size_t some = columns - whole;
  const vec by = load_some(scale + whole, some);
  const vec plus = bias == NULL ? zero() : load_some(bias + whole, some);
  for (int r = 0; r < rows; r++) {
    const vec normal = (load_some(x[r] + whole, some) - mean[r]) * factor[r];
    store_some(to[r] + whole, multiply_add(normal, by, plus), some);
  }
}

void NP_OF_ISA(np_normalize_rows)(const np_normal_rows *p) {
  size_t row = 0;
  while (row < p->rows) {
    const size_t some = p->rows - row < TOGETHER ? 1 : TOGETHER;
    const float *x[TOGETHER];
    float *to[TOGETHER];
    for (size_t r = 0; r < some; r++) {
      x[r] = p->x + (ptrdiff_t)(row + r) * p->x_stride;
      to[r] = p->out + (row + r) * p->columns;
      if (p->added == NULL) continue;
      float *sum = p->sum + (row + r) * p->columns;
      add(x[r], p->added + (ptrdiff_t)(row + r) * p->added_stride, sum, p->columns);
      x[r] = sum;
    }
    if (some == TOGETHER) {
      normalize(p, x, to, TOGETHER);
    } else {
      normalize(p, x, to, 1);
    }
    row += some;
  }
}
