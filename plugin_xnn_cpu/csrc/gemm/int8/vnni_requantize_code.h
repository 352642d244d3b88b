/* Accumulators of the 4-way interleaved (VNNI) layout to bytes, with those of another tensor added:
 * for AVX-512 with VNNI; gemm/int8/vnni_avx512.c includes this. */

/* How 32 columns of accumulators become bytes. */
typedef struct {
  __m512 scales[2];
  __m512 most; /* that a scaled sum may be, which is cut before it is converted */
  __m512i zero;
  __m512i sum_lower, sum_upper; /* of another tensor that is added: pairs of factors */
  __m512i sum_bias, sum_zero;
  __m128i sum_shift;
  __m512i least, most_own; /* of bytes of 16 bits that it is added to */
  __m256i other_xor;
  __m512i low, high, out_xor;
  __mmask32 mask;
} requantization;

/* Factors of a sum have more bits than a multiplication of int16 takes: the low 7 of them, and
 * those above, are multiplied one after the other, and the former's result is that much smaller by
 * then. */
NP_INLINE requantization requantization_of(const np_int8_panel *p, const uint8_t *panel,
                                        size_t columns) {
  const size_t width = np_int8_vnni_panel_width(columns);
  const float *scales = (const float *)(const void *)panel + width;
  requantization n = {
      .scales = {_mm512_load_ps(scales), _mm512_load_ps(scales + width - LANES)},
      .most = _mm512_set1_ps((float)(p->range.high - p->range.zero)),
      .zero = _mm512_set1_epi16((int16_t)p->range.zero),
      .sum_shift = _mm_setzero_si128(),
      .low = _mm512_set1_epi8((int8_t)p->range.low),
      .high = _mm512_set1_epi8((int8_t)p->range.high),
      .out_xor = _mm512_set1_epi8((int8_t)p->out_xor),
      .mask = (__mmask32)mask_of(columns),
  };
  const struct np_int8_residual *sum = p->sum;
  if (sum == NULL) return n;
  n.sum_lower = _mm512_set1_epi32((sum->own & 127) | (sum->other & 127) << 16);
  n.sum_upper =
      _mm512_set1_epi32((sum->own >> 7) | (int32_t)((uint32_t)(sum->other >> 7) << 16));
  n.sum_bias = _mm512_set1_epi32(sum->bias);
  n.sum_zero = _mm512_set1_epi16((int16_t)sum->zero);
  n.sum_shift = _mm_cvtsi32_si128(sum->shift - 7);
  n.least = _mm512_set1_epi16((int16_t)p->range.low);
  n.most_own = _mm512_set1_epi16((int16_t)p->range.high);
  n.other_xor = _mm256_set1_epi8((int8_t)p->other_xor);
  n.low = _mm512_set1_epi8((int8_t)sum->low);
  n.high = _mm512_set1_epi8((int8_t)sum->high);
  return n;
}

/* Accumulators of one row in two vectors to int16, with the output's zero; by fours, those of the
 * first and of the second vector in turns. Where there is one vector the second one is anything. */
NP_INLINE __m512i halved(const requantization *n, const int32_t *acc, size_t second,
                         const int small) {
  const __m512i a = _mm512_load_si512(acc), b = _mm512_load_si512(acc + second);
  const __m512i x = small ? _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(a), n->scales[0]))
                          : scaled(a, n->scales[0], n->most);
  const __m512i y = small ? _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(b), n->scales[1]))
                          : scaled(b, n->scales[1], n->most);
  return _mm512_adds_epi16(_mm512_packs_epi32(x, y), n->zero);
}

/* What `halved` gave, as int8, with bytes of another tensor added. */
NP_INLINE __m512i with_other(const requantization *n, __m512i own, const int8_t *other) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i u8 = _mm256_maskz_loadu_epi8(n->mask, other);
  const __m256i bytes = _mm256_xor_si256(u8, n->other_xor);
  const __m512i b = _mm512_cvtepi8_epi16(_mm256_permutevar8x32_epi32(bytes, order));
  const __m512i a = _mm512_min_epi16(_mm512_max_epi16(own, n->least), n->most_own);
  __m512i pairs[2] = {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)};
  UNROLL for (int i = 0; i < 2; i++) {
    const __m512i low = _mm512_dpwssd_epi32(n->sum_bias, pairs[i], n->sum_lower);
    const __m512i whole = _mm512_dpwssd_epi32(_mm512_srai_epi32(low, 7), pairs[i], n->sum_upper);
    pairs[i] = _mm512_sra_epi32(whole, n->sum_shift);
  }
  return _mm512_adds_epi16(_mm512_packs_epi32(pairs[0], pairs[1]), n->sum_zero);
}

/* Rows of accumulators of a panel to bytes, two at a time; `small` where no scaled sum is too large
 * to be converted, which else becomes the least integer. */
NP_INLINE void requantize_rows(const np_int8_panel *p, size_t first, size_t rows,
                               const int32_t *acc, size_t stride, const uint8_t *panel,
                               size_t column, size_t columns, const int small, const int adds) {
  const size_t second = np_int8_vnni_panel_width(columns) - LANES;
  const requantization n = requantization_of(p, panel, columns);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const size_t out_stride = p->out_stride;
  int8_t *out = (int8_t *)p->out + first * out_stride + column;
  const int8_t *other = adds ? p->other + first * out_stride + column : NULL;
  for (size_t r = 0; r < rows; r += 2, acc += 2 * stride, out += 2 * out_stride) {
    const size_t next = r + 1 < rows;
    __m512i a = halved(&n, acc, second, small);
    __m512i b = halved(&n, acc + next * stride, second, small);
    if (adds) {
      a = with_other(&n, a, other);
      b = with_other(&n, b, other + next * out_stride);
      other += 2 * out_stride;
    }
    const __m512i cut = _mm512_min_epi8(_mm512_max_epi8(_mm512_packs_epi16(a, b), n.low), n.high);
    const __m512i both = _mm512_permutexvar_epi32(order, _mm512_xor_si512(cut, n.out_xor));
    _mm256_mask_storeu_epi8(out, n.mask, _mm512_castsi512_si256(both));
    if (next) {
      _mm256_mask_storeu_epi8(out + out_stride, n.mask, _mm512_extracti64x4_epi64(both, 1));
    }
  }
}
