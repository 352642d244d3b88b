/* A depthwise convolution of float32 between two products with matrices, or before one, in one pass.
 *
 * Read by cffi too: no directives but simple constants. */
#ifndef NARROWPASS_FP32_SEPARABLE_KERNELS_H
#define NARROWPASS_FP32_SEPARABLE_KERNELS_H

#include "fp32_depthwise_kernels.h"
#include "fp32_kernels.h"

/* Pixels times a matrix; weights as np_fp32_pack packs them. */
struct np_fp32_pointwise {
  const void *packed; /* NULL: there is none */
  size_t inputs;
  size_t outputs;
  struct np_epilogue epilogue;
};

/* out = project(depthwise(expand(in))), the first of them optional. Images are [N, H, W, C]. The
 * second input is the residual of the last product, if any, which may be the first input too; the
 * output may lie where it does if that is added before the function, and it is not the first input.
 *
 * A thread goes over a span of output rows, a few rows at a time: the rows of the expanded image
 * that these need, and the rows that the depthwise convolution makes of them, are in the thread's
 * scratch memory only. Of `depthwise`, what divides it into tasks is not read. */
struct np_fp32_separable_params {
  struct np_fp32_pointwise expand;
  struct np_fp32_depthwise_params depthwise;
  struct np_fp32_pointwise project;
  size_t lanes;           /* of the packed weights of products */
  size_t span;            /* output rows */
  size_t spans;           /* of an image */
  size_t strip;           /* output rows at a time */
  size_t ring;            /* rows of the expanded image that are kept: what a strip needs */
  size_t middle_offset;   /* bytes, in a thread's scratch memory: rows of the depthwise result */
  size_t rows_offset;     /* addresses of rows */
  size_t pixels_offset;   /* where pixels of the image start, and then of the depthwise result */
  size_t thread_scratch;
};

#endif
