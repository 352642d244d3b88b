/* Indirect convolution: where each output pixel begins in its input rows, and padded copies of
 * images, in place of im2col. */
#pragma once

#include "conv/image.h"
#include "runtime/kernel.h"

/* Geometry of a convolution over rows of an image, or of a copy of it. */
typedef struct {
  size_t width; /* of a row, in pixels */
  size_t channels;
  const size_t *kernel; /* height and width */
  const size_t *steps;  /* strides */
  const size_t *dilations;
  size_t runs; /* of a kernel window */
} np_indirection;

/* Write the first element of each output pixel, for `rows` rows of `columns` of them, and the
 * offsets of the runs of a kernel window. */
void np_indirection_fill(const np_indirection *p, size_t rows, size_t columns, int32_t *pixels,
                         int32_t *runs);

/* Rows of the input that `rows` rows of the output need. */
NP_INLINE size_t np_reach(const size_t *kernel, const size_t *steps, const size_t *dilations,
                          size_t rows) {
  return (rows - 1) * steps[0] + (kernel[0] - 1) * dilations[0] + 1;
}

/* Convert elements of an image to those of its copy. */
typedef void np_convert_pixels(const void *in, size_t count, int32_t zero, void *out);

/* An image, and how it is copied. */
typedef struct {
  const void *pixels;
  size_t in_element; /* bytes */
  const struct np_image_sizes *sizes;
  const size_t *pads;  /* above, left */
  const size_t *picks; /* between rows and columns that are copied */
  size_t wide_width;   /* columns of the copy */
  size_t element;      /* bytes of one of the copy */
  np_convert_pixels *convert;
  int32_t zero; /* that it is passed */
  int padding;  /* all bytes of pixels around the image */
} np_padded_image;

/* Copy `rows` rows from `first` on, which are counted in what is copied of the padded image. */
void np_pad_image_rows(const np_padded_image *image, size_t first, size_t rows, void *to);

/* What a part of a convolution computes: rows of the output of one image, and some columns. */
typedef struct {
  size_t image;
  np_range rows;
  np_range columns;
} np_convolution_part;

NP_INLINE np_convolution_part np_convolution_part_of(size_t index, size_t row_tile,
                                                     size_t row_tiles, size_t out_height,
                                                     size_t part_columns, size_t parts,
                                                     size_t columns) {
  return (np_convolution_part){
      .image = index / parts / row_tiles,
      .rows = np_range_of(index / parts % row_tiles, row_tile, out_height),
      .columns = np_range_of(index % parts, part_columns, columns),
  };
}
