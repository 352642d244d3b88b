/* Indirect convolution; see conv/indirection.h. */
#include "conv/indirection.h"

void np_indirection_fill(const struct np_convolution_geometry *g, size_t rows, int32_t *pixels,
                         int32_t *runs) {
  const size_t *steps = g->steps, *dilations = g->dilations, columns = g->image.out_width;
  const size_t width = g->wide_width, channels = g->image.channels;
  const size_t down = steps[0] * width * channels, along = steps[1] * channels;
  /* A column of pixels, as the rows of a matmul are, is written by the inner loop too. */
  const int one = columns == 1;
  const size_t outer = one ? 1 : rows, inner = one ? rows : columns;
  const int32_t step = (int32_t)(one ? down : along);
  for (size_t y = 0; y < outer; y++, pixels += inner) {
    const int32_t start = (int32_t)(y * down);
    for (size_t x = 0; x < inner; x++) pixels[x] = start + (int32_t)x * step;
  }
  const size_t in_row = g->runs / g->kernel[0];
  for (size_t q = 0; q < g->runs; q++) {
    const size_t row = q / in_row * dilations[0], column = q % in_row * dilations[1];
    runs[q] = (int32_t)((row * width + column) * channels);
  }
}

void np_pad_image_rows(const np_padded_image *image, size_t first, size_t rows, void *to) {
  const struct np_convolution_geometry *g = image->geometry;
  const struct np_image_sizes *sizes = &g->image;
  const size_t channels = sizes->channels, width = g->wide_width, pick = g->picks[1];
  const size_t above = g->pads[0], before = g->pads[1];
  const size_t pixel = channels * image->element;
  const size_t row_bytes = sizes->width * channels * image->in_element;
  const uint8_t *pixels = image->pixels;
  uint8_t *wide = to;
  rows = np_reach(g->kernel, g->steps, g->dilations, rows);
  first *= g->steps[0];
  if (width == sizes->width && above + before == 0 && g->picks[0] * pick == 1 &&
      first + rows <= sizes->height) {
    image->convert(pixels + first * row_bytes, rows * width * channels, image->zero, wide);
    return;
  }
  /* Columns that lie inside the image: those from `left` to `right`. */
  const size_t left = np_min(np_ceil_div(before, pick), width);
  const size_t end = np_min(np_ceil_div(sizes->width + before, pick), width);
  const size_t right = end < left ? left : end;
  for (size_t row = 0; row < rows; row++, wide += width * pixel) {
    const size_t y = (first + row) * g->picks[0];
    if (y < above || y - above >= sizes->height || left == right) {
      memset(wide, image->padding, width * pixel);
      continue;
    }
    const uint8_t *in = pixels + (y - above) * row_bytes;
    in += (left * pick - before) * channels * image->in_element;
    memset(wide, image->padding, left * pixel);
    if (pick == 1) {
      image->convert(in, (right - left) * channels, image->zero, wide + left * pixel);
    } else {
      for (size_t x = left; x < right; x++, in += pick * channels * image->in_element) {
        image->convert(in, channels, image->zero, wide + x * pixel);
      }
    }
    memset(wide + right * pixel, image->padding, (width - right) * pixel);
  }
}
