/* Layer normalization with registers of four floats, which any CPU has. */
#define LANES 4
#define ROW np_normalize_row_plain
#define TARGET
#include "layer_norm_code.h"
