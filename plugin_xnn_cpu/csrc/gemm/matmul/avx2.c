/* The micro-kernels of matmul for AVX2. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#define ACCUMULATORS 12
#define MOST_VECTORS 2
#define MULTIPLY np_matmul_multiply_avx2
#define DOTS np_matmul_dots_avx2
#define PACK np_matmul_pack_avx2
#include "simd/f32_avx2.h"
#include "simd/transpose_8x8.h"

VEC float sum_of(vec x) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

/* AMD's processors take some forty operations for a masked store. */
VEC void store_pieces(float *x, vec v, size_t count) {
  if (count >= LANES) {
    store(x, v);
    return;
  }
  __m128 part = _mm256_castps256_ps128(v);
  if (count & 4) {
    _mm_storeu_ps(x, part);
    part = _mm256_extractf128_ps(v, 1);
    x += 4;
  }
  if (count & 2) {
    _mm_storel_pi((__m64 *)x, part);
    part = _mm_movehl_ps(part, part);
    x += 2;
  }
  if (count & 1) _mm_store_ss(x, part);
}
#define store_some store_pieces

/* The form whose result is the accumulator: GCC takes others too, and moves accumulators to the
 * stack. */
VEC vec accumulate(vec a, vec b, vec c) {
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
  return c;
}
#define multiply_add accumulate

#include "gemm/matmul/code.h"
#endif
