/* Matrices of few bits with registers of 8 floats. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#define LANES 8
#define ROWS 2
#define PANEL np_nbits_panel_avx2
#define TARGET __attribute__((target("arch=x86-64-v3")))
#include "gemv/nbits_code.h"
#endif
