/* Attention with registers of 8 floats. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>

#define LANES 8
#define ACCUMULATORS 12
#define COLUMNS 2
#define HEAD np_attention_head_avx2
#define ROWS_OF_CACHE np_attention_cache_avx2
#define STREAM(to, x) _mm256_stream_ps(to, (__m256)(x))
#define STREAMED() _mm_sfence()
#define TARGET __attribute__((target("arch=x86-64-v3")))
#define LARGER(x, y) _mm256_max_ps((__m256)(x), (__m256)(y))
#include "attention/code.h"
#endif
