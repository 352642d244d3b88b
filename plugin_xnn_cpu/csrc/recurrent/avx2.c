/* A step of a recurrence with registers of 8 floats. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#define LANES 8
#define ROWS 2
#define CODE np_recurrent_avx2
#define TARGET __attribute__((target("arch=x86-64-v3")))
#include "recurrent/code.h"
#endif
