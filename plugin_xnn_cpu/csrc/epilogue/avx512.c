/* Epilogues with registers of 16 floats. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>

#define LANES 16
#define EPILOGUE np_epilogue_tile_avx512
#define TARGET __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))

/* 14 bits, and one step of Newton's: off by a unit in the last place. */
TARGET static inline __attribute__((always_inline)) __m512 reciprocal(__m512 x) {
  const __m512 y = _mm512_rcp14_ps(x);
  return _mm512_fmadd_ps(y, _mm512_fnmadd_ps(x, y, _mm512_set1_ps(1.0f)), y);
}
#define RECIPROCAL(x) (vec)reciprocal((__m512)(x))
#define FUSED(x, y, z) (vec)_mm512_fmadd_ps((__m512)(x), (__m512)(y), (__m512)(z))
#define LEAST(x, y) (ivec)_mm512_min_epi32((__m512i)(x), (__m512i)(y))
#include "epilogue/code.h"
#endif
