/* What the int8 kernels multiply: pixels as int16, with their zero taken away, or stored with an
 * offset of +128. */
#include "gemm/int8/panel.h"

NP_INLINE void upcast(const np_int8_micro_kernels *code, const np_int8_image *image,
                      const int8_t *in, size_t count, uint8_t *wide) {
  if (image->u8) {
    memcpy(wide, in, count);
  } else {
    code->upcast(in, count, image->zero, wide);
  }
}

void np_int8_pad_rows(const np_int8_micro_kernels *code, const np_int8_image *image, size_t first,
                      size_t rows, void *to) {
  const size_t channels = image->channels, width = image->wide_width, pick = image->picks[1];
  const size_t above = image->pads[0], before = image->pads[1];
  const size_t row_size = width * channels, pixel = channels * code->element;
  uint8_t *wide = to;
  if (width == image->width && above + before == 0 && image->picks[0] * pick == 1 &&
      first + rows <= image->height) {
    upcast(code, image, image->pixels + first * row_size, rows * row_size, wide);
    return;
  }
  /* What stands for 0. */
  const int nothing = code->group == 4 ? image->zero + 128 : 0;
  /* Columns that lie inside the image: those from `left` to `right`. */
  size_t left = (before + pick - 1) / pick;
  size_t right = (image->width + before + pick - 1) / pick;
  left = left < width ? left : width;
  right = right < left ? left : right < width ? right : width;
  for (size_t row = 0; row < rows; row++, wide += width * pixel) {
    const size_t y = (first + row) * image->picks[0];
    if (y < above || y - above >= image->height || left == right) {
      memset(wide, nothing, width * pixel);
      continue;
    }
    const int8_t *in = image->pixels + (y - above) * image->width * channels;
    in += (left * pick - before) * channels;
    memset(wide, nothing, left * pixel);
    if (pick == 1) {
      upcast(code, image, in, (right - left) * channels, wide + left * pixel);
    } else {
      for (size_t x = left; x < right; x++, in += pick * channels) {
        upcast(code, image, in, channels, wide + x * pixel);
      }
    }
    memset(wide + right * pixel, nothing, (width - right) * pixel);
  }
}
