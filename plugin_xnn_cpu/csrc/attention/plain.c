/* Attention with registers of four floats, which any CPU has. */
#define LANES 4
#ifdef __aarch64__
#define ACCUMULATORS 16
#else
#define ACCUMULATORS 8
#endif
#define COLUMNS 2
#define HEAD np_attention_head_plain
#define ROWS_OF_CACHE np_attention_cache_plain
#define STREAM(to, x) (*(vec *)(to) = (x))
#define STREAMED() ((void)0)
#define TARGET
#include "attention/code.h"
