/* Layer normalization with registers of 16 floats. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#define LANES 16
#define NORMALIZE np_normalize_rows_avx512
#define TARGET __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))
#include "norm/layer_norm_code.h"
#endif
