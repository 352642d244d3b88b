/* The bfloat16 GEMM micro-kernels for any processor. */
#define LANES 4
#define ROWS 4
#define VECTORS 2
#define NAME np_bf16_plain
#define TARGET
#include "gemm/bf16/code.h"
