/* The micro-kernels of depthwise convolutions, written for each instruction set. */
#pragma once

#include "conv/indirection.h"
#include "depthwise/fp32.h"
#include "epilogue/plan.h"

/* Rows of the output, and the rows of the image that their output pixels need. */
typedef struct {
  const float *const *rows; /* from the first output pixel's first row on; NULL for one outside */
  size_t count;             /* of the output */
  size_t width;
  size_t out_width;
  size_t kernel[2];
  size_t strides[2];
  size_t dilations[2];
  size_t left;         /* columns of pads */
  size_t pixel;        /* floats from one pixel to the next */
  size_t columns;      /* channels that are computed */
  const float *packed; /* weights of these */
  float *out;
  const float *before; /* added to the accumulators; NULL for none; lies as `out` does */
  float low;
  float high;
  np_epilogue_tile *end; /* what is done after that; NULL for nothing */
  struct np_epilogue epilogue;
  const float *after; /* its residual; NULL for none */
} np_fp32_depthwise_tile;

typedef void np_fp32_depthwise_rows(const np_fp32_depthwise_tile *tile);

NP_DECLARE_FOR_ISAS(np_fp32_depthwise_rows, np_fp32_depthwise);

/* The output pixels of an image of `p`, of which rows, `out` and its residuals are to be given.
 * What is not done by clamping is done by `end`. */
np_fp32_depthwise_tile np_fp32_depthwise_tile_for(const struct np_fp32_depthwise_params *p,
                                                  const np_epilogue_plan *end);

/* Write the pointer of each row of an image that output rows from `first` on read; NULL for pads. */
void np_fp32_depthwise_row_pointers(const struct np_fp32_depthwise_params *p, const float *image,
                                    size_t first, size_t count, const float **rows);
