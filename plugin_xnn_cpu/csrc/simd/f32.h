/* Vectors of LANES floats, and as many integers, for the instruction set that a template is
 * compiled for. Arithmetic is that of the compiler's vectors; here is what needs instructions of
 * its own. */
#pragma once

#include <string.h>

#include "runtime/kernel.h"
#include "simd/isa.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#if defined(__GNUC__) && !defined(__clang__)
/* All is inlined: there is no calling convention that the width of vectors could change. */
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#define UNROLL _Pragma("GCC unroll 32")

/* The statement for one of the cases of a switch over the rows of a tile, of which there are 12 at
 * most: CASE has `number`, a constant, as its argument. */
#define NP_CASES_OF_12(CASE)                          \
  CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)     \
  CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)

/* Registers of accumulators of a tile: some are left for a row of weights, and for an element in
 * all lanes of another. */
#if LANES == 16
#define ACCUMULATORS 24
#elif defined(__aarch64__)
#define ACCUMULATORS 16
#else
#define ACCUMULATORS 12
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

NP_INLINE vec broadcast(float x) { return x - (vec){0}; }
NP_INLINE vec zero(void) { return (vec){0}; }
NP_INLINE vec load(const float *x) { return *(const vec *)x; }
NP_INLINE void store(float *x, vec v) { *(vec *)x = v; }

NP_INLINE vec choose(ivec condition, vec x, vec y) {
  return (vec)((condition & (ivec)x) | (~condition & (ivec)y));
}

/* x > y ? x : y and x < y ? x : y: y where either is NaN. */
NP_INLINE vec larger(vec x, vec y) {
#if defined(__AVX512F__) && LANES == 16
  return (vec)_mm512_max_ps((__m512)x, (__m512)y);
#elif defined(__AVX2__) && LANES == 8
  return (vec)_mm256_max_ps((__m256)x, (__m256)y);
#else
  return choose(x > y, x, y);
#endif
}

NP_INLINE vec smaller(vec x, vec y) {
#if defined(__AVX512F__) && LANES == 16
  return (vec)_mm512_min_ps((__m512)x, (__m512)y);
#elif defined(__AVX2__) && LANES == 8
  return (vec)_mm256_min_ps((__m256)x, (__m256)y);
#else
  return choose(x < y, x, y);
#endif
}

/* NaN stays. */
NP_INLINE vec clamp(vec x, float low, float high) {
  return smaller(broadcast(high), larger(broadcast(low), x));
}

/* x · y + z, rounded once where the instruction set has FMA. */
NP_INLINE vec multiply_add(vec x, vec y, vec z) {
#if defined(__AVX512F__) && LANES == 16
  return (vec)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
#elif defined(__AVX2__) && LANES == 8
  return (vec)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
#else
  return x * y + z;
#endif
}

#if defined(__AVX512F__) && LANES == 16
NP_INLINE __mmask16 first_lanes(size_t count) {
  return (__mmask16)(0xffffu >> (16 - count));
}
#endif

/* The first `count` floats, at most LANES; the other lanes are 0, and not read. */
NP_INLINE vec load_some(const float *x, size_t count) {
#if defined(__AVX512F__) && LANES == 16
  return (vec)_mm512_maskz_loadu_ps(first_lanes(count), x);
#else
  if (count >= LANES) return load(x);
#if defined(__AVX2__) && LANES == 8
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return (vec)_mm256_maskload_ps(x, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), lanes));
#else
  vec v = {0};
  memcpy(&v, x, count * sizeof *x);
  return v;
#endif
#endif
}

NP_INLINE void store_some(float *x, vec v, size_t count) {
#if defined(__AVX512F__) && LANES == 16
  _mm512_mask_storeu_ps(x, first_lanes(count), (__m512)v);
#else
  if (count >= LANES) {
    store(x, v);
    return;
  }
#if defined(__AVX2__) && LANES == 8
  /* AMD's processors take some forty operations for a masked store: halves, where they suffice. */
  __m128 part = _mm256_castps256_ps128((__m256)v);
  if (count & 4) {
    _mm_storeu_ps(x, part);
    part = _mm256_extractf128_ps((__m256)v, 1);
    x += 4;
  }
  if (count & 2) {
    _mm_storel_pi((__m64 *)x, part);
    part = _mm_movehl_ps(part, part);
    x += 2;
  }
  if (count & 1) _mm_store_ss(x, part);
#else
  memcpy(x, &v, count * sizeof *x);
#endif
#endif
}

/* Non-temporal stores, to multiples of the vector's size; the last ones are followed by a fence. */
NP_INLINE void stream(float *x, vec v) {
#if defined(__AVX512F__) && LANES == 16
  _mm512_stream_ps(x, (__m512)v);
#elif defined(__AVX2__) && LANES == 8
  _mm256_stream_ps(x, (__m256)v);
#else
  store(x, v);
#endif
}

NP_INLINE void end_streams(void) {
#ifdef __AVX2__
  _mm_sfence();
#endif
}

/* The lanes of a vector, each with the one `distance` lanes on: a few steps combine all. */
#define NP_LIST(...) __VA_ARGS__
#if LANES == 16
#define NP_LANE_NUMBERS NP_LIST(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define NP_EACH_DISTANCE(STEP)                                     \
  STEP(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)       \
  STEP(4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)       \
  STEP(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)       \
  STEP(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif LANES == 8
#define NP_LANE_NUMBERS NP_LIST(0, 1, 2, 3, 4, 5, 6, 7)
#define NP_EACH_DISTANCE(STEP)  \
  STEP(4, 5, 6, 7, 0, 1, 2, 3)  \
  STEP(2, 3, 0, 1, 6, 7, 4, 5)  \
  STEP(1, 0, 3, 2, 5, 4, 7, 6)
#else
#define NP_LANE_NUMBERS NP_LIST(0, 1, 2, 3)
#define NP_EACH_DISTANCE(STEP) STEP(2, 3, 0, 1) STEP(1, 0, 3, 2)
#endif

NP_INLINE float sum_of(vec x) {
#if defined(__AVX512F__) && LANES == 16
  return _mm512_reduce_add_ps((__m512)x);
#elif defined(__AVX2__) && LANES == 8
  const __m256 all = (__m256)x;
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
#else
#define NP_ADD_ROTATED(...) x += __builtin_shufflevector(x, x, __VA_ARGS__);
  NP_EACH_DISTANCE(NP_ADD_ROTATED)
  return x[0];
#endif
}

NP_INLINE float largest_of(vec x) {
#define NP_COMPARE_ROTATED(...) x = larger(x, __builtin_shufflevector(x, x, __VA_ARGS__));
  NP_EACH_DISTANCE(NP_COMPARE_ROTATED)
  return x[0];
}
