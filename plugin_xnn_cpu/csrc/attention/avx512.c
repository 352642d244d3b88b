/* Attention with registers of 16 floats. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>

#define LANES 16
#define ACCUMULATORS 24
#define COLUMNS 4 /* 6 rows of 4 registers need fewer loads than 12 of 2 */
#define HEAD np_attention_head_avx512
#define ROWS_OF_CACHE np_attention_cache_avx512
#define STREAM(to, x) _mm512_stream_ps(to, (__m512)(x))
#define STREAMED() _mm_sfence()
#define TARGET __attribute__((target("arch=x86-64-v4,prfchw,prefer-vector-width=512")))
#define LARGER(x, y) _mm512_max_ps((__m512)(x), (__m512)(y))
#define TIMES_POWER(x, n) _mm512_scalef_ps((__m512)(x), (__m512)(n))
#include "attention/code.h"
#endif
