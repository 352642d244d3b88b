/* The float32 GEMM micro-kernels for AVX-512.
 *
 * Tiles are wide rather than high, 8 output pixels by 48 columns or 6 by 64: such a one loads 11 or
 * 10 registers for 24 that it multiplies and adds, one of 12 by 32 loads 14. Where two threads
 * share the loads of a core that is what limits. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#define VECTORS 4
#define ACCUMULATORS 24
#define MULTIPLY np_fp32_multiply_avx512
#include "simd/f32_avx512.h"
#include "gemm/fp32/code.h"
#endif
