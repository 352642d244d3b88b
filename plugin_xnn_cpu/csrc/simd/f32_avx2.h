/* Registers of eight floats, as the code of the fp32 kernels names what is done with them. */
#ifndef NARROWPASS_SIMD_F32_AVX2_H
#define NARROWPASS_SIMD_F32_AVX2_H

#include <immintrin.h>

#define LANES 8
#define TARGET __attribute__((target("avx2,fma")))
#define VEC TARGET static inline __attribute__((always_inline))

typedef __m256 vec;

VEC __m256i first(size_t count) {
  const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), numbers);
}

VEC vec zero(void) { return _mm256_setzero_ps(); }
VEC vec load(const float *x) { return _mm256_loadu_ps(x); }
VEC vec load_some(const float *x, size_t count) {
  return count >= LANES ? load(x) : _mm256_maskload_ps(x, first(count));
}
VEC void store(float *x, vec v) { _mm256_storeu_ps(x, v); }
/* AMD's processors take some forty operations for a masked store: most columns need none. */
VEC void store_some(float *x, vec v, size_t count) {
  if (count >= LANES) {
    store(x, v);
  } else {
    _mm256_maskstore_ps(x, first(count), v);
  }
}
VEC vec splat(const float *x) { return _mm256_broadcast_ss(x); }
VEC vec plus(vec a, vec b) { return _mm256_add_ps(a, b); }
VEC vec multiply_add(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
/* In this order NaN stays. */
VEC vec clamped(vec x, float low, float high) {
  return _mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), x));
}

#endif
