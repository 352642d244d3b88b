/* Epilogues with registers of eight floats. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>

#define LANES 8
#define EPILOGUE np_epilogue_tile_avx2
#define TARGET __attribute__((target("arch=x86-64-v3")))
#define FUSED(x, y, z) (vec)_mm256_fmadd_ps((__m256)(x), (__m256)(y), (__m256)(z))
#define LEAST(x, y) (ivec)_mm256_min_epi32((__m256i)(x), (__m256i)(y))
#include "epilogue/code.h"
#endif
