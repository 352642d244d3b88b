/* Indirect convolution: where each output pixel begins in its input rows, and padded copies of
 * float32 images, in place of im2col. */
#ifndef NARROWPASS_CONV_INDIRECTION_H
#define NARROWPASS_CONV_INDIRECTION_H

#include <stddef.h>
#include <stdint.h>

/* Geometry of a convolution over rows of an image, or of a copy of it. */
typedef struct {
  size_t width; /* of a row, in pixels */
  size_t channels;
  const size_t *window; /* height and width of the kernel */
  const size_t *steps;  /* strides */
  const size_t *dilations;
  size_t runs; /* of a kernel window */
} np_indirection;

/* Write the first element of each output pixel, for `rows` rows of `columns` of them, and the
 * offsets of the runs of a kernel window. */
void np_indirection_fill(const np_indirection *p, size_t rows, size_t columns, int32_t *pixels,
                         int32_t *runs);

/* An image, and how it is copied. */
typedef struct {
  const float *pixels;
  size_t height;
  size_t width;
  size_t channels;
  const size_t *pads;  /* above, left */
  const size_t *picks; /* between rows and columns that are copied; more than 1 without pads only */
  size_t wide_width;   /* columns of the copy */
  size_t element;      /* bytes of one of the copy */
  void (*write)(const float *in, size_t count, void *out);
} np_padded_image;

/* Copy `rows` rows from `first` on, which are counted in what is copied of the padded image, with
 * zeros around. */
void np_pad_image_rows(const np_padded_image *image, size_t first, size_t rows, void *to);

#endif
