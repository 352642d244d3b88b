/* Accumulators of the 4-way interleaved (VNNI) layout to float32, scaled for each row: for AVX-512
 * with VNNI; gemm/int8/vnni_avx512.c includes this. */

/* How a vector of columns of accumulators becomes float32. */
typedef struct {
  __m512i column_sums; /* of int32, or in pairs of int16: the low 7 bits, and those above */
  __m512 factors, bias;
} dequantization;

/* Accumulators of so many K-groups of 4 of weights have 15 bits above the low 7, with the sign. */
#define MOST_PAIRED ((size_t)((1 << 22) / (4 * 128)))

NP_INLINE dequantization dequantization_of(const uint8_t *panel, size_t width, size_t n,
                                        const int paired) {
  const int32_t *head = (const int32_t *)(const void *)panel;
  const __m512i acc = _mm512_load_si512(head + 2 * width + n);
  const __m512i low = _mm512_and_si512(acc, _mm512_set1_epi32(127));
  const __m512i high = _mm512_slli_epi32(_mm512_srai_epi32(acc, 7), 16);
  return (dequantization){
      .column_sums = paired ? _mm512_or_si512(low, high) : acc,
      .factors = _mm512_load_ps(head + width + n),
      .bias = _mm512_load_ps(head + n),
  };
}

/* Accumulators less the part that the row's zero has in them: pairs are multiplied with -zero and
 * 128 times that, which is one instruction in place of three. */
NP_INLINE __m512i without_zero(__m512i acc, const dequantization *w, int32_t zero,
                               const int paired) {
  if (!paired) {
    return _mm512_sub_epi32(acc, _mm512_mullo_epi32(w->column_sums, _mm512_set1_epi32(zero)));
  }
  const uint32_t away = 0u - (uint32_t)zero; /* from -255 on */
  const __m512i pairs = _mm512_set1_epi32((int32_t)(away << 23 | (away & 0xffff)));
  return _mm512_dpwssd_epi32(acc, w->column_sums, pairs);
}

NP_INLINE __m512 upcast(const np_int8_panel *p, const dequantization *w, const int32_t *acc,
                     size_t row, const int clamps, const int paired) {
  const __m512i sum = without_zero(_mm512_load_si512(acc), w, p->row_zeros[row], paired);
  __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(p->row_scales[row]));
  x = _mm512_fmadd_ps(x, w->factors, w->bias);
  if (!clamps) return x;
  /* In this order NaN stays. */
  return _mm512_min_ps(_mm512_set1_ps(p->high), _mm512_max_ps(_mm512_set1_ps(p->low), x));
}

NP_INLINE void dequantize_rows(const np_int8_panel *p, size_t first, size_t rows,
                               const int32_t *acc, size_t stride, const uint8_t *panel,
                               size_t column, size_t columns, const int clamps, const int paired) {
  const size_t width = np_int8_vnni_panel_width(columns), last = width - LANES;
  const dequantization w[2] = {dequantization_of(panel, width, 0, paired),
                               dequantization_of(panel, width, last, paired)};
  const __mmask16 mask = (__mmask16)mask_of(columns - last);
  float *out = (float *)p->out + first * p->out_stride + column;
  for (size_t r = first; r < first + rows; r++, acc += stride, out += p->out_stride) {
    if (last > 0) _mm512_storeu_ps(out, upcast(p, &w[0], acc, r, clamps, paired));
    _mm512_mask_storeu_ps(out + last, mask, upcast(p, &w[1], acc + last, r, clamps, paired));
  }
}

/* The same accumulators as they are. */
NP_INLINE void to_integers(const np_int8_panel *p, size_t first, size_t rows, const int32_t *acc,
                        size_t stride, const uint8_t *panel, size_t column, size_t columns) {
  const size_t width = np_int8_vnni_panel_width(columns), last = width - LANES;
  const int32_t *column_sums = (const int32_t *)(const void *)panel + 2 * width;
  const __mmask16 mask = (__mmask16)mask_of(columns - last);
  int32_t *out = (int32_t *)p->out + first * p->out_stride + column;
  for (size_t r = first; r < first + rows; r++, acc += stride, out += p->out_stride) {
    const __m512i zero = _mm512_set1_epi32(p->row_zeros[r]);
    for (size_t n = 0; n <= last; n += LANES) {
      const __m512i moved = _mm512_mullo_epi32(_mm512_load_si512(column_sums + n), zero);
      const __m512i sum = _mm512_sub_epi32(_mm512_load_si512(acc + n), moved);
      _mm512_mask_storeu_epi32(out + n, n == last ? mask : (__mmask16)-1, sum);
    }
  }
}
