/* Winograd's transformations with registers of 16 floats. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#define LANES 16
#define CODE np_winograd_avx512
#define TARGET __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))
#include "winograd/fp32_code.h"
#endif
