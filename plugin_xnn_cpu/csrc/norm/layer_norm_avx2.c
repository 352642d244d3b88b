/* Layer normalization with registers of 8 floats. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#define LANES 8
#define NORMALIZE np_normalize_rows_avx2
#define TARGET __attribute__((target("arch=x86-64-v3")))
#include "norm/layer_norm_code.h"
#endif
