/* Depthwise convolutions for AVX2 and FMA: of 16 registers, a tile of 8 pixels of a row has 8
 * accumulators, up to 7 weights of a row of the kernel, and one of the image. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#define HIGH 1
#define DEPTHWISE np_fp32_depthwise_avx2
#include "simd/f32_avx2.h"
#include "depthwise/fp32_code.h"
#endif
