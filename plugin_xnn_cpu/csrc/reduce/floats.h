/* Reductions of float32 that add, as their code for each instruction set has them. */
#pragma once

#include "reduce/reduce.h"
#include "runtime/kernel.h"

/* Rows of dense elements, of each of which a result is computed; or columns that lie side by side in
 * such rows, each of them a result. */
typedef struct {
  const float *x;
  ptrdiff_t stride; /* floats from a row to the next */
  size_t rows;
  size_t columns;
  int32_t op;    /* NP_REDUCTION_SUM, NP_REDUCTION_L1 or NP_REDUCTION_SUM_SQUARES */
  float divisor; /* of each result */
  float *out;    /* a result for each row, or for each column */
} np_float_reduction;

typedef void np_reduce_floats(const np_float_reduction *job);

NP_DECLARE_FROM_SSE4(np_reduce_floats, np_reduce_rows);
NP_DECLARE_FROM_SSE4(np_reduce_floats, np_reduce_columns);
