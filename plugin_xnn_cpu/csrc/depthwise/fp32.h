/* Depthwise convolutions of float32, of our own.
 *
 * Read by cffi too: no directives but simple constants. */
#pragma once

#include "conv/image.h"
#include "epilogue/epilogue.h"

/* Changes whenever packed bytes are laid out otherwise. */
#define NP_FP32_DEPTHWISE_LAYOUT 1

/* Channels whose weights lie together. */
#define NP_FP32_DEPTHWISE_BLOCK 16

/* out = epilogue(sum over the kernel window of input · weight of the same channel, plus the bias);
 * see epilogue/epilogue.h. Images are [N, H, W, C]. The second input is the residual, if any; the
 * output may lie where it does if that is added before the function. */
struct np_fp32_depthwise_params {
  const void *packed;
  struct np_image_sizes image;
  size_t kernel[2]; /* height, width */
  size_t strides[2];
  size_t dilations[2];
  size_t pads[2];   /* above, left */
  size_t row_tile;  /* output rows */
  size_t row_tiles; /* of an image */
  size_t part;      /* channels, whole blocks of them */
  size_t parts;
  struct np_epilogue epilogue;
  int32_t target;        /* NP_TARGET_* */
  size_t thread_scratch; /* bytes: an address for each row of the image that a row tile needs */
};

/* Bytes of packed weights. */
size_t np_fp32_depthwise_packed_size(size_t channels, size_t height, size_t width);

/* weights[height][width][channels] and a bias for each channel, which may be NULL, in blocks of
 * channels: the bias first. */
void np_fp32_depthwise_pack(size_t channels, size_t height, size_t width, const void *weights,
                            const void *bias, void *packed);
