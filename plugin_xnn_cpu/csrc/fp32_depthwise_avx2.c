/* Depthwise convolutions for AVX2 and FMA: of 16 registers, a tile of 4 pixels of a row has 4 of
 * sums, 6 or 9 of a row of the image, and one of a weight. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#define HIGH 1
#define DEPTHWISE np_fp32_depthwise_avx2
#include "fp32_vectors_avx2.h"
#include "fp32_depthwise_tile.h"
#endif
