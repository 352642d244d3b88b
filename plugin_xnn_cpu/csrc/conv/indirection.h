/* What our convolutions share: where windows lie in what they are read from, and copies of images
 * of float32 for them. */
#ifndef NARROWPASS_CONV_INDIRECTION_H
#define NARROWPASS_CONV_INDIRECTION_H

#include <stddef.h>
#include <stdint.h>

/* How windows lie in rows of an image, or of a copy of it. */
typedef struct {
  size_t width; /* of a row, in pixels */
  size_t channels;
  const size_t *window; /* rows and columns of it */
  const size_t *steps;  /* between windows */
  const size_t *dilations;
  size_t runs; /* of a window */
} np_windows;

/* Say at which element windows start, for `rows` rows of `columns` of them, and where the runs of a
 * window start in it. */
void np_windows_address(const np_windows *windows, size_t rows, size_t columns, int32_t *pixels,
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
} np_float_image;

/* Copy `rows` rows from `first` on, which are counted in what is copied of the padded image, with
 * zeros around. */
void np_float_image_copy(const np_float_image *image, size_t first, size_t rows, void *to);

#endif
