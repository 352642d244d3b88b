/* Packed panels of the int8 GEMM, and the table of its micro-kernels for each instruction set. */
#pragma once

#include "conv/indirection.h"
#include "gemm/int8/int8.h"

#define NP_INT8_MR 6  /* rows of the largest micro-kernel */
#define NP_INT8_NR 16 /* columns of a panel; 8 of the last one where these suffice */

/* There are two packed layouts. The 2-way interleaved one is for processors that multiply pairs of
 * int16 and add them (vpmaddwd): inputs are upcast to int16, less their zero point. The 4-way
 * interleaved one is for VNNI, which multiplies K-groups of 4, u8 by s8: inputs are stored with an
 * offset of +128, and their zero point, times the totals of the weights' columns, is subtracted
 * from the accumulators.
 *
 * A 2-way panel has its bias (int32), its scales, then for each pair of inputs two weights for each
 * column. Columns are in the order in which AVX2 packs two vectors of 8. */
static const uint8_t np_int8_order[NP_INT8_NR] = {0, 1, 2, 3, 8,  9,  10, 11,
                                                  4, 5, 6, 7, 12, 13, 14, 15};

/* Bytes of a panel in the layout of a K-group; vectors lie at multiples of their size. */
size_t np_int8_panel_size(size_t k_group, size_t columns, size_t k_groups);

#define NP_INT8_VNNI_MR 14 /* rows of the largest micro-kernel */
#define NP_INT8_VNNI_NR 32 /* columns of a panel; 16 of the last one where these suffice */

/* A 4-way panel has its bias, its scales and the totals of its columns (32 bits each), then
 * for each K-group of 4 the four weights of each column. */
NP_INLINE size_t np_int8_vnni_panel_width(size_t columns) {
  return columns > 16 ? NP_INT8_VNNI_NR : 16;
}

/* Bytes of the parts of a 4-way interleaved panel before its weights. */
NP_INLINE size_t np_int8_vnni_head_size(size_t columns) {
  return np_int8_vnni_panel_width(columns) * 12;
}

/* Depthwise weights for VNNI: channels by 64, whose bias, scales and totals of weights lie
 * before the weights. See depthwise/int8.c for the order of channels. */
#define NP_INT8_VNNI_CHANNELS 64
#define NP_INT8_VNNI_PIXEL 256 /* bytes of four pixels, one below the other */
#define NP_INT8_VNNI_BLOCK_HEAD (3 * 4 * NP_INT8_VNNI_CHANNELS)

/* Channel `n` of 64 in that order: lanes of 16 bytes have channels side by side, by fours. */
NP_INLINE size_t np_int8_vnni_channel(size_t n) { return n % 16 / 4 * 16 + n / 16 * 4 + n % 4; }

/* Requantization: the zero point and the clipping range of int8. */
typedef struct {
  int32_t zero;
  int32_t low;
  int32_t high;
} np_int8_range;

/* The epilogue of a panel: dequantize to float32 with a scale for each row; requantize to int8; or
 * store the accumulators, of a panel of int16 weights without bias and scales. */
#define NP_INT8_TO_FLOAT 0
#define NP_INT8_TO_INT8 1
#define NP_INT8_TO_INT32 2

/* The arguments of a micro-kernel: a panel, and the output pixels, which are the rows of the
 * GEMM. */
typedef struct {
  int kind;              /* NP_INT8_TO_* */
  const void *image;     /* of int16, or uint8 */
  const int32_t *pixels; /* where output pixels start in it */
  size_t count;          /* of output pixels */
  size_t line;           /* output pixels that lie `step` elements apart */
  size_t step;
  const int32_t *runs; /* where runs start in a kernel window */
  size_t run_count;
  size_t groups; /* pairs, or K-groups of 4, of elements in a run */
  const uint8_t *panel;
  size_t columns; /* of this panel and those behind it: as many as the code takes at a time */
  void *out;
  size_t out_stride; /* elements */
  np_int8_range range;
  int32_t zero;             /* for VNNI: what stands for 0, from 0 to 255 */
  const float *row_scales;  /* of a float32 output */
  const int32_t *row_zeros; /* the same of each row, for it */
  float low, high;
  const struct np_int8_residual *sum; /* for VNNI: how a residual is added to int8, or NULL */
  const int8_t *other;           /* which lies as the output does */
  uint8_t out_xor; /* of output bytes: 0x80 where they have an offset of +128, else 0 */
  uint8_t other_xor;
  /* Of weights with a zero point: the sum of each output pixel's elements, without their zero, and
   * the zero points, in the order in which columns lie in the panel. Both NULL where all are 0. */
  const int32_t *row_sums;
  const int32_t *weight_zeros;
  int raw; /* of a float32 output: the accumulators themselves are written, as int32 */
} np_int8_panel;

/* A row of depthwise output pixels of a block of channels, whose rows are interleaved by K-groups:
 * a pixel has the elements of a K-group of each channel. Strides are in elements. */
typedef struct {
  const void *image;
  size_t count;  /* of output pixels */
  size_t step;   /* between output pixels */
  size_t groups; /* of rows in a kernel window */
  size_t group_stride;
  size_t width; /* of a kernel window */
  size_t column_stride;
  const uint8_t *weights; /* interleaved too */
  const uint8_t *head;    /* bias, scales and, for VNNI, totals of columns */
  size_t columns;
  int8_t *out;
  size_t out_stride;
  np_int8_range range;
  /* For VNNI. */
  int lower; /* the kernel is 3 x 3 and starts in the second row of its K-group */
  int32_t zero;
  uint8_t out_xor; /* as of a panel */
} np_int8_depthwise_tile;

#define NP_INT8_PAIR (2 * NP_INT8_NR) /* elements of a pair of pixels */
#define NP_INT8_HEAD (NP_INT8_NR * (sizeof(int32_t) + sizeof(float)))

#define NP_INT8_TILE 16 /* elements of a tile of 4 × 4 */

/* A tile of 2 × 2 outputs and 16 columns; see winograd/int8.c. */
typedef struct {
  const int32_t *acc;
  size_t stride; /* between elements of the tile */
  const uint8_t *head;
  int8_t *out;
  size_t row_stride;
  size_t column_stride;
  size_t rows; /* that lie inside the output: 1 or 2 */
  size_t columns;
  np_int8_range range;
} np_int8_winograd_tile;

typedef struct {
  size_t element; /* bytes of what is multiplied */
  size_t group;   /* elements that are multiplied at a time: 2 or 4 */
  size_t columns; /* of a panel */
  size_t most;    /* columns of panels that are multiplied at a time */
  void (*multiply)(const np_int8_panel *panel);
  /* To int16, with the zero taken away; or stored with an offset of +128. */
  np_convert_pixels *upcast;
  /* A row of float32, quantized by its range; returns its scale, and what stands for 0 in `zero`.
   * */
  float (*quantize)(const float *row, size_t count, void *out, int32_t *zero);
  void (*depthwise)(const np_int8_depthwise_tile *block);
  /* A K-group of rows of pixels, interleaved; rows that are NULL are zeros. For VNNI bytes are XOR
   * a mask, 0x80 for s8 to u8, and `zero` stands for 0. */
  void (*interleave)(const int8_t *const *rows, size_t stride, size_t count, size_t columns,
                     int32_t zero, uint8_t out_xor, void *out);
  /* What follows is of pairs alone. Four rows of four pixels, transformed; each element of a tile
   * lies `stride` after the last. */
  void (*transform)(const int16_t *wide, size_t row_stride, size_t channels, size_t stride,
                    int16_t *out);
  void (*finish)(const np_int8_winograd_tile *tile);
  /* And of VNNI: one output pixel of one run with all columns of a part, to float32; NULL where
   * `multiply` does it. */
  void (*row)(const np_int8_panel *panel);
} np_int8_micro_kernels;

extern const np_int8_micro_kernels np_int8_plain, np_int8_avx2, np_int8_vnni_avx512;
extern const np_int8_micro_kernels np_int8_avx512amx; /* where NP_HAS_AVX512AMX */

/* The sum of each row of inputs (an output pixel), less its zero point: of int16 without it, or of
 * bytes with `zeros`. A row has `runs` runs of `run_length` elements, which begin at `starts`. */
void np_int8_row_sums(const np_int8_micro_kernels *code, const void *image, const int32_t *pixels,
                      size_t count, const int32_t *starts, size_t runs, size_t run_length,
                      const int32_t *zeros, int32_t *acc);

/* The scale and zero of a tensor that is quantized at run time, from the second and third input of
 * a step; as they are where there is none. */
NP_INLINE void np_int8_read_quantization(const void *const *inputs, float *scale, int32_t *zero) {
  if (inputs[1] != NULL) memcpy(scale, inputs[1], sizeof *scale);
  if (inputs[2] != NULL) *zero = *(const int8_t *)inputs[2];
}

/* The micro-kernels of a layout: the 4-way interleaved one is for processors with VNNI alone, and
 * those of AMX read it as it is. */
const np_int8_micro_kernels *np_int8_micro_kernels_for(int32_t target, int32_t vnni);

/* An image of which rows are copied padded: upcast, or with an offset of +128, which they are
 * stored with already where `u8` is set. */
np_padded_image np_int8_padded_image(const np_int8_micro_kernels *code, const int8_t *pixels,
                                     const struct np_convolution_geometry *geometry, int32_t zero,
                                     int u8);

/* How a row is quantized whose least and largest element, 0 included, are `low` and `high`. */
typedef struct {
  float inverse;
  float zero;
} np_int8_row_range;

NP_INLINE np_int8_row_range np_int8_range_of(float low, float high) {
  float inverse = low == high ? 1.0f : 255.0f / (high - low);
  /* Of a range of subnormal numbers: nothing is lost by taking it for zeros. */
  if (!(inverse <= 0x1p127f)) inverse = 0x1p127f;
  /* The zero point that is off by less; as double, these are exact. */
  const double least = (double)low * (double)inverse, most = (double)high * (double)inverse;
  double exact = least + most > 1.0 ? -128.0 - least : 127.0 - most;
  exact = exact < -128.0 ? -128.0 : exact > 127.0 ? 127.0 : exact;
  return (np_int8_row_range){inverse, (float)__builtin_rint(exact)};
}

#define NP_INT8_HUGE 0x7f000000u /* 2^127: the range of a row of smaller numbers is finite */

/* The extremes of a row, 0 included; 0 where it has no range. */
NP_INLINE int np_int8_extremes_loop(const float *row, size_t count, float *low, float *high) {
  uint32_t largest = 0;
  float least = 0.0f, most = 0.0f;
  for (size_t i = 0; i < count; i++) {
    const uint32_t bits = np_bits_of(row[i]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
    least = row[i] < least ? row[i] : least;
    most = row[i] > most ? row[i] : most;
  }
  *low = least;
  *high = most;
  return largest < NP_INT8_HUGE;
}

NP_INLINE float np_int8_quantize_loop(const float *row, size_t count, int16_t *out) {
  float low, high;
  if (!np_int8_extremes_loop(row, count, &low, &high)) {
    memset(out, 0, count * sizeof *out);
    return __builtin_nanf("");
  }
  const np_int8_row_range range = np_int8_range_of(low, high);
  const float inverse = range.inverse, zero = range.zero;
  for (size_t i = 0; i < count; i++) {
    float x = __builtin_rintf(row[i] * inverse);
    x = x < -128.0f - zero ? -128.0f - zero : x;
    x = x > 127.0f - zero ? 127.0f - zero : x;
    out[i] = (int16_t)(int32_t)x;
  }
  return 1.0f / inverse;
}
