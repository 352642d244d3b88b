/* Sizes of images. Read by cffi too: no directives but simple constants. */
#pragma once

#include <stddef.h>

/* An input [N, H, W, C], and the height and width of the output. */
struct np_image_sizes {
  size_t batch;
  size_t height;
  size_t width;
  size_t channels;
  size_t out_height;
  size_t out_width;
};
