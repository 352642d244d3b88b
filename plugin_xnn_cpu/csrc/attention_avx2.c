/* Attention with registers of 8 floats. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#define LANES 8
#define ROWS 6
#define COLUMNS 2
#define HEAD np_attention_head_avx2
#define TARGET __attribute__((target("arch=x86-64-v3")))
#include "attention_code.h"
#endif
