/* A depthwise convolution of float32 and the convolutions around it, in one pass.
 *
 * Read by cffi too: no directives but simple constants. */
#ifndef NARROWPASS_DEPTHWISE_SEPARABLE_H
#define NARROWPASS_DEPTHWISE_SEPARABLE_H

#include "conv/fp32.h"
#include "depthwise/fp32.h"

/* out = project(depthwise(expand(in))): convolutions, of which the first one may be missing, and
 * the last one is pointwise. Images are [N, H, W, C]. The second input is the residual of
 * the last one, if any, which may be the first input too; the output may lie where it does if that
 * is added before the function, and it is not the first input.
 *
 * A thread goes over a span of output rows, a strip of them at a time: the rows of the expanded
 * image that these need, and the rows that the depthwise convolution makes of them, are in the
 * thread's scratch memory only. What divides each of the convolutions into tasks is not read. */
struct np_fp32_separable_params {
  struct np_fp32_convolution_params expand; /* packed is NULL where there is none */
  struct np_fp32_depthwise_params depthwise;
  struct np_fp32_convolution_params project;
  size_t span;          /* output rows */
  size_t spans;         /* of an image */
  size_t strip;         /* output rows at a time */
  size_t ring;          /* rows of the expanded image that are kept: what a strip needs */
  size_t middle_offset; /* bytes, in a thread's scratch memory: rows of the depthwise result */
  size_t rows_offset;   /* addresses of rows */
  size_t inner_offset;  /* scratch memory of the other convolutions */
  size_t thread_scratch;
};

#endif
