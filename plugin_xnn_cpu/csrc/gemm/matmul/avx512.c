/* The micro-kernels of matmul for AVX-512. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#define ACCUMULATORS 24
#define MOST_VECTORS 4
#define MULTIPLY np_matmul_multiply_avx512
#define DOTS np_matmul_dots_avx512
#define PACK np_matmul_pack_avx512
#include "simd/f32_avx512.h"
#include "simd/transpose_8x8.h"

VEC float sum_of(vec x) { return _mm512_reduce_add_ps(x); }

/* The form whose result is the accumulator: GCC takes others too, and moves accumulators to the
 * stack. */
VEC vec accumulate(vec a, vec b, vec c) {
  __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
}
#define multiply_add accumulate

#include "gemm/matmul/code.h"
#endif
