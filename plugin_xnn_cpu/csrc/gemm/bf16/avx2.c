/* The bfloat16 GEMM micro-kernels with registers of 8 floats. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>

#define LANES 8
#define ROWS 6
#define VECTORS 2
#define NAME np_bf16_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define LARGER(x, y) (vec)_mm256_max_ps((__m256)(x), (__m256)(y))
#define SMALLER(x, y) (vec)_mm256_min_ps((__m256)(x), (__m256)(y))
#include "gemm/bf16/code.h"
#endif
