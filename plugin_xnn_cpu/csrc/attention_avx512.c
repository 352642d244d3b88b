/* Attention with registers of 16 floats. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#define LANES 16
#define ROWS 12
#define COLUMNS 2
#define HEAD np_attention_head_avx512
#define TARGET __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))
#include "attention_code.h"
#endif
