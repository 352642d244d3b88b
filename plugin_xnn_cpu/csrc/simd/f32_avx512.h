/* Registers of 16 floats, as the code of the fp32 kernels names what is done with them. */
#ifndef NARROWPASS_SIMD_F32_AVX512_H
#define NARROWPASS_SIMD_F32_AVX512_H

#include <immintrin.h>

#define LANES 16
#define TARGET __attribute__((target("avx512f")))
#define VEC TARGET static inline __attribute__((always_inline))

typedef __m512 vec;

VEC __mmask16 first(size_t count) { return (__mmask16)(0xffffu >> (16 - count)); }

VEC vec zero(void) { return _mm512_setzero_ps(); }
VEC vec load(const float *x) { return _mm512_loadu_ps(x); }
VEC vec load_some(const float *x, size_t count) { return _mm512_maskz_loadu_ps(first(count), x); }
VEC void store(float *x, vec v) { _mm512_storeu_ps(x, v); }
VEC void store_some(float *x, vec v, size_t count) { _mm512_mask_storeu_ps(x, first(count), v); }
VEC vec splat(const float *x) { return _mm512_set1_ps(*x); }
VEC vec plus(vec a, vec b) { return _mm512_add_ps(a, b); }
VEC vec multiply_add(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
/* In this order NaN stays. */
VEC vec clamped(vec x, float low, float high) {
  return _mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), x));
}

#endif
