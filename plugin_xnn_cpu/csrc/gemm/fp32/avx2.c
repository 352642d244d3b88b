/* The fp32 kernels' innermost code for AVX2 and FMA.
 *
 * A tile of 6 windows and 16 columns has 12 registers of sums, 2 of weights, and one of an element
 * in all of its lanes: all 12 sums stay in registers, and there are enough of them to hide the
 * latency of an instruction that multiplies and adds. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#define VECTORS 2
#define SUMS 12
#define MULTIPLY np_fp32_multiply_avx2
#include "simd/f32_avx2.h"
#include "gemm/fp32/code.h"
#endif
