/* The fp32 kernels' innermost code for AVX2 and FMA.
 *
 * A tile of 6 windows and 16 columns has 12 registers of sums, 2 of weights, and one of an element
 * in all of its lanes: all 12 sums stay in registers, and there are enough of them to hide the
 * latency of an instruction that multiplies and adds. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>

#define LANES 8
#define VECTORS 2
#define SUMS 12
#define MULTIPLY np_fp32_multiply_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define VEC TARGET static inline __attribute__((always_inline))

typedef __m256 vec;

VEC __m256i first(size_t count) {
  const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), numbers);
}

VEC vec zero(void) { return _mm256_setzero_ps(); }
VEC vec load(const float *x) { return _mm256_loadu_ps(x); }
VEC vec load_some(const float *x, size_t count) { return _mm256_maskload_ps(x, first(count)); }
VEC void store(float *x, vec v) { _mm256_storeu_ps(x, v); }
VEC void store_some(float *x, vec v, size_t count) { _mm256_maskstore_ps(x, first(count), v); }
VEC vec splat(const float *x) { return _mm256_broadcast_ss(x); }
VEC vec plus(vec a, vec b) { return _mm256_add_ps(a, b); }
VEC vec multiply_add(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
/* In this order NaN stays. */
VEC vec clamped(vec x, float low, float high) {
  return _mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), x));
}

#include "fp32_tile.h"
#endif
