/* A step of a recurrence with registers of 16 floats. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#define LANES 16
#define ROWS 4
#define CODE np_recurrent_avx512
#define TARGET __attribute__((target("arch=x86-64-v4")))
#include "recurrent/code.h"
#endif
