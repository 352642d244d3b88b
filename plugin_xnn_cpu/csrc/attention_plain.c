/* Attention with registers of four floats, which any CPU has. */
#define LANES 4
#ifdef __aarch64__
#define SUMS 16
#else
#define SUMS 8
#endif
#define COLUMNS 2
#define HEAD np_attention_head_plain
#define TARGET
#include "attention_code.h"
