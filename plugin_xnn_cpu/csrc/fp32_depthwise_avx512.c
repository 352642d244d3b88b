/* Depthwise convolutions for AVX-512: of 32 registers, a tile of 2 × 4 pixels has 8 of sums, 6 or 9
 * of a row of the image, and 9 of weights where the window has so many. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#define HIGH 2
#define DEPTHWISE np_fp32_depthwise_avx512
#include "fp32_vectors_avx512.h"
#include "fp32_depthwise_tile.h"
#endif
