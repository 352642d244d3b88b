/* Sizes of images, and of convolutions over them. Read by cffi too: no directives but simple
 * constants. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* An input [N, H, W, C], and the height and width of the output. */
struct np_image_sizes {
  size_t batch;
  size_t height;
  size_t width;
  size_t channels;
  size_t out_height;
  size_t out_width;
};

/* An indirect convolution. A row tile of output rows is computed from a copy of the image rows that
 * it reads, with padding around, or from the image itself. Output pixels are read there in runs of
 * dense elements: a row of the kernel window, or a pixel of it where its pixels lie apart. A thread
 * computes some columns of a row tile. */
struct np_convolution_geometry {
  struct np_image_sizes image;
  size_t outputs;
  size_t groups;
  size_t kernel[2]; /* height, width */
  size_t steps[2];  /* between output pixels, in rows and columns of what is copied */
  size_t picks[2];  /* between rows and columns of the image that are copied */
  size_t dilations[2];
  size_t pads[2];    /* above, left */
  size_t wide_width; /* columns of the copy, or of the image */
  size_t runs;       /* of a kernel window */
  size_t run_length;
  size_t row_tile;  /* output rows */
  size_t row_tiles; /* of an image */
  size_t parts;     /* that the columns of a group are divided into, for threads */
  size_t part_columns;
  size_t pixels_offset; /* in a thread's scratch memory: where output pixels and runs start */
  size_t runs_offset;
};
