/* The bf16 kernels' innermost code with registers of 8 floats. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#define LANES 8
#define ROWS 6
#define VECTORS 2
#define NAME np_bf16_avx2
#define TARGET __attribute__((target("avx2,fma")))
#include "bf16_code.h"
#endif
