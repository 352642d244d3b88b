/* GEMV and skinny GEMM with registers of 16 floats. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>
#define LANES 16
#define ACCUMULATORS 24
#define CODE np_gemv_avx512
#define TARGET __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))
#define UPCAST_HALVES(p) (vec) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define UPCAST_BYTES(p) \
  (vec) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p))))
#include "gemv/code.h"
#endif
