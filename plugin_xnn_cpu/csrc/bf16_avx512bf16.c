/* The bf16 kernels' innermost code for processors that multiply pairs of bfloat16. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>

#define LANES 16
#define ROWS 12
#define VECTORS 2
#define NAME np_bf16_avx512bf16
#define TARGET __attribute__((target("arch=x86-64-v4,avx512bf16,prefer-vector-width=512")))
#define PAIRS
#include "bf16_code.h"
#endif
