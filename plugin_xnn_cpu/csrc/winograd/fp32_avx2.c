/* Winograd's transformations with registers of eight floats. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#define LANES 8
#define CODE np_winograd_avx2
#define TARGET __attribute__((target("arch=x86-64-v3")))
#include "winograd/fp32_code.h"
#endif
