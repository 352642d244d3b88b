/* GEMV and skinny GEMM of bytes with a matrix of int8, for AVX-512 with VNNI: an instruction
 * multiplies four inputs with their weights for 16 columns, and adds the products. The panels of a
 * thread are divided into runs that are read at once; gemv/code.h says why. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>
#include <string.h>

#include "gemv/job.h"

#define TARGET __attribute__((target("arch=x86-64-v4,avx512vnni,prefer-vector-width=512")))
#define INLINE TARGET static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")
#define LANES 16
#define ACCUMULATORS 24
#define VECTORS 4 /* of a panel */
#define MOST_STREAMS 8
#define PREFETCH_BYTES 8192

INLINE void tile(const np_gemv_job *job, size_t panel, size_t run_stride, const int rows,
                 const int streams) {
  const struct np_gemv_params *p = job->params;
  const size_t channels = p->channels, step = (size_t)VECTORS * 64, fours = (channels + 3) / 4;
  const uint8_t *panels[MOST_STREAMS], *x[NP_GEMV_MAX_ROWS];
  __m512i acc[NP_GEMV_MAX_ROWS][MOST_STREAMS][4];
  UNROLL for (int r = 0; r < rows; r++) {
    const size_t row = (size_t)r < p->rows ? (size_t)r : p->rows - 1;
    x[r] = (const uint8_t *)job->rows + row * channels;
  }
  UNROLL for (int s = 0; s < streams; s++) {
    panels[s] = (const uint8_t *)p->packed + (panel + (size_t)s * run_stride) * p->panel_bytes;
    UNROLL for (int v = 0; v < VECTORS; v++) {
      const __m512i less = _mm512_loadu_si512(panels[s] + 64 * v);
      UNROLL for (int r = 0; r < rows; r++) {
        const size_t row = (size_t)r < p->rows ? (size_t)r : p->rows - 1;
        const __m512i zero = _mm512_set1_epi32(job->ranges[row].zero_point);
        acc[r][s][v] = _mm512_mullo_epi32(zero, less);
      }
    }
    panels[s] += step;
  }
  for (size_t k = 0; k < fours; k++) {
    UNROLL for (int s = 0; s < streams; s++) {
      const uint8_t *from = panels[s] + k * step;
      UNROLL for (int v = 0; v < VECTORS; v++) {
        __builtin_prefetch(from + PREFETCH_BYTES + 64 * v, 0, 3);
        const __m512i w = _mm512_loadu_si512(from + 64 * v);
        UNROLL for (int r = 0; r < rows; r++) {
          int32_t four; /* behind the last row there are bytes that may be read */
          memcpy(&four, x[r] + 4 * k, sizeof four);
          acc[r][s][v] = _mm512_dpbusd_epi32(acc[r][s][v], _mm512_set1_epi32(four), w);
        }
      }
    }
  }
  const __m512 low = _mm512_set1_ps(p->epilogue.low), high = _mm512_set1_ps(p->epilogue.high);
  UNROLL for (int s = 0; s < streams; s++) {
    const uint8_t *scales = panels[s] + fours * step;
    UNROLL for (int v = 0; v < VECTORS; v++) {
      const size_t column =
          ((panel + (size_t)s * run_stride) * (size_t)VECTORS + (size_t)v) * LANES;
      if (column >= p->outputs) continue;
      const size_t left = p->outputs - column;
      const __mmask16 mask = (__mmask16)(left < LANES ? (1u << left) - 1 : 0xffffu);
      const __m512 scale = _mm512_loadu_ps(scales + 64 * v);
      const __m512 bias = _mm512_loadu_ps(scales + step + 64 * v);
      UNROLL for (int r = 0; r < rows; r++) {
        if ((size_t)r >= p->rows) continue;
        const __m512 row_scale = _mm512_set1_ps(job->ranges[r].scale);
        const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][s][v]), row_scale);
        /* In this order NaN stays. */
        __m512 found = _mm512_max_ps(low, _mm512_fmadd_ps(product, scale, bias));
        found = _mm512_min_ps(high, found);
        _mm512_mask_storeu_ps(job->out + (size_t)r * p->outputs + column, mask, found);
      }
    }
  }
}

INLINE void panels(const np_gemv_job *job, size_t first, size_t last, const int rows) {
  const int streams = ACCUMULATORS / (rows * VECTORS);
  const size_t run_stride = (last - first) / (size_t)streams, end = first + run_stride;
  for (size_t i = first; i < end; i++) tile(job, i, run_stride, rows, streams);
  for (size_t i = first + (size_t)streams * run_stride; i < last; i++) tile(job, i, 0, rows, 1);
}

TARGET void np_gemv_avx512vnni(const np_gemv_job *job, size_t first, size_t last) {
  if (job->params->rows == 1) {
    panels(job, first, last, 1);
  } else {
    panels(job, first, last, NP_GEMV_MAX_ROWS);
  }
}

#endif
