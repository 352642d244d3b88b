/* Convolutions of float32, of our own: for processors where XNNPACK's are slow.
 *
 * What is packed for them is written by np_fp32_pack. Read by cffi too: no directives but simple
 * constants. */
#ifndef NARROWPASS_FP32_KERNELS_H
#define NARROWPASS_FP32_KERNELS_H

#include "kernels.h"

/* Changes whenever packed bytes are laid out otherwise. */
#define NP_FP32_LAYOUT 1

/* out = clamp(sum over the window of input · weight, plus the bias, low, high); NaN stays. Images are
 * [N, H, W, C].
 *
 * Windows are read from the image, or from a copy with zeros around of what a band of output rows is
 * made from, in runs of dense elements: a row of the window, or a pixel of it where its pixels lie
 * apart. */
struct np_fp32_convolution_params {
  const void *packed;
  size_t batch;
  size_t height;
  size_t width;
  size_t channels;
  size_t out_height;
  size_t out_width;
  size_t outputs;
  size_t groups;
  size_t window[2];
  size_t steps[2];       /* between windows */
  size_t dilations[2];
  size_t pads[2];        /* above, left */
  int32_t copies;        /* whether bands are copied */
  size_t wide_width;     /* columns of the copy, or of the image */
  size_t runs;
  size_t run_length;
  size_t band;           /* output rows */
  size_t bands;          /* of an image */
  size_t parts;          /* that the columns of a group are divided into, for threads */
  size_t part_columns;
  float low;
  float high;
  int32_t target;        /* NP_TARGET_* */
  size_t pixels_offset;  /* in a thread's scratch memory: where windows start, and runs in them */
  size_t runs_offset;
  size_t thread_scratch; /* bytes */
};

/* Bytes of packed weights of `outputs` columns for each group. */
size_t np_fp32_packed_size(size_t groups, size_t outputs, size_t inputs);

/* weights[groups][outputs][inputs] in panels of 16 columns; `bias` may be NULL. */
void np_fp32_pack(size_t groups, size_t outputs, size_t inputs, const void *weights,
                  const void *bias, void *packed);

/* Whether the fast code runs on this processor. */
bool np_fp32_is_fast(void);

#endif
