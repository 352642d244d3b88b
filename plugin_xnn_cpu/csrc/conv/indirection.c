/* Indirect convolution; see conv/indirection.h. */
#include "conv/indirection.h"

#include <string.h>

void np_indirection_fill(const np_indirection *p, size_t rows, size_t columns, int32_t *pixels,
                         int32_t *runs) {
  const size_t *steps = p->steps, *dilations = p->dilations;
  const size_t width = p->width, channels = p->channels;
  const size_t down = steps[0] * width * channels, along = steps[1] * channels;
  /* A column of pixels, as the rows of a matmul are, is written by the inner loop too. */
  const int one = columns == 1;
  const size_t outer = one ? 1 : rows, inner = one ? rows : columns;
  const int32_t step = (int32_t)(one ? down : along);
  for (size_t y = 0; y < outer; y++, pixels += inner) {
    const int32_t start = (int32_t)(y * down);
    for (size_t x = 0; x < inner; x++) pixels[x] = start + (int32_t)x * step;
  }
  const size_t in_row = p->runs / p->window[0];
  for (size_t q = 0; q < p->runs; q++) {
    const size_t row = q / in_row * dilations[0], column = q % in_row * dilations[1];
    runs[q] = (int32_t)((row * width + column) * channels);
  }
}

void np_pad_image_rows(const np_padded_image *image, size_t first, size_t rows, void *to) {
  const size_t channels = image->channels, step = image->picks[1];
  const size_t above = image->pads[0], pixel = channels * image->element;
  const size_t before = image->pads[1] < image->wide_width ? image->pads[1] : image->wide_width;
  const size_t room = image->wide_width - before, there = (image->width + step - 1) / step;
  const size_t width = there < room ? there : room;
  const size_t left = before * pixel, inside = width * pixel;
  const size_t row_size = image->wide_width * pixel;
  uint8_t *wide = to;
  for (size_t row = 0; row < rows; row++, wide += row_size) {
    const size_t y = (first + row) * image->picks[0];
    if (y < above || y - above >= image->height) {
      memset(wide, 0, row_size);
      continue;
    }
    const float *in = image->pixels + (y - above) * image->width * channels;
    memset(wide, 0, left);
    if (step == 1) {
      image->write(in, width * channels, wide + left);
    } else {
      for (size_t x = 0; x < width; x++) {
        image->write(in + x * step * channels, channels, wide + left + x * pixel);
      }
    }
    memset(wide + left + inside, 0, row_size - left - inside);
  }
}
