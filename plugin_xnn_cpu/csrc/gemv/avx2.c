/* GEMV and skinny GEMM with registers of 8 floats. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>
#define LANES 8
#define ACCUMULATORS 12
#define CODE np_gemv_avx2
#define TARGET __attribute__((target("arch=x86-64-v3")))
#define UPCAST_HALVES(p) (vec) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define UPCAST_BYTES(p) \
  (vec) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p))))
#include "gemv/code.h"
#endif
