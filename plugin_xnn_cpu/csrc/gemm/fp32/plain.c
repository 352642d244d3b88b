/* The float32 GEMM micro-kernels for any processor: what the others compute, spelled out. */
#include "gemm/fp32/panel.h"

static void multiply_row(const np_fp32_panel *p, size_t row, size_t width) {
  const float *weights = p->weights;
  const size_t at = row * p->out_stride;
  float *out = p->out + at;
  float acc[NP_FP32_MAX_NR] = {0};
  for (size_t n = 0; n < p->columns; n++) {
    acc[n] = p->bias == NULL ? out[n] : p->bias[n];
    if (p->residual != NULL) acc[n] += p->residual[at + n];
  }
  for (size_t q = 0; q < p->run_count; q++) {
    const float *x = p->image + np_fp32_pixel_offset(p, row) + p->runs[q];
    for (size_t k = 0; k < p->run_length; k++, weights += width) {
      for (size_t n = 0; n < p->columns; n++) acc[n] += x[k] * weights[n];
    }
  }
  for (size_t n = 0; n < p->columns; n++) {
    const float x = acc[n];
    out[n] = x < p->low ? p->low : x > p->high ? p->high : x;
  }
}

void np_fp32_multiply_plain(const np_fp32_panel *p) {
  const size_t width = (p->columns + p->lanes - 1) / p->lanes * p->lanes;
  for (size_t row = 0; row < p->count; row++) multiply_row(p, row, width);
  if (p->end == NULL) return;
  p->end(p->epilogue, p->out, p->out_stride, p->after, p->out_stride, p->count, p->columns);
}
