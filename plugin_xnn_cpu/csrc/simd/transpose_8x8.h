/* A transpose of 8 × 8 floats: to[k · width + n] = from[n · step + k]. */
#pragma once

#include "simd/f32.h"

NP_INLINE void transpose(const float *from, size_t step, float *to, size_t width) {
#if LANES >= 8
  __m256 rows[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    /* Rows i and i + 4: elements 0 to 3, and 4 to 7. */
    const float *low = from + (size_t)i * step, *high = low + 4 * step;
    rows[i] =
        _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
    rows[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low + 4)),
                                       _mm_loadu_ps(high + 4), 1);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    const __m256 *r = rows + 4 * half;
    const __m256 a = _mm256_unpacklo_ps(r[0], r[1]), b = _mm256_unpackhi_ps(r[0], r[1]);
    const __m256 c = _mm256_unpacklo_ps(r[2], r[3]), d = _mm256_unpackhi_ps(r[2], r[3]);
    float *out = to + (size_t)half * 4 * width;
    _mm256_storeu_ps(out, _mm256_shuffle_ps(a, c, 0x44));
    _mm256_storeu_ps(out + width, _mm256_shuffle_ps(a, c, 0xee));
    _mm256_storeu_ps(out + 2 * width, _mm256_shuffle_ps(b, d, 0x44));
    _mm256_storeu_ps(out + 3 * width, _mm256_shuffle_ps(b, d, 0xee));
  }
#else
  for (size_t n = 0; n < 8; n++) {
    for (size_t k = 0; k < 8; k++) to[k * width + n] = from[n * step + k];
  }
#endif
}
