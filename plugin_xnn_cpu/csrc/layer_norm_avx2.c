/* Layer normalization with registers of 8 floats. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#define LANES 8
#define ROW np_normalize_row_avx2
#define TARGET __attribute__((target("arch=x86-64-v3")))
#include "layer_norm_code.h"
#endif
