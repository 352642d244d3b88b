/* Indirect convolution: where each output pixel begins in its input rows, and padded copies of
 * images, in place of im2col. */
#pragma once

#include "conv/image.h"
#include "runtime/kernel.h"

/* Write the first element of each output pixel, for `rows` rows of them, and the offsets of the
 * runs of a kernel window. */
void np_indirection_fill(const struct np_convolution_geometry *g, size_t rows, int32_t *pixels,
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
  const struct np_convolution_geometry *geometry;
  size_t element; /* bytes of one of the copy */
  np_convert_pixels *convert;
  int32_t zero; /* that it is passed */
  int padding;  /* all bytes of pixels around the image */
} np_padded_image;

/* Copy the rows of a padded image that `rows` output rows from `first` on read. */
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

/* A part of an indirect convolution; the columns are those of a group. */
NP_INLINE np_convolution_part np_indirect_part_of(const struct np_convolution_geometry *g,
                                                  size_t index) {
  return np_convolution_part_of(index, g->row_tile, g->row_tiles, g->image.out_height,
                                g->part_columns, g->parts, g->outputs / g->groups);
}

/* Compute all parts of an indirect convolution; by the caller alone where it has less than `small`
 * multiplications. */
NP_INLINE int np_indirect_convolution(np_job *job, const struct np_convolution_geometry *g,
                                      np_job_part *part, double small, int32_t flags) {
  const double pixels = (double)g->image.batch * (double)(g->image.out_height * g->image.out_width);
  const double work = pixels * (double)g->outputs * (double)(g->runs * g->run_length);
  return np_for_parts(job, part, g->image.batch * g->row_tiles * g->parts, work < small, flags);
}
