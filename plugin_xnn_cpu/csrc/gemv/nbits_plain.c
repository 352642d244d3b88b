/* Matrices of few bits with registers of four floats, which any CPU has. */
#define LANES 4
#define ROWS 1
#define PANEL np_nbits_panel_plain
#define TARGET
#include "gemv/nbits_code.h"
