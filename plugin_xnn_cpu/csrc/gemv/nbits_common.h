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

NP_INLINE void store_row(const np_nbits_job *job, size_t column, size_t row, const vec *acc) {
  const struct np_nbits_params *p = job->params;
  const struct np_nbits_matrix *m = &p->matrix;
  for (int v = 0; v < VECTORS; v++) {
    const size_t at = column + (size_t)v * LANES;
    if (at >= m->outputs) return;
    const vec x = clamp(acc[v], p->epilogue.low, p->epilogue.high);
    store_some(job->out + row * m->outputs + at, x, columns_left(m, at));
  }
}

/* Code for up to four rows computes a row twice where there are fewer. */
NP_INLINE size_t row_of(const np_nbits_job *job, int row) {
  return (size_t)row < job->params->rows ? (size_t)row : job->params->rows - 1;
}

typedef vec few_acc[NP_NBITS_GEMV_ROWS][VECTORS];

/* Adds block `number` of a panel, which lies at `from`, times `rows` rows to accumulators: the file
 * that includes this defines it for its kind of rows. `common` is whether the zero point is. */
NP_INLINE void add_block(const np_nbits_job *job, const uint8_t *from, size_t number, few_acc acc,
                         const int rows, const int bits, const int common);

/* Panels `first` to `last`, in runs that are read at once. */
NP_INLINE void few_panels(const np_nbits_job *job, size_t first, size_t last, const int rows,
                          const int bits, const int common) {
  const struct np_nbits_matrix *m = &job->params->matrix;
  const size_t blocks = np_nbits_blocks(m), block_size = np_nbits_block_size(m);
  const size_t panel_size = np_nbits_panel_size(m);
  const size_t run = (last - first + STREAMS - 1) / STREAMS;
  for (size_t i = first; i < first + run; i++) {
    few_acc acc[STREAMS];
    const uint8_t *panels[STREAMS];
    size_t count = 0;
    for (size_t at = i; at < last; at += run, count++) {
      panels[count] = (const uint8_t *)job->params->packed + at * panel_size;
      for (int r = 0; r < rows; r++) {
        start_row(job, panels[count], at * COLUMNS, row_of(job, r), acc[count][r]);
      }
      panels[count] = np_nbits_block_of(m, panels[count], 0);
    }
    for (size_t b = 0; b < blocks; b++) {
      for (size_t s = 0; s < count; s++, panels[s - 1] += block_size) {
        add_block(job, panels[s], b, acc[s], rows, bits, common);
      }
    }
    for (size_t s = 0; s < count; s++) {
      for (size_t r = 0; r < job->params->rows; r++) {
        store_row(job, (i + s * run) * COLUMNS, r, acc[s][r]);
      }
    }
  }
}

/* Kinds of weights: as many bits of integers, or float8, which only rows of float32 have code for. */
enum { E4M3FN = 43, E5M2 = 52 };

/* The code for each number of rows, kind of weights, and kind of zero points. */
#define NP_NBITS_OF_ROWS(rows, bits)                                                             \
  static void few_##rows##_##bits(const np_nbits_job *job, size_t first, size_t last) {          \
    if (job->params->matrix.zeros == NP_NBITS_ZEROS_COMMON) {                                    \
      few_panels(job, first, last, rows, bits, 1);                                               \
    } else {                                                                                     \
      few_panels(job, first, last, rows, bits, 0);                                               \
    }                                                                                            \
  }
#define NP_NBITS_OF_BITS(bits) \
  NP_NBITS_OF_ROWS(1, bits)    \
  NP_NBITS_OF_ROWS(2, bits)    \
  NP_NBITS_OF_ROWS(4, bits)
NP_INLINE size_t few_index(const struct np_nbits_params *p) {
  return (size_t)(p->rows > 1) + (p->rows > 2);
}

#define NP_NBITS_FEW_CODE                                                  \
  NP_NBITS_OF_BITS(2)                                                      \
  NP_NBITS_OF_BITS(4)                                                      \
  NP_NBITS_OF_BITS(8)                                                      \
  static np_nbits_few *const few_codes[3][3] = {                           \
      {few_1_2, few_2_2, few_4_2},                                         \
      {few_1_4, few_2_4, few_4_4},                                         \
      {few_1_8, few_2_8, few_4_8},                                         \
  };                                                                       \
  NP_INLINE void few(const np_nbits_job *job, size_t first, size_t last) { \
    const struct np_nbits_params *p = job->params;                         \
    few_codes[p->matrix.bits / 4][few_index(p)](job, first, last);         \
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
