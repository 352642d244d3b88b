/* Depthwise convolutions for AVX-512: of 32 registers, a tile of 4 × 4 pixels has 16
 * accumulators, 6 or 9 of a row of the image, and one or more of weights. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#define HIGH 4
#define DEPTHWISE np_fp32_depthwise_avx512
#include "simd/f32_avx512.h"
#include "depthwise/fp32_code.h"
#endif
