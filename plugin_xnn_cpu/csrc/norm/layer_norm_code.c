/* Layer normalization of rows for one instruction set; norm/layer_norm.c says how it is done. */
#include <math.h>

#include "norm/layer_norm_rows.h"
#include "simd/f32.h"

#define CHAINS 4 /* an addition takes as long as so many can be begun in */
#define TOGETHER 2 /* rows: one waits for its mean and deviation, the other has work meanwhile */

/* Sum of the numbers of each row less its mean, or of their squares. */
NP_INLINE void total(const float *const x[], size_t columns, const float mean[], float result[],
                     const int rows, const int squared) {
  vec acc[TOGETHER][CHAINS];
  for (int r = 0; r < rows; r++) {
    for (int s = 0; s < CHAINS; s++) acc[r][s] = zero();
  }
  size_t i = 0;
  while (i + CHAINS * LANES <= columns && (i == 0 || !np_cancel_check())) {
    for (const size_t next = np_stretch(i, columns); i + CHAINS * LANES <= next;
         i += CHAINS * LANES) {
      for (int r = 0; r < rows; r++) {
        for (int s = 0; s < CHAINS; s++) {
          const vec d = load(x[r] + i + s * LANES) - mean[r];
          acc[r][s] += squared ? (vec)(d * d) : d;
        }
      }
    }
  }
  if (columns > NP_STRETCH && np_cancelled()) i = columns;
  for (; i + LANES <= columns; i += LANES) {
    for (int r = 0; r < rows; r++) {
      const vec d = load(x[r] + i) - mean[r];
      acc[r][0] += squared ? (vec)(d * d) : d;
    }
  }
  for (int r = 0; r < rows; r++) {
    float rest = 0.0f;
    for (size_t k = i; k < columns; k++) {
      const float d = x[r][k] - mean[r];
      rest += squared ? d * d : d;
    }
    result[r] = sum_of((acc[r][0] + acc[r][1]) + (acc[r][2] + acc[r][3])) + rest;
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
        store(to[r] + i, normal * by + plus);
      }
    }
  }
  for (int r = 0; r < rows; r++) {
    for (size_t i = whole; i < columns; i++) {
      to[r][i] = (x[r][i] - mean[r]) * factor[r] * scale[i] + (bias == NULL ? 0.0f : bias[i]);
    }
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
