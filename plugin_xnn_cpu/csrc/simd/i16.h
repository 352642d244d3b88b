/* Vectors of 2 * LANES int16 in pairs, which are multiplied and added to LANES int32; exact,
 * whatever the operands are. */
#pragma once

#include "simd/f32.h"

typedef int16_t pairs __attribute__((vector_size(4 * LANES), aligned(2), may_alias));
/* Accumulators, which wrap: what leaves 32 bits on its way may come back. */
typedef uint32_t uvec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

NP_INLINE uvec broadcast_int(int32_t x) { return (uint32_t)x - (uvec){0}; }

/* A pair in all lanes, in one load. */
NP_INLINE pairs broadcast_pair(const int16_t *x) {
  int32_t pair;
  memcpy(&pair, x, sizeof pair);
  return (pairs)broadcast_int(pair);
}

NP_INLINE uvec multiply_pairs(pairs x, pairs y) {
#if defined(__AVX2__) && LANES == 8
  return (uvec)_mm256_madd_epi16((__m256i)x, (__m256i)y);
#elif defined(__SSE2__) && LANES == 4
  return (uvec)_mm_madd_epi16((__m128i)x, (__m128i)y);
#else
  uvec acc;
  for (int i = 0; i < LANES; i++) {
    acc[i] = (uint32_t)(x[2 * i] * y[2 * i]) + (uint32_t)(x[2 * i + 1] * y[2 * i + 1]);
  }
  return acc;
#endif
}

/* 2 * LANES int8, upcast. */
NP_INLINE pairs load_bytes(const int8_t *x) {
#if defined(__AVX2__) && LANES == 8
  return (pairs)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)x));
#else
  pairs wide;
  for (int i = 0; i < 2 * LANES; i++) wide[i] = x[i];
  return wide;
#endif
}

NP_INLINE vec to_floats(uvec x) { return __builtin_convertvector((ivec)x, vec); }

/* Rounded to even; the least integer where that is too large. */
NP_INLINE ivec to_integers(vec x) {
#if defined(__AVX2__) && LANES == 8
  return (ivec)_mm256_cvtps_epi32((__m256)x);
#elif defined(__SSE2__) && LANES == 4
  return (ivec)_mm_cvtps_epi32((__m128)x);
#else
  ivec whole;
  for (int i = 0; i < LANES; i++) whole[i] = (int32_t)__builtin_rintf(x[i]);
  return whole;
#endif
}
