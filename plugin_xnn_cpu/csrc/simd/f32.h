/* Vectors of LANES floats, and as many integers, for the instruction set that a template is
 * compiled for. Arithmetic is that of the compiler's vectors; here is what needs instructions of
 * its own. */
#pragma once

#include <string.h>

#include "runtime/kernel.h"
#include "simd/isa.h"

#ifdef __x86_64__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
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

#if defined(__SSE2__) && !defined(__FMA__) && !defined(NP_UNFUSED)
#define NP_EMULATES_FMA

/* Two lanes of x · y + z in double, where x · y is exact. `odd` becomes not 0 where that, rounded to
 * float, may be rounded otherwise than once: halfway between two floats, or where floats are
 * subnormal. */
NP_INLINE __m128d multiply_add_wide(__m128 x, __m128 y, __m128 z, __m128i *odd) {
  const __m128d exact = _mm_mul_pd(_mm_cvtps_pd(x), _mm_cvtps_pd(y));
  const __m128d sum = _mm_add_pd(exact, _mm_cvtps_pd(z));
  const __m128i rest = _mm_and_si128((__m128i)sum, _mm_set1_epi64x(0x1fffffff));
  const __m128i halfway = _mm_cmpeq_epi32(rest, _mm_set1_epi64x(0x10000000));
  const __m128d size = _mm_and_pd(sum, (__m128d)_mm_set1_epi64x(INT64_MAX));
  const __m128d tiny = _mm_and_pd(_mm_cmplt_pd(size, _mm_set1_pd(0x1p-126)),
                                  _mm_cmpneq_pd(sum, _mm_setzero_pd()));
  const __m128i low = _mm_and_si128(halfway, _mm_set1_epi64x(UINT32_MAX));
  *odd = _mm_or_si128(*odd, _mm_or_si128(low, (__m128i)tiny));
  return sum;
}

/* A call: in every unrolled loop its thirty instructions would take minutes to compile. For it
 * convolutions take a quarter longer, and the matmuls of an encoder half the time. */
static __attribute__((noinline, unused)) __m128 multiply_add_call(__m128 x, __m128 y, __m128 z) {
  __m128i odd = _mm_setzero_si128();
  const __m128d low = multiply_add_wide(x, y, z, &odd);
  const __m128d high = multiply_add_wide(_mm_movehl_ps(x, x), _mm_movehl_ps(y, y),
                                         _mm_movehl_ps(z, z), &odd);
  if (__builtin_expect(_mm_movemask_epi8(odd) == 0, 1)) {
    return _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
  }
  for (int i = 0; i < 4; i++) x[i] = __builtin_fmaf(x[i], y[i], z[i]);
  return x;
}
#endif

/* x · y + z, rounded once with every instruction set but SSE4: without FMA, in double, that takes
 * some ten times as long as a multiplication and an addition, which SSE4 has. */
NP_INLINE vec multiply_add(vec x, vec y, vec z) {
#if defined(__AVX512F__) && LANES == 16
  return (vec)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
#elif defined(__AVX2__) && LANES == 8
  return (vec)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
#elif defined(NP_UNFUSED)
  return x * y + z;
#elif defined(NP_EMULATES_FMA)
  __m128 a[LANES / 4], b[LANES / 4], c[LANES / 4];
  memcpy(a, &x, sizeof a);
  memcpy(b, &y, sizeof b);
  memcpy(c, &z, sizeof c);
  UNROLL for (int i = 0; i < LANES / 4; i++) a[i] = multiply_add_call(a[i], b[i], c[i]);
  memcpy(&x, a, sizeof x);
  return x;
#elif defined(__aarch64__) && LANES == 4
  return (vec)vfmaq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y);
#else
  for (int i = 0; i < LANES; i++) x[i] = __builtin_fmaf(x[i], y[i], z[i]);
  return x;
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
#if defined(__AVX2__) && LANES >= 8
#if LANES == 16
  const __m512 both = (__m512)x;
  const __m256 all = _mm256_add_ps(_mm512_castps512_ps256(both), _mm512_extractf32x8_ps(both, 1));
#else
  const __m256 all = (__m256)x;
#endif
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
#else
#define NP_ADD_ROTATED(...) x += __builtin_shufflevector(x, x, __VA_ARGS__);
  NP_EACH_DISTANCE(NP_ADD_ROTATED)
  return x[0];
#endif
}

/* Accumulators of a reduction: 16 lanes with every instruction set, in as many registers as that
 * takes, so that all of them add in the same order. */
#define REDUCED_LANES 16
#define SPANS (REDUCED_LANES / LANES)

/* The horizontal sum of SPANS vectors: lanes that are 8 apart are added, then 4, 2 and 1. */
NP_INLINE float sum_of_spans(const vec acc[SPANS]) {
#if SPANS == 4
  return sum_of((acc[0] + acc[2]) + (acc[1] + acc[3]));
#elif SPANS == 2
  return sum_of(acc[0] + acc[1]);
#else
  return sum_of(acc[0]);
#endif
}

/* How many lanes of span `s` are in front of `count`, of REDUCED_LANES. */
NP_INLINE size_t lanes_of_span(size_t count, int s) {
  const size_t first = (size_t)s * LANES;
  return count <= first ? 0 : count - first < LANES ? count - first : LANES;
}

/* `x` in the first `count` lanes, 0 in the others. */
NP_INLINE vec keep_some(vec x, size_t count) {
  static const ivec lanes = {NP_LANE_NUMBERS};
  return choose(lanes < (int32_t)count, x, zero());
}

NP_INLINE float largest_of(vec x) {
#define NP_COMPARE_ROTATED(...) x = larger(x, __builtin_shufflevector(x, x, __VA_ARGS__));
  NP_EACH_DISTANCE(NP_COMPARE_ROTATED)
  return x[0];
}
