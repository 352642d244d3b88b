/* Rows and sums of bytes for AVX-512 with VNNI: moved up by 128, quantized, added. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#include "int8_quads_avx512.h"

TARGET void np_int8_quads_widen_avx512(const int8_t *in, size_t count, int32_t zero, void *wide) {
  const __m512i turned = _mm512_set1_epi8((char)0x80);
  uint8_t *out = wide;
  (void)zero;
  size_t i = 0;
  for (; i + 64 <= count; i += 64) {
    _mm512_storeu_si512(out + i, _mm512_xor_si512(_mm512_loadu_si512(in + i), turned));
  }
  if (i < count) {
    const __mmask64 mask = mask_of(count - i);
    const __m512i x = _mm512_maskz_loadu_epi8(mask, in + i);
    _mm512_mask_storeu_epi8(out + i, mask, _mm512_xor_si512(x, turned));
  }
}

TARGET float np_int8_quads_quantize_avx512(const float *row, size_t count, void *wide, int32_t *zero) {
  uint8_t *out = wide;
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
  __m512 low = _mm512_setzero_ps(), high = low;
  for (size_t i = 0; i < count; i += LANES) {
    const __mmask16 mask = (__mmask16)mask_of(count - i);
    const __m512 x = _mm512_maskz_loadu_ps(mask, row + i);
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(x), magnitude));
    low = _mm512_min_ps(low, x);
    high = _mm512_max_ps(high, x);
  }
  *zero = 0;
  if (_mm512_reduce_max_epu32(largest) >= NP_INT8_HUGE) {
    memset(out, 0, count);
    return __builtin_nanf("");
  }
  const np_int8_row_range range =
      np_int8_range_of(_mm512_reduce_min_ps(low), _mm512_reduce_max_ps(high));
  *zero = (int32_t)range.zero + 128;
  const __m512 inverse = _mm512_set1_ps(range.inverse);
  const __m512i moved = _mm512_set1_epi32(*zero);
  /* Products are at most a little more than 255 in magnitude. */
  for (size_t i = 0; i < count; i += LANES) {
    const __mmask16 mask = (__mmask16)mask_of(count - i);
    const __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, row + i), inverse);
    const __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(x), moved);
    const __m512i positive = _mm512_max_epi32(whole, _mm512_setzero_si512());
    _mm_mask_storeu_epi8(out + i, mask, _mm512_cvtusepi32_epi8(positive));
  }
  return 1.0f / range.inverse;
}

/* Factors have more bits than a multiplication of int16 takes: the low 7 of them, and those above,
 * are multiplied one after the other. */
TARGET void np_int8_quads_add_avx512(const struct np_int8_sum *sum, const int8_t *other,
                                     int8_t *out, size_t rows, size_t columns, size_t stride) {
  const int32_t low_pair = (sum->own & 127) | (sum->other & 127) << 16;
  const int32_t high_pair = (sum->own >> 7) | (int32_t)((uint32_t)(sum->other >> 7) << 16);
  const __m512i lower = _mm512_set1_epi32(low_pair), upper = _mm512_set1_epi32(high_pair);
  const __m512i bias = _mm512_set1_epi32(sum->bias);
  const __m512i zero = _mm512_set1_epi16((int16_t)sum->zero);
  const __m512i low = _mm512_set1_epi8((int8_t)sum->low);
  const __m512i high = _mm512_set1_epi8((int8_t)sum->high);
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  const __m128i shift = _mm_cvtsi32_si128(sum->shift);
  for (size_t r = 0; r < rows; r++, out += stride, other += stride) {
    for (size_t n = 0; n < columns; n += 64) {
      const __mmask64 mask = mask_of(columns - n);
      const __m512i first = _mm512_maskz_loadu_epi8(mask, out + n);
      const __m512i second = _mm512_maskz_loadu_epi8(mask, other + n);
      __m512i halves[2];
      UNROLL for (int i = 0; i < 2; i++) {
        const __m512i a = _mm512_cvtepi8_epi16(i == 0 ? _mm512_castsi512_si256(first)
                                                      : _mm512_extracti64x4_epi64(first, 1));
        const __m512i b = _mm512_cvtepi8_epi16(i == 0 ? _mm512_castsi512_si256(second)
                                                      : _mm512_extracti64x4_epi64(second, 1));
        __m512i pairs[2] = {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)};
        UNROLL for (int k = 0; k < 2; k++) {
          const __m512i tops = _mm512_slli_epi32(_mm512_madd_epi16(pairs[k], upper), 7);
          const __m512i whole = _mm512_add_epi32(_mm512_dpwssd_epi32(bias, pairs[k], lower), tops);
          pairs[k] = _mm512_sra_epi32(whole, shift);
        }
        halves[i] = _mm512_adds_epi16(_mm512_packs_epi32(pairs[0], pairs[1]), zero);
      }
      const __m512i bytes = _mm512_packs_epi16(halves[0], halves[1]);
      const __m512i cut = _mm512_min_epi8(_mm512_max_epi8(bytes, low), high);
      _mm512_mask_storeu_epi8(out + n, mask, _mm512_permutexvar_epi64(order, cut));
    }
  }
}

#endif
