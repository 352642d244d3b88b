/* Layer normalization, as its code for each instruction set has it. */
#pragma once

#include "runtime/kernel.h"

/* Rows that are evenly apart: x, or the sum of x and `added`, which then goes to `sum`; and
 * normalized, to `out`. `out` may be x or `added`, and `sum` may be `out` where nobody wants it. */
typedef struct {
  const float *x;
  ptrdiff_t x_stride; /* floats from a row to the next */
  const float *added; /* NULL for none */
  ptrdiff_t added_stride;
  const float *scale;
  const float *bias; /* NULL for none */
  float *sum;        /* rows of `sum` and `out` lie one behind the other */
  float *out;
  size_t rows;
  size_t columns;
  float epsilon;
  int root_mean_square;
} np_normal_rows;

typedef void np_normalize_rows(const np_normal_rows *rows);

NP_DECLARE_FROM_SSE4(np_normalize_rows, np_normalize_rows);
