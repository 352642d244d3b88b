/* Up to four rows times panels, for one instruction set: what the code for rows of float32 and for rows
 * of int8 share. */
#ifndef NARROWPASS_GEMV_NBITS_FEW_CODE_H
#define NARROWPASS_GEMV_NBITS_FEW_CODE_H

#include "gemv/nbits_common.h"

/* Code for up to four rows computes a row twice where there are fewer. */
NP_INLINE size_t row_of(const np_nbits_job *job, int row) {
  return (size_t)row < job->params->rows ? (size_t)row : job->params->rows - 1;
}

typedef vec few_acc[NP_NBITS_GEMV_ROWS][VECTORS];

/* Adds block `number` of `count` panels, which lie at `from`, times `rows` rows to accumulators: the
 * file that includes this defines it for its kind of rows. `common` is whether the zero point is. */
NP_INLINE void add_blocks(const np_nbits_job *job, const uint8_t *const *from, size_t number,
                          few_acc *acc, const int count, const int rows, const int bits,
                          const int common);

/* Panels whose blocks are added at once: that many accumulators are independent. */
NP_INLINE int at_once(const int rows);

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
      size_t s = 0;
      for (; s + (size_t)at_once(rows) <= count; s += (size_t)at_once(rows)) {
        add_blocks(job, panels + s, b, acc + s, at_once(rows), rows, bits, common);
      }
      for (; at_once(rows) > 1 && s < count; s++) {
        add_blocks(job, panels + s, b, acc + s, 1, rows, bits, common);
      }
      for (s = 0; s < count; s++) panels[s] += block_size;
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

#endif
