/* Packed panels of the float32 GEMM, and its micro-kernels, written for each instruction set. */
#pragma once

#include "conv/fp32.h"
#include "epilogue/plan.h"
#include "runtime/kernel.h"

#define NP_FP32_MAX_NR 64 /* of a panel */

/* A part of a panel, some of its inputs, and the output pixels that it is multiplied with. */
typedef struct {
  const float *image;
  const int32_t *pixels; /* where output pixels start in it, unless row_stride says so */
  size_t row_stride;     /* floats between two of them; 0 where they are not all as far apart */
  size_t count;          /* of output pixels */
  const int32_t *runs;   /* where runs start in a kernel window */
  size_t run_count;
  size_t run_length;
  const float *weights;
  const float *prefetch; /* weights that are needed next */
  const float *bias;     /* NULL where accumulators continue what is in `out` */
  const float *residual; /* added to the accumulators; NULL for none; lies as `out` does */
  size_t columns;        /* of the panel */
  size_t lanes;
  float *out;
  size_t out_stride;
  float low;
  float high;
  np_epilogue_tile *end; /* what is done after that; NULL for nothing */
  const struct np_epilogue *epilogue;
  const float *after; /* its residual; NULL for none */
} np_fp32_panel;

/* Where an output pixel starts in the image. */
static inline size_t np_fp32_pixel_offset(const np_fp32_panel *p, size_t row) {
  return p->row_stride > 0 ? row * p->row_stride : (size_t)p->pixels[row];
}

typedef void np_fp32_multiply(const np_fp32_panel *panel);

/* The columns of a panel of a group. */
typedef struct {
  size_t first;
  size_t columns;
  size_t width;  /* with those that fill the last vector */
  size_t offset; /* floats, in the group's packed weights: of the bias, which the weights follow */
} np_fp32_panel_extent;

/* Panel `number` of a group of `outputs` columns, each of a bias and `inputs` weights. */
np_fp32_panel_extent np_fp32_panel_at(size_t lanes, size_t outputs, size_t inputs, size_t number);

/* Code for the lanes that weights are packed for. */
np_fp32_multiply *np_fp32_multiply_for(size_t lanes, int32_t target);

/* Compute `rows` rows of the output from `first` on, of one image; no more than `row_tile`, which
 * what is needed of the scratch memory follows from. The residual lies as these rows do. */
void np_fp32_convolution_rows(const struct np_fp32_convolution_params *p, const float *image,
                              size_t first, size_t rows, const float *residual, float *out,
                              uint8_t *scratch);

NP_DECLARE_FOR_ISAS(np_fp32_multiply, np_fp32_multiply);
#define np_fp32_multiply_sse4 np_fp32_multiply_plain /* which has none of its own */
