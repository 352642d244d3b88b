/* One row of bytes with a matrix in the 4-way interleaved (VNNI) layout, for AVX-512 with VNNI.
 *
 * Each weight is multiplied once, and what takes time is reading it: the panels are divided into
 * runs that are read at once, as gemv/code.h says. The code for many rows reads one stream. */
#include "gemm/int8/vnni_avx512.h"

#define STREAMS 12
#define LEFT_STREAMS 4 /* where there are not panels for all of them any more */
#define PREFETCH_BYTES 2048     /* bytes */
#define VECTORS (NP_INT8_VNNI_NR / LANES)

/* Up to 16 columns of accumulators to floats: those of a column lie in `head` of a panel of this
 * width. */
NP_INLINE void dequantize_rows(const np_int8_panel *p, __m512i acc, const uint8_t *head,
                               size_t width, size_t at) {
  float *out = (float *)p->out + at;
  const __mmask16 mask = (__mmask16)mask_of(p->columns - at);
  const __m512 bias = _mm512_loadu_ps(head), scale = _mm512_loadu_ps(head + 4 * width);
  const __m512i weights = _mm512_loadu_si512(head + 8 * width);
  const __m512i zero = _mm512_set1_epi32(p->row_zeros[0]);
  __m512i sum = _mm512_sub_epi32(acc, _mm512_mullo_epi32(weights, zero));
  if (p->row_sums != NULL) {
    const __m512i given = _mm512_set1_epi32(p->row_sums[0]);
    const __m512i zeros = _mm512_loadu_si512(p->weight_zeros + at);
    sum = _mm512_sub_epi32(sum, _mm512_mullo_epi32(given, zeros));
  }
  if (p->raw) {
    _mm512_mask_storeu_epi32(out, mask, sum);
    return;
  }
  __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(p->row_scales[0]));
  x = _mm512_max_ps(_mm512_set1_ps(p->low), _mm512_fmadd_ps(x, scale, bias));
  x = _mm512_min_ps(_mm512_set1_ps(p->high), x); /* in this order NaN stays */
  _mm512_mask_storeu_ps(out, mask, x);
}

/* A panel of `vectors` registers from each of `streams` runs, which are `apart` panels long. */
NP_INLINE void tile(const np_int8_panel *p, size_t first, size_t panel_stride, const int streams,
                 const int vectors) {
  const size_t size = np_int8_panel_size(4, NP_INT8_VNNI_NR, p->groups);
  const size_t width = (size_t)vectors * LANES, step = 4 * width;
  const uint8_t *x = p->image, *heads[STREAMS], *weights[STREAMS];
  __m512i acc[STREAMS][VECTORS];
  x += p->pixels[0];
  UNROLL for (int s = 0; s < streams; s++) {
    heads[s] = p->panel + (first + (size_t)s * panel_stride) * size;
    weights[s] = heads[s] + 12 * width;
    UNROLL for (int v = 0; v < vectors; v++) acc[s][v] = _mm512_setzero_si512();
  }
  for (size_t k = 0; k < p->groups; k++) {
    const __m512i four = four_of(x + 4 * k);
    UNROLL for (int s = 0; s < streams; s++) {
      const uint8_t *from = weights[s] + k * step;
      UNROLL for (int v = 0; v < vectors; v++) {
        _mm_prefetch((const char *)from + PREFETCH_BYTES + 64 * v, _MM_HINT_T0);
        acc[s][v] = _mm512_dpbusd_epi32(acc[s][v], four, _mm512_loadu_si512(from + 64 * v));
      }
    }
  }
  UNROLL for (int s = 0; s < streams; s++) {
    UNROLL for (int v = 0; v < vectors; v++) {
      const size_t at = (first + (size_t)s * panel_stride) * NP_INT8_VNNI_NR + LANES * (size_t)v;
      if (at >= p->columns) continue;
      dequantize_rows(p, acc[s][v], heads[s] + 64 * v, width, at);
    }
  }
}

void np_int8_vnni_gemv_avx512(const np_int8_panel *p) {
  const size_t rest = p->columns % NP_INT8_VNNI_NR;
  const int narrow = rest > 0 && np_int8_vnni_panel_width(rest) < NP_INT8_VNNI_NR;
  const size_t panels = p->columns / NP_INT8_VNNI_NR + (rest > 0 && !narrow);
  const size_t panel_stride = panels / STREAMS, some = panels % STREAMS / LEFT_STREAMS;
  size_t first = 0;
  for (; first < panel_stride; first++) tile(p, first, panel_stride, STREAMS, VECTORS);
  first = STREAMS * panel_stride;
  for (size_t i = 0; i < some; i++) tile(p, first + i, some, LEFT_STREAMS, VECTORS);
  first += LEFT_STREAMS * some;
  for (; first < panels; first++) tile(p, first, 0, 1, VECTORS);
  if (narrow) tile(p, panels, 0, 1, 1);
}
