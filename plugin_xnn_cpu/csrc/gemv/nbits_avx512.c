/* Matrices of few bits with registers of 16 floats. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#define LANES 16
#define ROWS 8
#define PANEL np_nbits_panel_avx512
#define TARGET __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))
#include "gemv/nbits_code.h"
#endif
