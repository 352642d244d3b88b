/* XNNPACK's fully connected operators, with operands that are converted before and after. Read by
 * cffi too: no directives but simple constants. */
#pragma once

#include "xnnpack/xnnpack.h"

/* Of a fully connected operator that is computed narrow: its float32 rows are rounded into the
 * start of the workspace; a float16 result comes to byte `output_offset` of it, and is upcast. */
struct np_converted_params {
  size_t inputs;
  size_t outputs;
  size_t output_offset;
};

/* Of a fully connected operator whose rows are quantized: integers of `rows` × `channels` lie at
 * the start of the workspace, then what they stand for, and which rows cannot be quantized, a byte
 * each. */
struct np_dynamic_int8_params {
  xnn_operator_t to_int8;
  int32_t is_unsigned; /* integers from 0 to 255, which some processors multiply faster */
  size_t rows;
  size_t channels;
  size_t outputs;
  size_t ranges_offset;
  size_t odd_offset;
  size_t scratch_offset; /* of XNNPACK's */
};

/* Of a fully connected operator of int8 rows, all with one scale and zero point, to
 * float32. `ranges` has as many of these as rows, and what kernels read beyond. Where the kernel
 * takes integers from 0 to 255 the rows are stored with an offset of +128, at the start of the
 * workspace. */
struct np_s8_f32_params {
  size_t count; /* of the elements of all rows */
  const struct xnn_quantization_params *ranges;
  int32_t is_unsigned;
  size_t scratch_offset; /* of XNNPACK's */
};
