/* The micro-kernels of depthwise convolutions, written for each instruction set. */
#ifndef NARROWPASS_DEPTHWISE_FP32_TILE_H
#define NARROWPASS_DEPTHWISE_FP32_TILE_H

#include "depthwise/fp32.h"
#include "runtime/kernel.h"

/* Rows of the output, and the rows of the image that their output pixels need. */
typedef struct {
  const float *const *rows; /* from the first window's first row on; NULL for one outside */
  size_t count;             /* of the output */
  size_t width;
  size_t out_width;
  size_t window[2];
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
  np_epilogue_tile *end;    /* what is done after that; NULL for nothing */
  struct np_epilogue epilogue;
  const float *after; /* its residual; NULL for none */
} np_fp32_depthwise_tile;

typedef void np_fp32_depthwise_rows(const np_fp32_depthwise_tile *tile);

NP_DECLARE_FOR_ISAS(np_fp32_depthwise_rows, np_fp32_depthwise);

/* The output pixels of an image of `p`, of which rows, `out` and its residuals are to be given.
 * What is not done by clamping is done by `end`. */
np_fp32_depthwise_tile np_fp32_depthwise_tile_for(const struct np_fp32_depthwise_params *p);

/* Put the addresses of the rows of an image that output rows from `first` on need. */
void np_fp32_depthwise_address(const struct np_fp32_depthwise_params *p, const float *image,
                               size_t first, size_t count, const float **rows);

/* Rows of the image that `count` rows of the output need. */
static inline size_t np_fp32_depthwise_reach(const struct np_fp32_depthwise_params *p,
                                             size_t count) {
  return (count - 1) * p->strides[0] + (p->window[0] - 1) * p->dilations[0] + 1;
}

#endif
