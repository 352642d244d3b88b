/* XNNPACK's fully connected operators, with operands that are converted before and after. Read by cffi
 * too: no directives but simple constants. */
#ifndef NARROWPASS_XNNPACK_CONVERTED_H
#define NARROWPASS_XNNPACK_CONVERTED_H

#include "xnnpack/xnnpack.h"

/* Of a product that is computed narrow: its float32 rows are rounded into the start of the
 * workspace; a float16 result comes to byte `output_offset` of it, and is widened. */
struct np_narrow_params {
  size_t inputs;
  size_t outputs;
  size_t output_offset;
};

/* Of a product whose rows are quantized: integers of `rows` × `channels` lie at the start of the
 * workspace, then what they stand for, and which rows cannot be quantized, a byte each. */
struct np_int8_params {
  xnn_operator_t to_int8;
  int32_t is_unsigned; /* integers from 0 to 255, which some processors multiply faster */
  size_t rows;
  size_t channels;
  size_t outputs;
  size_t ranges_offset;
  size_t odd_offset;
  size_t scratch_offset; /* of XNNPACK's */
  const struct np_few_rows_params *few; /* what multiplies instead of XNNPACK, or NULL */
};

/* Of a product of int8 rows, all with one scale and zero point, that gives float32. `ranges` has
 * as many of these as rows, and what kernels read beyond. Where the kernel takes integers from 0 to
 * 255 the rows are moved up by 128, at the start of the workspace. */
struct np_s8_f32_params {
  size_t count; /* of the elements of all rows */
  const struct xnn_quantization_params *ranges;
  int32_t is_unsigned;
  size_t scratch_offset; /* of XNNPACK's */
};

#endif
