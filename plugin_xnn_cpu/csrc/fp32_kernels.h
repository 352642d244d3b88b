/* Products and convolutions of float32, of our own: for processors where XNNPACK's are slow.
 *
 * What is packed for them is written by np_fp32_pack. Read by cffi too: no directives but simple
 * constants. */
#ifndef NARROWPASS_FP32_KERNELS_H
#define NARROWPASS_FP32_KERNELS_H

#include "epilogue.h"

/* Changes whenever packed bytes are laid out otherwise. */
#define NP_FP32_LAYOUT 2

/* out = epilogue(sum over the window of input · weight, plus the bias); see epilogue.h. Images are
 * [N, H, W, C]; a product is a convolution of pixels. The second input is the residual, if any; the
 * output may lie where it does if that is added before the function.
 *
 * Windows are read from the image, or from a copy with zeros around of what a band of output rows is
 * made from, in runs of dense elements: a row of the window, or a pixel of it where its pixels lie
 * apart. Long sums are made in parts of about `depth` inputs, so that the weights of a part of a
 * panel stay in the first caches for all windows of the band. */
struct np_fp32_convolution_params {
  const void *packed;
  size_t lanes;          /* of the packed weights */
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
  size_t depth;
  int32_t panels_within; /* all panels for a part of the inputs, rather than the other way round */
  size_t band;           /* output rows */
  size_t bands;          /* of an image */
  size_t parts;          /* that the panels of a group are divided into, for threads */
  struct np_epilogue epilogue;
  int32_t target;        /* NP_TARGET_* */
  size_t pixels_offset;  /* in a thread's scratch memory: where windows start, and runs in them */
  size_t runs_offset;
  size_t thread_scratch; /* bytes */
};

/* Bytes of packed weights of `outputs` columns for each group. */
size_t np_fp32_packed_size(size_t lanes, size_t groups, size_t outputs, size_t inputs);

/* Panels of a group of `outputs` columns. */
size_t np_fp32_panels(size_t lanes, size_t outputs);

/* weights[groups][outputs][inputs], or [inputs][groups][outputs] where `inputs_first`, in panels;
 * `bias` may be NULL. */
void np_fp32_pack(size_t lanes, size_t groups, size_t outputs, size_t inputs, int32_t inputs_first,
                  const void *weights, const void *bias, void *packed);

/* Lanes of the registers that the fast code for this processor has; 0 where there is none. */
size_t np_fp32_lanes(void);

#endif
