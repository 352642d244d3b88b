/* Layer normalization, as its code for each instruction set has it. */
#ifndef NARROWPASS_LAYER_NORM_H
#define NARROWPASS_LAYER_NORM_H

#include "run.h"

/* One row: x, or the sum of x and `added`, which then goes to `sum`; and normalized, to `out`.
 * `out` may be x or `added`, and `sum` may be `out` where nobody wants it. `bias` may be NULL. */
typedef void np_normalize_row(const float *x, const float *added, const float *scale,
                              const float *bias, float *sum, float *out, size_t columns,
                              float epsilon, int root_mean_square);

np_normalize_row np_normalize_row_plain;
#ifdef NP_CHOOSES_CPU
np_normalize_row np_normalize_row_avx2, np_normalize_row_avx512;
#endif

#endif
