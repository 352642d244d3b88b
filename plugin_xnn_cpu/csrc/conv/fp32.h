/* GEMMs and convolutions of float32, of our own: for processors where XNNPACK's are slow.
 *
 * What is packed for them is written by np_fp32_pack. Read by cffi too: no directives but simple
 * constants. */
#pragma once

#include "conv/image.h"
#include "epilogue/epilogue.h"

/* Changes whenever packed bytes are laid out otherwise. */
#define NP_FP32_LAYOUT 3

/* out = epilogue(sum over the kernel window of input · weight, plus the bias); see
 * epilogue/epilogue.h. Images are [N, H, W, C]; a GEMM is a pointwise convolution. The second input
 * is the residual, if any; the output may lie where it does if that is added before the function.
 *
 * Long K dimensions are accumulated in blocks of about `depth` inputs, so that the weights of a
 * part of a panel stay in the L1 and L2 caches for all output pixels of the row tile. Panels are
 * divided into the parts of the geometry, not columns. */
struct np_fp32_convolution_params {
  const void *packed;
  struct np_convolution_geometry geometry;
  size_t lanes;   /* of the packed weights */
  int32_t copies; /* whether row tiles are copied */
  size_t depth;
  int32_t panels_within; /* all panels for a part of the inputs, rather than the other way round */
  struct np_epilogue epilogue;
  int32_t target;        /* NP_TARGET_* */
  size_t thread_scratch; /* bytes */
};

/* Changes whenever transformed weights are laid out otherwise, or are other numbers. */
#define NP_FP32_WINOGRAD_LAYOUT 2

/* The same as np_fp32_convolution for kernels of 3 x 3 with stride 1, by Winograd's algorithm: see
 * winograd/fp32.c. The tiles of all images are numbered row by row, and some
 * of them are computed at a time. */
struct np_fp32_winograd_params {
  const void *packed;
  size_t lanes; /* of the packed weights */
  size_t tile;  /* its outputs down and along: 2 or 4 */
  struct np_image_sizes image;
  size_t outputs;
  size_t pads[2];        /* above, left */
  size_t tiles[2];       /* of an image: down, along */
  size_t blocks;         /* that all tiles are divided into, evenly */
  size_t parts;          /* that the panels are divided into, for threads */
  size_t row_stride;     /* floats from a transformed tile to the next */
  size_t element_stride; /* from an element of these tiles to the next */
  size_t acc_stride;     /* the same for accumulators of a panel */
  struct np_epilogue epilogue;
  int32_t target;        /* NP_TARGET_* */
  size_t acc_offset;     /* bytes, in a thread's scratch memory; transformed tiles come first */
  size_t zeros_offset;   /* a pixel of zeros, which lies around images */
  size_t rows_offset;    /* where the transformed tiles start */
  size_t thread_scratch; /* bytes */
};

/* Bytes of packed weights of a convolution. */
size_t np_fp32_winograd_packed_size(size_t lanes, size_t tile, size_t outputs, size_t channels);

/* weights[outputs][3][3][channels], transformed for tiles, in panels; `bias` may be NULL. */
void np_fp32_winograd_pack(size_t lanes, size_t tile, size_t outputs, size_t channels,
                           const void *weights, const void *bias, void *packed);

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
