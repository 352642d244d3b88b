/* The fp32 kernels' innermost code for AVX2 and FMA.
 *
 * A tile of 6 windows and 16 columns has 12 registers of sums, 2 of weights, and one of an element
 * in all of its lanes: all 12 sums stay in registers, and there are enough of them to hide the
 * latency of an instruction that multiplies and adds. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>

#include "fp32_code.h"

#define TARGET __attribute__((target("avx2,fma")))
#define INLINE TARGET static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

INLINE void store(float *out, const __m256 *sums, const np_fp32_panel *p, const int vectors) {
  float all[NP_FP32_COLUMNS];
  const int whole = p->columns == 8 * (size_t)vectors;
  float *to = whole ? out : all;
  UNROLL for (int v = 0; v < vectors; v++) {
    /* In this order NaN stays. */
    const __m256 x = _mm256_max_ps(_mm256_set1_ps(p->low), sums[v]);
    _mm256_storeu_ps(to + 8 * v, _mm256_min_ps(_mm256_set1_ps(p->high), x));
  }
  if (!whole) memcpy(out, all, p->columns * sizeof *out);
}

INLINE void tile(const np_fp32_panel *p, size_t first, const int rows, const int vectors) {
  const float *weights = p->panel;
  __m256 sums[NP_FP32_ROWS][2];
  UNROLL for (int r = 0; r < rows; r++) {
    UNROLL for (int v = 0; v < vectors; v++) sums[r][v] = _mm256_load_ps(weights + 8 * v);
  }
  weights += 8 * vectors;
  const size_t run_length = p->run_length;
  for (size_t q = 0; q < p->run_count; q++) {
    const float *x[NP_FP32_ROWS];
    UNROLL for (int r = 0; r < rows; r++) x[r] = p->image + p->pixels[first + (size_t)r] + p->runs[q];
    for (size_t k = 0; k < run_length; k++, weights += 8 * vectors) {
      __m256 w[2];
      UNROLL for (int v = 0; v < vectors; v++) w[v] = _mm256_load_ps(weights + 8 * v);
      UNROLL for (int r = 0; r < rows; r++) {
        const __m256 element = _mm256_broadcast_ss(x[r] + k);
        UNROLL for (int v = 0; v < vectors; v++) {
          sums[r][v] = _mm256_fmadd_ps(element, w[v], sums[r][v]);
        }
      }
    }
  }
  float *out = p->out + first * p->out_stride;
  UNROLL for (int r = 0; r < rows; r++) store(out + (size_t)r * p->out_stride, sums[r], p, vectors);
}

/* As few tiles as there can be, of about as many rows each. */
INLINE void tiles(const np_fp32_panel *p, const int vectors) {
  size_t left = (p->count + NP_FP32_ROWS - 1) / NP_FP32_ROWS;
  for (size_t first = 0; first < p->count; left--) {
    const size_t rows = (p->count - first + left - 1) / left;
    switch (rows) {
      case 6: tile(p, first, 6, vectors); break;
      case 5: tile(p, first, 5, vectors); break;
      case 4: tile(p, first, 4, vectors); break;
      case 3: tile(p, first, 3, vectors); break;
      case 2: tile(p, first, 2, vectors); break;
      default: tile(p, first, 1, vectors); break;
    }
    first += rows;
  }
}

TARGET void np_fp32_multiply_avx2(const np_fp32_panel *p) {
  p->columns > 8 ? tiles(p, 2) : tiles(p, 1);
}
#endif
