/* How matrices of few bits are packed, and their code for each instruction set.
 *
 * A panel has 32 columns: their bias in float32; then for each block along K their scales, their
 * zero points unless one is common, and rows of words. A word has 32 / bits weights of one column:
 * its byte j has in its lowest bits that of k = j, then that of k = j + 4, and so on. So a shift and
 * a mask return four consecutive weights as bytes, a K-group of 4 as dot products of int8 take them;
 * and a shift alone brings any one to the low bits of its lane. Of float8, four rows of bytes have
 * the place of a row of words: those of k, k + 1, k + 2 and k + 3. */
#ifndef NARROWPASS_GEMV_NBITS_PANEL_H
#define NARROWPASS_GEMV_NBITS_PANEL_H

#include <string.h>

#include "gemv/nbits.h"
#include "runtime/kernel.h"

/* Rows that were quantized to int8 in blocks: x = scale · q. A block with an element that is not
 * finite has the scale NaN. */
typedef struct {
  int8_t *q;         /* [rows][blocks · block], zeros behind the last input; or bfloat16 */
  float *scales;     /* [blocks][np_nbits_row_stride] */
  int32_t *row_sums; /* likewise: of q */
} np_nbits_rows;

/* Scales and row sums of a block that lie side by side: where there are many rows, whole registers can be
 * read of them. */
#define NP_NBITS_ROW_GROUP 16
NP_INLINE size_t np_nbits_row_stride(size_t rows) {
  if (rows <= NP_NBITS_GEMV_ROWS) return rows;
  return np_ceil_div(rows, NP_NBITS_ROW_GROUP) * NP_NBITS_ROW_GROUP;
}

typedef struct {
  const struct np_nbits_params *params;
  const float *in;
  float *out;
  const float *before; /* a residual that accumulators start from, or NULL */
  np_nbits_rows rows;  /* where these are quantized */
  int multiplies;      /* whether results are multiplied with what `out` has */
} np_nbits_job;

NP_INLINE size_t np_nbits_blocks(const struct np_nbits_matrix *m) {
  return (m->inputs + m->block - 1) / m->block;
}

/* Bytes of the scales and of the zero points of a block. */
NP_INLINE size_t np_nbits_scales_size(const struct np_nbits_matrix *m) {
  return NP_NBITS_COLUMNS * (m->scales == NP_NBITS_SCALES_F16 ? 2 : 4);
}
NP_INLINE size_t np_nbits_zeros_size(const struct np_nbits_matrix *m) {
  static const size_t sizes[] = {0, 1, 4};
  return NP_NBITS_COLUMNS * sizes[m->zeros];
}

/* Bytes of a block of a panel. */
NP_INLINE size_t np_nbits_block_size(const struct np_nbits_matrix *m) {
  return np_nbits_scales_size(m) + np_nbits_zeros_size(m) +
         NP_NBITS_COLUMNS * m->block * (size_t)m->bits / 8;
}

NP_INLINE size_t np_nbits_panel_size(const struct np_nbits_matrix *m) {
  return NP_NBITS_COLUMNS * sizeof(float) + np_nbits_blocks(m) * np_nbits_block_size(m);
}

/* Bytes of a thread's scratch for a part of a panel along K, a block at least, unpacked. */
NP_INLINE size_t np_nbits_piece_size(const struct np_nbits_matrix *m) {
  return np_max(m->block, NP_NBITS_K_BLOCK) * NP_NBITS_COLUMNS * sizeof(float);
}

/* Rows of bfloat16 that are multiplied at a time, two tiles; and K of a piece of a panel, at most. */
#define NP_NBITS_BF16_ROWS 32
#define NP_NBITS_BF16_K 320

/* Bytes of a thread's scratch: two pieces, two blocks of accumulators, and those of all rows. */
NP_INLINE size_t np_nbits_bf16_scratch_size(size_t rows) {
  return (2 * NP_NBITS_BF16_K * sizeof(uint16_t) +
          (2 * NP_NBITS_BF16_ROWS + rows) * sizeof(float)) * NP_NBITS_COLUMNS;
}

/* Elements of a row of bfloat16: whole tiles. */
NP_INLINE size_t np_nbits_bf16_width(const struct np_nbits_matrix *m) {
  return np_ceil_div(np_nbits_blocks(m) * m->block, 32) * 32;
}

/* A block of a panel. */
typedef struct {
  const void *scales;
  const void *zeros;
  const uint8_t *words;
} np_nbits_view;

NP_INLINE np_nbits_view np_nbits_view_of(const struct np_nbits_matrix *m, const uint8_t *from) {
  const uint8_t *zeros = from + np_nbits_scales_size(m);
  return (np_nbits_view){from, zeros, zeros + np_nbits_zeros_size(m)};
}

NP_INLINE const uint8_t *np_nbits_block_of(const struct np_nbits_matrix *m, const uint8_t *panel,
                                  size_t number) {
  return panel + NP_NBITS_COLUMNS * sizeof(float) + number * np_nbits_block_size(m);
}

/* float16 without instructions for it: normal and subnormal numbers, infinity and NaN. */
NP_INLINE float np_half_to_float(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
  uint32_t bits = rest >= 0x7c00 ? 0x7f800000 | (rest & 0x3ff) << 13 : (rest << 13) + 0x38000000;
  float x;
  if (rest < 0x400) {
    x = (float)rest * 0x1p-24f;
    memcpy(&bits, &x, sizeof bits);
  }
  bits |= sign;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* The float16 with the value of a float8, of E4M3FN a 256th of it: NP_NBITS_E4M3FN_FACTOR. */
#define NP_NBITS_E4M3FN_FACTOR 256.0f
NP_INLINE uint16_t np_float8_to_half(uint8_t byte, const int32_t format) {
  if (format == NP_NBITS_E5M2) return (uint16_t)(byte << 8);
  return (uint16_t)((byte & 0x80) << 8 | (byte & 0x7f) << 7);
}

/* What accumulators of a block are multiplied with, beside its scale. */
NP_INLINE float np_nbits_factor(const int32_t format) {
  return format == NP_NBITS_E4M3FN ? NP_NBITS_E4M3FN_FACTOR : 1.0f;
}

NP_INLINE size_t np_nbits_panels(const struct np_nbits_matrix *m) {
  return (m->outputs + NP_NBITS_COLUMNS - 1) / NP_NBITS_COLUMNS;
}

/* Panels `first` to `last` times up to NP_NBITS_GEMV_ROWS rows. */
typedef void np_nbits_few(const np_nbits_job *job, size_t first, size_t last);

/* A panel times `rows` rows from `row` on; `scratch` is the thread's. */
typedef void np_nbits_many(const np_nbits_job *job, size_t panel, size_t row, size_t rows,
                           uint8_t *scratch);

/* Panels `first` to `last` times `rows` rows from `row` on; `scratch` is the thread's. */
typedef void np_nbits_many_panels(const np_nbits_job *job, size_t first, size_t last, size_t row,
                                  size_t rows, uint8_t *scratch);

/* Quantize a row: `q` has room for whole blocks; scales and row sums of two blocks lie `stride` apart. */
typedef void np_nbits_quantize(const float *x, size_t inputs, size_t block, int8_t *q,
                               float *scales, int32_t *row_sums, size_t stride);

/* Round a row to bfloat16, `width` elements: zeros behind the inputs. */
typedef void np_nbits_round(const float *x, size_t inputs, size_t width, uint16_t *to);

NP_DECLARE_FOR_ISAS(np_nbits_few, np_nbits_few);
NP_DECLARE_FOR_ISAS(np_nbits_many, np_nbits_many);
NP_DECLARE_FOR_ISAS(np_nbits_few, np_nbits_int8_few);
NP_DECLARE_FOR_ISAS(np_nbits_many, np_nbits_int8_many);
NP_DECLARE_FOR_ISAS(np_nbits_quantize, np_nbits_quantize);
#ifdef NP_CHOOSES_CPU
np_nbits_few np_nbits_int8_few_avx512vnni;
np_nbits_many np_nbits_int8_many_avx512vnni;
np_nbits_quantize np_nbits_quantize_avx512vnni;
/* Where NP_HAS_AVX512AMX. */
np_nbits_few np_nbits_int8_few_avx512amx;
np_nbits_many np_nbits_int8_many_avx512amx;
np_nbits_quantize np_nbits_quantize_avx512amx;
np_nbits_many_panels np_nbits_bf16_many_avx512amx;
np_nbits_round np_nbits_bf16_round_avx512amx;
#endif
#ifdef __aarch64__
np_nbits_few np_nbits_int8_few_neondot;
np_nbits_many np_nbits_int8_many_neondot;
np_nbits_quantize np_nbits_quantize_neondot;
#endif

#endif
