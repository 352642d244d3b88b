/* The fp32 kernels' innermost code for any processor: what the others compute, spelled out. */
#include "fp32_code.h"

static void multiply_row(const np_fp32_panel *p, size_t row, const size_t width) {
  const float *weights = p->panel + width;
  float sums[NP_FP32_COLUMNS] = {0};
  for (size_t n = 0; n < width; n++) sums[n] = p->panel[n];
  for (size_t q = 0; q < p->run_count; q++) {
    const float *x = p->image + p->pixels[row] + p->runs[q];
    for (size_t k = 0; k < p->run_length; k++, weights += width) {
      for (size_t n = 0; n < width; n++) sums[n] += x[k] * weights[n];
    }
  }
  float *out = p->out + row * p->out_stride;
  for (size_t n = 0; n < p->columns; n++) {
    const float x = sums[n];
    out[n] = x < p->low ? p->low : x > p->high ? p->high : x;
  }
}

void np_fp32_multiply_plain(const np_fp32_panel *p) {
  const size_t width = np_fp32_panel_width(p->columns);
  for (size_t row = 0; row < p->count; row++) {
    width == 8 ? multiply_row(p, row, 8) : multiply_row(p, row, NP_FP32_COLUMNS);
  }
}
