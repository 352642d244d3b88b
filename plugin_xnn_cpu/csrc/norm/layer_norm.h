/* Layer normalization. Read by cffi too: no directives but simple constants. */
#ifndef NARROWPASS_NORM_LAYER_NORM_H
#define NARROWPASS_NORM_LAYER_NORM_H

#include <stddef.h>
#include <stdint.h>

/* out = (x - mean) / sqrt(variance + epsilon) · scale + bias over rows of `columns`, dense, of
 * which there are as many as the product of `sizes`; x may be the sum of x and `added`. Where the
 * sum is wanted too it goes to `sum_offset` behind the result, which else is 0. */
struct np_layer_norm_params {
  size_t sizes[3];
  size_t columns;
  ptrdiff_t x_strides[3];
  ptrdiff_t added_strides[3];
  size_t sum_offset;
  float epsilon;
  int32_t has_bias;
  int32_t has_added;
  int32_t root_mean_square; /* no mean is taken away */
  int32_t target;           /* NP_TARGET_* */
};

#endif
