/* The fp32 kernels' innermost code for AVX-512.
 *
 * Tiles are wide rather than high, 8 windows by 48 columns or 6 by 64: such a one loads 11 or 10
 * registers for 24 that it multiplies and adds, one of 12 by 32 loads 14. Where two threads share
 * the loads of a core that is what limits. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>

#define LANES 16
#define VECTORS 4
#define SUMS 24
#define MULTIPLY np_fp32_multiply_avx512
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

#include "fp32_tile.h"
#endif
