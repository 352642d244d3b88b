/* Winograd's transformations with registers of four floats, which any CPU has. */
#define LANES 4
#define CODE np_winograd_plain
#define TARGET
#include "winograd/fp32_code.h"
