/* Attention with registers of 16 floats. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>
#define LANES 16
#define ROWS 12
#define COLUMNS 2
#define HEAD np_attention_head_avx512
#define ROWS_OF_CACHE np_attention_cache_avx512
#define STREAM(to, x) _mm512_stream_ps(to, (__m512)(x))
#define STREAMED() _mm_sfence()
#define TARGET __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))
#include "attention_code.h"
#endif
