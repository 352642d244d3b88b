/* GEMM with weights of 2, 4 or 8 bits, or of float8, in blocks along K with a scale each; integers
 * have a zero point, too.
 *
 * Weights are packed by np_nbits_pack. Read by cffi too: no directives but simple constants. */
#ifndef NARROWPASS_GEMV_NBITS_H
#define NARROWPASS_GEMV_NBITS_H

#include "epilogue/epilogue.h"

/* Changes whenever packed bytes are laid out otherwise. */
#define NP_NBITS_LAYOUT 3

/* NR: of a panel. */
#define NP_NBITS_COLUMNS 32

/* Up to so many rows weights are unpacked in registers; with more, a part of a panel is unpacked
 * first, and multiplied with all rows of a tile. */
#define NP_NBITS_GEMV_ROWS 4

/* K of such a part. */
#define NP_NBITS_K_BLOCK 256

#define NP_NBITS_SCALES_F32 0
#define NP_NBITS_SCALES_F16 1

/* One zero point for the whole matrix; one of a byte for each block; one of float32. */
#define NP_NBITS_ZEROS_COMMON 0
#define NP_NBITS_ZEROS_U8 1
#define NP_NBITS_ZEROS_F32 2

/* What a weight of 8 bits is: an integer, or float8 as ONNX calls it. */
#define NP_NBITS_INTEGERS 0
#define NP_NBITS_E4M3FN 1 /* without NaN */
#define NP_NBITS_E5M2 2

/* What is packed. */
struct np_nbits_matrix {
  size_t outputs;
  size_t inputs;
  size_t block;   /* a multiple of 32 / bits, and of 8 */
  int32_t bits;   /* 2, 4 or 8 */
  int32_t scales; /* NP_NBITS_SCALES_* */
  int32_t zeros;  /* NP_NBITS_ZEROS_* */
  float zero;     /* for NP_NBITS_ZEROS_COMMON: an integer */
  int32_t format; /* NP_NBITS_INTEGERS; float8 has the common zero point 0 */
};

/* float out[m, n] = epilogue(sum over k of in[m, k] · (weight[n, k] - zero[n, k / block]) ·
 * scale[n, k / block] + bias[n]). The second input is the residual, if any. */
struct np_nbits_params {
  const void *packed;
  struct np_nbits_matrix matrix;
  size_t rows;
  size_t row_tile; /* rows that are computed at a time, beyond NP_NBITS_GEMV_ROWS */
  size_t parts;    /* for threads, up to NP_NBITS_GEMV_ROWS: each has panels one after the other */
  size_t part_panels;
  struct np_epilogue epilogue;
  int32_t quantized;        /* whether rows are quantized to int8, in blocks of the same size */
  int32_t rounds;           /* whether many of them may be rounded to bfloat16 instead */
  int32_t target;           /* NP_TARGET_* */
  size_t shared_scratch;    /* bytes at the start of the workspace: the quantized rows */
  size_t own_scratch;       /* bytes of each thread, which follow */
  size_t thread_scratch;    /* bytes of the workspace for each thread, both together */
};

/* Matmuls with matrices of the same inputs and blocks, by one call: those of the same rows, which are
 * quantized once, or each of rows of its own. Threads divide the panels of all. The results follow
 * one another in `out`, [rows, outputs] each. Where `gated`, there are two of equally many outputs,
 * whose results, after their epilogues, are multiplied element by element: the one result. Segments
 * have no residual; parts and scratch are those of this struct, and rows, `row_tile`, `quantized`,
 * `rounds` and `target` those of the first. */
struct np_nbits_joined_params {
  const struct np_nbits_params *segment;
  size_t segments;
  size_t row_sets;       /* 1, or as many as segments, one after the other in the input */
  size_t part_panels;    /* of a part, up to NP_NBITS_GEMV_ROWS rows, whatever their segments */
  size_t shared_scratch; /* bytes at the start: the quantized rows, and a result where `gated` */
  size_t own_scratch;    /* bytes of each thread, which follow */
  size_t thread_scratch; /* bytes of the workspace for each thread, both together */
  int32_t gated;
};

/* float out[i, k] = (weight[n, k] - zero[n, k / block]) · scale[n, k / block] for n = index[i]: an
 * embedding, whose rows are the outputs of the packed matrix. Negative indices count from the end. */
struct np_nbits_gather_params {
  const void *packed;
  struct np_nbits_matrix matrix;
  size_t indices;
  size_t index_size; /* bytes */
};

/* Bytes of a packed matrix. */
size_t np_nbits_packed_size(const struct np_nbits_matrix *matrix);

/* Bytes of `sets` times `rows` quantized rows, and of a thread's scratch for `rows` rows. */
size_t np_nbits_rows_size(const struct np_nbits_matrix *matrix, size_t rows, size_t sets);
size_t np_nbits_scratch_size(const struct np_nbits_matrix *matrix, size_t rows);

/* weights[outputs][blocks of inputs, whole ones], of bytes; scales[outputs][blocks] of float32 or
 * float16, followed by the zero points, likewise, of bytes or float32 unless there is one alone;
 * `bias`, float32, may be NULL. */
void np_nbits_pack(const struct np_nbits_matrix *matrix, const void *weights, const void *numbers,
                   const void *bias, void *packed);

#endif
