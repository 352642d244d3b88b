/* The bfloat16 GEMM micro-kernels for processors that multiply pairs of bfloat16. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>

#define LANES 16
#define ROWS 12
#define VECTORS 2
#define NAME np_bf16_avx512bf16
#define TARGET __attribute__((target("arch=x86-64-v4,avx512bf16,prefer-vector-width=512")))
#define PAIRS
#define LARGER(x, y) (vec)_mm512_max_ps((__m512)(x), (__m512)(y))
#define SMALLER(x, y) (vec)_mm512_min_ps((__m512)(x), (__m512)(y))
#include "gemm/bf16/code.h"
#endif
