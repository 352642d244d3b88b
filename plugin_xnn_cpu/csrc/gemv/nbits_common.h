/* What the code for rows of float32 and for rows of int8 share, for one instruction set. */
#ifndef NARROWPASS_GEMV_NBITS_COMMON_H
#define NARROWPASS_GEMV_NBITS_COMMON_H

#include "gemv/nbits_panel.h"
#include "simd/f32.h"

#if LANES == 4 && !defined(__ARM_FEATURE_DOTPROD)
/* Panels are 8 registers wide: unrolled, the code for them would be ten times as large. */
#undef UNROLL
#define UNROLL _Pragma("GCC unroll 1")
#endif

#define COLUMNS NP_NBITS_COLUMNS
#define VECTORS (COLUMNS / LANES)

/* Panels that are read at once, each from memory of its own, and how far ahead they are prefetched:
 * into L2, since a core waits for fewer lines at once that are to go to L1. On a Zen 4, 84 MB of 4
 * bits and rows of int8: 23 GB/s, 15 to 19 of prefetches to L1 or further ahead. */
#define STREAMS 4
#define PREFETCH_BYTES 8192

/* Prefetch what lies PREFETCH_BYTES behind the scales and zero points of a block, or a row of words. */
NP_INLINE void prefetch_numbers(const struct np_nbits_matrix *m, const uint8_t *from) {
  const size_t size = np_nbits_scales_size(m) + np_nbits_zeros_size(m);
  for (size_t i = 0; i < size; i += 64) __builtin_prefetch(from + PREFETCH_BYTES + i, 0, 2);
}

NP_INLINE void prefetch_words(const uint8_t *words) {
  UNROLL for (size_t i = 0; i < COLUMNS * 4; i += 64) {
    __builtin_prefetch(words + PREFETCH_BYTES + i, 0, 2);
  }
}

NP_INLINE vec floats(ivec x) { return __builtin_convertvector(x, vec); }

/* Scales of vector `v`. */
NP_INLINE vec scales_of(const struct np_nbits_matrix *m, const np_nbits_view *b, int v) {
  if (m->scales == NP_NBITS_SCALES_F32) return load((const float *)b->scales + v * LANES);
  const uint16_t *halves = (const uint16_t *)b->scales + v * LANES;
#if defined(__AVX512F__) && LANES == 16
  return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)halves));
#elif defined(__F16C__) && LANES == 8
  return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const void *)halves));
#else
  vec x = zero();
  for (int i = 0; i < LANES; i++) x[i] = np_half_to_float(halves[i]);
  return x;
#endif
}

/* Zero points of vector `v`, which are not common. */
NP_INLINE vec zeros_of(const struct np_nbits_matrix *m, const np_nbits_view *b, int v) {
  if (m->zeros == NP_NBITS_ZEROS_F32) return load((const float *)b->zeros + v * LANES);
  const uint8_t *bytes = (const uint8_t *)b->zeros + v * LANES;
  vec x = zero();
#if defined(__AVX512F__) && LANES == 16
  x = (vec)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)bytes)));
#elif defined(__AVX2__) && LANES == 8
  x = (vec)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)bytes)));
#else
  for (int i = 0; i < LANES; i++) x[i] = bytes[i];
#endif
  return x;
}

/* Columns from `column` on that the matrix has, at most those of a vector. */
NP_INLINE size_t columns_left(const struct np_nbits_matrix *m, size_t column) {
  return m->outputs - column < LANES ? m->outputs - column : LANES;
}

/* The bias, and the residual if accumulators start from it. */
NP_INLINE void start_row(const np_nbits_job *job, const uint8_t *panel, size_t column, size_t row,
                         vec *acc) {
  const struct np_nbits_matrix *m = &job->params->matrix;
  for (int v = 0; v < VECTORS; v++) {
    acc[v] = load((const float *)panel + v * LANES);
    const size_t at = column + (size_t)v * LANES;
    if (job->before != NULL && at < m->outputs) {
      acc[v] += load_some(job->before + row * m->outputs + at, columns_left(m, at));
    }
  }
}

/* The end of `count` finished accumulators: the result from element `at` on. */
NP_INLINE void store_result(const np_nbits_job *job, size_t at, vec x, size_t count) {
  const struct np_epilogue *e = &job->params->epilogue;
  x = clamp(x, e->low, e->high);
  if (job->multiplies) x *= load_some(job->out + at, count);
  store_some(job->out + at, x, count);
}

NP_INLINE void store_row(const np_nbits_job *job, size_t column, size_t row, const vec *acc) {
  const struct np_nbits_matrix *m = &job->params->matrix;
  for (int v = 0; v < VECTORS; v++) {
    const size_t at = column + (size_t)v * LANES;
    if (at >= m->outputs) return;
    store_result(job, row * m->outputs + at, acc[v], columns_left(m, at));
  }
}

/* Accumulators of many rows: begin, and end. */
NP_INLINE void start_rows(const np_nbits_job *job, size_t panel, size_t row, size_t rows,
                          float *results) {
  const struct np_nbits_matrix *m = &job->params->matrix;
  const uint8_t *from = (const uint8_t *)job->params->packed + panel * np_nbits_panel_size(m);
  for (size_t r = 0; r < rows; r++, results += COLUMNS) {
    start_row(job, from, panel * COLUMNS, row + r, (vec *)results);
  }
}

NP_INLINE void store_rows(const np_nbits_job *job, size_t panel, size_t row, size_t rows,
                          const float *results) {
  for (size_t r = 0; r < rows; r++, results += COLUMNS) {
    store_row(job, panel * COLUMNS, row + r, (const vec *)results);
  }
}

#endif
