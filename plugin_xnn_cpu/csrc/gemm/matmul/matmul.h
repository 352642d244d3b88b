/* Matmul of two computed operands: batches of GEMMs, no operand of which is packed before a run.
 *
 * Read by cffi too: no directives but simple constants. */
#pragma once

#include "epilogue/epilogue.h"

/* Dimensions before those of a matrix. */
#define NP_MATMUL_BATCH 4

/* How B is read. PACKED, of any strides: panels of it are copied to scratch memory. ROWS, whose
 * column stride is 1, in place. DOTS: in place, as dot products; the depth strides of A and B are
 * 1. */
#define NP_MATMUL_PACKED 0
#define NP_MATMUL_ROWS 1
#define NP_MATMUL_DOTS 2

/* out = epilogue(alpha · A·B + bias). Inputs: A, B, the bias of `columns` floats where there is
 * one, the residual where there is one, which has the strides of the output. Strides are in
 * elements, 0 for a dimension that is broadcast.
 *
 * A part, which one thread computes, has some matrices of the batch, and some rows and columns of
 * each; where there are several matrices, it has all rows and columns. */
struct np_matmul_params {
  size_t batch[4];
  size_t a_batch[4];
  size_t b_batch[4];
  size_t out_batch[4];
  size_t rows;
  size_t depth;
  size_t columns;
  size_t a_strides[2]; /* row, depth */
  size_t b_strides[2]; /* depth, column */
  size_t out_stride;   /* row */
  int32_t form;        /* NP_MATMUL_* */
  int32_t swapped;     /* whether the first input is B */
  int32_t has_bias;
  float alpha;
  int32_t target;     /* NP_TARGET_* */
  size_t depth_block; /* accumulated before another one begins; at least 1 */
  size_t row_block;   /* rows of A that stay in L2 while the panels are read */
  size_t part_matrices;
  size_t part_rows;
  size_t part_columns;
  int32_t panels;        /* whether packed panels are multiplied by the GEMM of constant matrices */
  size_t pixels_offset;  /* in a thread's scratch memory, in floats, where rows of A start; packed
                            panels come first */
  size_t thread_scratch; /* floats */
  struct np_epilogue epilogue;
};

/* Lanes of the registers of the micro-kernels in use. */
size_t np_matmul_lanes(int32_t target);
