/* GEMM and convolutions of int8, for processors where XNNPACK's are slow.
 *
 * Accumulators are int32 and exact. Weights are packed by np_int8_pack and np_int8_pack_depthwise.
 * Read by cffi too: no directives but simple constants. */
#pragma once

#include "conv/image.h"
#include "runtime/isa.h"

/* Changes whenever packed bytes are laid out otherwise. */
#define NP_INT8_LAYOUT 1

/* A residual b of int8 that is added to an output a of int8 as XNNPACK's qs8 addition does it:
 * clamp(((a · own + b · other + bias) >> shift) + zero, low, high). */
struct np_int8_residual {
  int32_t own;
  int32_t other;
  int32_t bias;
  int32_t shift;
  int32_t zero;
  int32_t low;
  int32_t high;
};

/* out = clamp(rint(float(accumulator) · scale) + zero, low, high), where the accumulator is the sum
 * over the kernel window of (input - its zero point) · weight, plus the bias. Images are [N, H, W,
 * C].
 *
 * The copy of a row tile is upcast to int16 less its zero point, with zeros around.
 *
 * VNNI kernels multiply images that are stored with an offset of +128. Where VNNI kernels alone
 * read what one of them writes, it is written so, and is read in place where it needs no
 * padding. */
struct np_int8_convolution_params {
  const void *packed;
  struct np_convolution_geometry geometry;
  int32_t in_zero;
  int32_t out_zero;
  int32_t low;
  int32_t high;
  int32_t target;       /* NP_TARGET_* */
  int32_t vnni;         /* the layout; see gemm/int8/panel.h */
  int32_t has_residual; /* a second input is added to the output: VNNI only */
  struct np_int8_residual residual;
  int32_t in_u8; /* VNNI: which bytes are stored with an offset of +128 */
  int32_t out_u8;
  int32_t other_u8;
  int32_t in_place; /* the image is raised, and read where it lies: it has no pads */
  int32_t to;           /* NP_INT8_OUT_*: where it is not int8 the input's scale, a float32, and
                           zero, an int8, are the second and third input, if there are such */
  float float_low; /* of a float32 output */
  float float_high;
  const int32_t *weight_zeros; /* of each group `zeros_stride`, in the order of panels; or NULL */
  size_t zeros_stride;
  size_t acc_offset; /* in a thread's scratch memory: row sums, their scales and zeros */
  size_t scales_offset;
  size_t zeros_offset;
  size_t thread_scratch; /* bytes */
};

/* Kernels of 3 × 3 with stride 1; see winograd/int8.c. Channels and outputs are
 * multiples of 16, and accumulators are below 2^29. */
struct np_int8_winograd_params {
  const void *packed;
  struct np_image_sizes image;
  size_t outputs;
  size_t pads[2];
  size_t tiles[2]; /* of the output, down and along */
  size_t row_tile; /* rows of tiles */
  size_t row_tiles;
  size_t block; /* tiles that are multiplied at a time */
  size_t parts;
  size_t part_columns;
  int32_t in_zero;
  int32_t out_zero;
  int32_t low;
  int32_t high;
  int32_t target;
  size_t tiles_offset;
  size_t acc_offset;
  size_t pixels_offset;
  size_t thread_scratch;
};

/* Depthwise. A thread interleaves a row tile of 16 channels, two rows at a time; with VNNI the rows
 * of 64 channels that a row of the output needs, four at a time. See depthwise/int8.c. */
struct np_int8_depthwise_params {
  const void *packed;
  struct np_image_sizes image;
  size_t kernel[2]; /* height, width */
  size_t strides[2];
  size_t dilations[2];
  size_t pads[2];
  size_t wide_width;
  size_t row_tile;
  size_t row_tiles;
  size_t pairs; /* of rows that are interleaved, of each image; not of VNNI */
  int32_t in_zero;
  int32_t out_zero;
  int32_t low;
  int32_t high;
  int32_t target;
  int32_t vnni;   /* the layout; see gemm/int8/panel.h */
  int32_t in_u8;  /* VNNI: which bytes are stored with an offset of +128 */
  int32_t out_u8;
  size_t weights_offset;
  size_t thread_scratch;
};

/* The type of a convolution's output; of int32 the accumulators themselves. */
#define NP_INT8_OUT_INT8 0
#define NP_INT8_OUT_FLOAT 1
#define NP_INT8_OUT_INT32 2

/* What the rows of a GEMM are; AT_RUN is int8 with the scale and zero that the next inputs have. */
#define NP_INT8_ROWS_QUANTIZED 0
#define NP_INT8_ROWS_INT8 1
#define NP_INT8_ROWS_AT_RUN 2

/* Rows of float32, quantized each by its own range, 0 included, for the GEMMs that read them. One
 * with an element that is NaN, infinite, or of 2^127 and more has the scale NaN. A row takes
 * `row_bytes`: what is multiplied, and in its last 8 bytes its scale and what stands for 0. */
struct np_int8_rows_params {
  size_t rows;
  size_t channels;
  size_t row_bytes;
  int32_t target;
  int32_t vnni;
};

/* float32 out = clamp(float(accumulator) · row scale · scale + bias, low, high), where the last
 * multiplication and addition are an FMA. Rows are quantized already, or of int8 with one scale and
 * zero point. */
struct np_int8_gemm_params {
  const void *packed;
  size_t rows;
  size_t channels;
  size_t outputs;
  size_t row_tile; /* rows that are computed at a time */
  size_t parts;
  size_t part_columns;
  size_t row_bytes; /* of quantized rows */
  int32_t from;     /* NP_INT8_ROWS_* */
  int32_t in_zero;
  float in_scale;
  float low;
  float high;
  int32_t target;
  int32_t vnni;
  size_t pixels_offset;
  size_t scales_offset;
  size_t zeros_offset;
  size_t acc_offset;
  size_t thread_scratch;
  int32_t raw;                 /* int32 out = sum */
  const int32_t *weight_zeros; /* in the order of panels; NULL where all are 0 */
};

/* Packed weights in the layout of a K-group of 2, or of 4 for VNNI; see gemm/int8/panel.h. Bytes of
 * those of `outputs` columns for each group. */
size_t np_int8_packed_size(size_t k_group, size_t groups, size_t outputs, size_t runs,
                           size_t run_length);
size_t np_int8_depthwise_packed_size(size_t k_group, size_t channels, size_t height, size_t width);

/* weights[groups][outputs][runs][run_length] in panels of columns. `bias` is of int32 or float32,
 * or NULL; scales are float32. */
void np_int8_pack(size_t k_group, size_t groups, size_t outputs, size_t runs, size_t run_length,
                  const void *weights, const void *bias, const void *scales, void *packed);

/* weights[height][width][channels] in blocks of channels, less zeros[channels], unless NULL: for
 * pairs alone. */
void np_int8_pack_depthwise(size_t k_group, size_t channels, size_t height, size_t width,
                            const void *weights, const void *bias, const void *scales,
                            const int32_t *zeros, void *packed);

size_t np_int8_winograd_packed_size(size_t outputs, size_t channels);

/* weights[outputs][3][3][channels], transformed. */
void np_int8_pack_winograd(size_t outputs, size_t channels, const void *weights, const void *bias,
                           const void *scales, void *packed);
