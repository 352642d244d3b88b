/* Layer normalization with registers of four floats, which any CPU has. */
#define LANES 4
#define NORMALIZE np_normalize_rows_plain
#define TARGET
#include "norm/layer_norm_code.h"
