/* The float32 GEMM micro-kernels for AVX2 and FMA.
 *
 * A tile of 6 output pixels and 16 columns has 12 accumulators, 2 registers of weights, and one of
 * an element in all of its lanes: all 12 accumulators stay in registers, and there are enough of
 * them to hide the latency of an instruction that multiplies and adds. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#define VECTORS 2
#define ACCUMULATORS 12
#define MULTIPLY np_fp32_multiply_avx2
#include "simd/f32_avx2.h"
#include "gemm/fp32/code.h"
#endif
