/* The bf16 kernels' innermost code with registers of 16 floats. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#define LANES 16
#define ROWS 12
#define VECTORS 2
#define NAME np_bf16_avx512
#define TARGET __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))
#include "bf16_code.h"
#endif
