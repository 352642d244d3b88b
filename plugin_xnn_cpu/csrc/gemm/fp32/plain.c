/* The float32 GEMM micro-kernels for any processor, panels of any width. Each multiply_add rounds
 * once, and K is in order, as it is in the code for an instruction set: the bits are the same. */
#include "gemm/fp32/panel.h"

#define LANES 4
#include "simd/f32.h"

#define VECTORS 4 /* of columns at a time */

/* `vectors` of a row's columns from `first` on; `width` is the panel's. */
NP_INLINE void multiply_columns(const np_fp32_panel *p, size_t row, size_t width, size_t first,
                                const int vectors) {
  const size_t at = row * p->out_stride + first;
  vec acc[VECTORS];
  UNROLL for (int v = 0; v < vectors; v++) {
    const size_t column = first + (size_t)v * LANES;
    const size_t some = column < p->columns ? np_min(p->columns - column, LANES) : 0;
    acc[v] = p->bias == NULL ? load_some(p->out + at + v * LANES, some) : load(p->bias + column);
    if (p->residual != NULL) acc[v] += load_some(p->residual + at + v * LANES, some);
  }
  const float *weights = p->weights + first;
  for (size_t q = 0; q < p->run_count; q++) {
    const float *x = p->image + np_fp32_pixel_offset(p, row) + p->runs[q];
    for (size_t k = 0; k < p->run_length; k++, weights += width) {
      const vec element = broadcast(x[k]);
      UNROLL for (int v = 0; v < vectors; v++) {
        acc[v] = multiply_add(element, load(weights + v * LANES), acc[v]);
      }
    }
  }
  UNROLL for (int v = 0; v < vectors; v++) {
    const size_t column = first + (size_t)v * LANES;
    if (column >= p->columns) return;
    store_some(p->out + at + v * LANES, clamp(acc[v], p->low, p->high),
               np_min(p->columns - column, LANES));
  }
}

void np_fp32_multiply_plain(const np_fp32_panel *p) {
  const size_t width = (p->columns + p->lanes - 1) / p->lanes * p->lanes;
  for (size_t row = 0; row < p->count; row++) {
    size_t first = 0;
    for (; first + VECTORS * LANES <= width; first += VECTORS * LANES) {
      multiply_columns(p, row, width, first, VECTORS);
    }
    /* Panels are packed for 8 lanes or 16. */
    if (first < width) multiply_columns(p, row, width, first, VECTORS / 2);
  }
  if (p->end == NULL) return;
  p->end(p->epilogue, p->out, p->out_stride, p->after, p->out_stride, p->count, p->columns);
}
