/* What becomes of the accumulators of a 4-way interleaved (VNNI) panel, whichever instruction
 * multiplied: for AVX-512 with VNNI; gemm/int8/vnni_avx512.c and gemm/int8/amx.c include this. */
#pragma once

#include <math.h>

#include "gemm/int8/vnni_avx512.h"
#include "gemm/int8/vnni_dequantize_code.h"
#include "gemm/int8/vnni_requantize_code.h"

#define WIDE (2 * NP_INT8_VNNI_NR) /* columns of the widest tile */

/* A panel of weights, and where its columns are. */
typedef struct {
  const uint8_t *panel;
  const int32_t *start;
  size_t column;
  size_t columns;
} panel_place;

/* How the accumulators of a panel are requantized. */
typedef struct {
  /* Initial accumulators: the bias less the zero point times the totals of the weights' columns. */
  int32_t start[WIDE] __attribute__((aligned(64)));
  int small; /* no scaled sum is too large to be converted */
} panel_start;

NP_INLINE void start_panel(const np_int8_panel *p, const uint8_t *panel, size_t columns, size_t at,
                        panel_start *s) {
  const size_t width = np_int8_vnni_panel_width(columns);
  const int32_t *bias = (const int32_t *)(const void *)panel;
  const float *scales = (const float *)(const void *)(bias + width);
  const int32_t *column_sums = bias + 2 * width;
  const __m512i zero = _mm512_set1_epi32(p->zero);
  for (size_t n = 0; n < width; n += LANES) {
    const __m512i moved = _mm512_mullo_epi32(_mm512_load_si512(column_sums + n), zero);
    _mm512_store_si512(s->start + at + n,
                       _mm512_sub_epi32(_mm512_load_si512(bias + n), moved));
    const __m512 half = _mm512_set1_ps(0.5f); /* times accumulators, this is below 2^31 */
    s->small &= _mm512_cmp_ps_mask(_mm512_load_ps(scales + n), half, _CMP_GE_OQ) == 0;
  }
}

NP_INLINE void finish(const np_int8_panel *p, size_t first, size_t rows, const int32_t *acc,
                   size_t stride, const uint8_t *panel, size_t column, size_t columns, int small) {
  if (p->raw) {
    to_integers(p, first, rows, acc, stride, panel, column, columns);
  } else if (p->kind == NP_INT8_TO_FLOAT) {
    const int clamps = p->low > -INFINITY || p->high < INFINITY;
    if (p->run_count * p->groups > MOST_PAIRED) {
      dequantize_rows(p, first, rows, acc, stride, panel, column, columns, 1, 0);
    } else if (clamps) {
      dequantize_rows(p, first, rows, acc, stride, panel, column, columns, 1, 1);
    } else {
      dequantize_rows(p, first, rows, acc, stride, panel, column, columns, 0, 1);
    }
  } else if (!small) {
    requantize_rows(p, first, rows, acc, stride, panel, column, columns, 0, p->sum != NULL);
  } else if (p->sum == NULL) {
    requantize_rows(p, first, rows, acc, stride, panel, column, columns, 1, 0);
  } else {
    requantize_rows(p, first, rows, acc, stride, panel, column, columns, 1, 1);
  }
}
