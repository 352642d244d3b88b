/* Rows of bytes for AVX-512 with VNNI: stored with an offset of +128, quantized. */
#include "gemm/int8/vnni_avx512.h"

void np_int8_vnni_offset_avx512(const void *pixels, size_t count, int32_t zero, void *wide) {
  const int8_t *in = pixels;
  const __m512i out_xor = _mm512_set1_epi8((char)0x80);
  uint8_t *out = wide;
  size_t i = 0;
  for (; i + 64 <= count; i += 64) {
    _mm512_storeu_si512(out + i, _mm512_xor_si512(_mm512_loadu_si512(in + i), out_xor));
  }
  if (i < count) {
    const __mmask64 mask = mask_of(count - i);
    const __m512i x = _mm512_maskz_loadu_epi8(mask, in + i);
    _mm512_mask_storeu_epi8(out + i, mask, _mm512_xor_si512(x, out_xor));
  }
}

#define CHAINS 4 /* vectors at a time: a comparison takes as long as so many can be begun in */

/* What is known of the elements of a row by lanes. */
typedef struct {
  __m512 low, high;
  __m512 nothing; /* 0 times them, which is NaN for those that are not finite */
} extremes;

NP_INLINE extremes wider(extremes e, __m512 x) {
  e.low = _mm512_min_ps(e.low, x);
  e.high = _mm512_max_ps(e.high, x);
  e.nothing = _mm512_fmadd_ps(x, _mm512_setzero_ps(), e.nothing);
  return e;
}

NP_INLINE extremes joined(extremes a, extremes b) {
  return (extremes){_mm512_min_ps(a.low, b.low), _mm512_max_ps(a.high, b.high),
                    _mm512_add_ps(a.nothing, b.nothing)};
}

/* The extremes of a row, 0 included, in one lane; NaN as `nothing` where it has no range. */
NP_INLINE void find_extremes(const float *row, size_t count, float *low, float *high,
                          float *nothing) {
  extremes e[CHAINS] = {{_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()}};
  UNROLL for (int c = 1; c < CHAINS; c++) e[c] = e[0];
  size_t i = 0;
  for (; i + CHAINS * LANES <= count; i += CHAINS * LANES) {
    UNROLL for (int c = 0; c < CHAINS; c++) {
      e[c] = wider(e[c], _mm512_loadu_ps(row + i + c * LANES));
    }
  }
  for (; i < count; i += LANES) {
    e[0] = wider(e[0], _mm512_maskz_loadu_ps((__mmask16)mask_of(count - i), row + i));
  }
  const extremes all = joined(joined(e[0], e[1]), joined(e[2], e[3]));
  *low = _mm512_reduce_min_ps(all.low);
  *high = _mm512_reduce_max_ps(all.high);
  *nothing = _mm512_reduce_add_ps(all.nothing);
}

/* Bytes of scaled numbers, which are at most a little more than 255 in magnitude. */
NP_INLINE __m512i bytes_of(__m512 x, __m512 inverse, __m512i zero) {
  const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
  return _mm512_add_epi32(whole, zero);
}

float np_int8_vnni_quantize_avx512(const float *row, size_t count, void *wide,
                                          int32_t *zero) {
  uint8_t *out = wide;
  float low, high, nothing;
  find_extremes(row, count, &low, &high, &nothing);
  *zero = 0;
  if (nothing != 0.0f || low <= -0x1p127f || high >= 0x1p127f) {
    memset(out, 0, count);
    return __builtin_nanf("");
  }
  const np_int8_row_range range = np_int8_range_of(low, high);
  *zero = (int32_t)range.zero + 128;
  const __m512 inverse = _mm512_set1_ps(range.inverse);
  const __m512i moved = _mm512_set1_epi32(*zero);
  /* Vectors of integers are packed by fours within lanes of 16 bytes, as the four of each lie. */
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  size_t i = 0;
  for (; i + 4 * LANES <= count; i += 4 * LANES) {
    __m512i x[4];
    UNROLL for (int c = 0; c < 4; c++) {
      x[c] = bytes_of(_mm512_loadu_ps(row + i + c * LANES), inverse, moved);
    }
    const __m512i a = _mm512_packs_epi32(x[0], x[1]), b = _mm512_packs_epi32(x[2], x[3]);
    const __m512i packed = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(a, b));
    _mm512_storeu_si512(out + i, packed);
  }
  for (; i < count; i += LANES) {
    const __mmask16 mask = (__mmask16)mask_of(count - i);
    const __m512i x = bytes_of(_mm512_maskz_loadu_ps(mask, row + i), inverse, moved);
    const __m512i positive = _mm512_max_epi32(x, _mm512_setzero_si512());
    _mm_mask_storeu_epi8(out + i, mask, _mm512_cvtusepi32_epi8(positive));
  }
  return 1.0f / range.inverse;
}
