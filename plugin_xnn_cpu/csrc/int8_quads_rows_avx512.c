/* Rows of bytes for AVX-512 with VNNI: moved up by 128, quantized. */
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

#endif
