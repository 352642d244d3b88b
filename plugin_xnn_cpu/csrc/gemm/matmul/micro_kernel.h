/* What matmul's code for each instruction set computes. */
#pragma once

#include "gemm/fp32/panel.h"
#include "gemm/matmul/matmul.h"
#include "runtime/kernel.h"

/* Some rows and columns of one matrix, and a part of the depth. */
typedef struct {
  const float *a;
  size_t a_row;
  size_t a_depth;
  const float *b; /* of the first column */
  size_t b_depth;
  size_t b_column;
  int packed; /* whether `b` is what np_matmul_pack wrote for this depth and these columns */
  float *out;
  size_t out_row;
  size_t rows;
  size_t depth;
  size_t columns;
  int first; /* of the depth: otherwise accumulators continue what is in `out` */
  int last;  /* of the depth: alpha, bias and bounds follow */
  int plain; /* whether accumulators are stored as they are: nothing follows them */
  int scaled; /* whether alpha and bias are any but 1 and none */
  float alpha;
  const float *bias; /* NULL for none */
  float low;
  float high;
  np_epilogue_tile *end; /* what is done after that; NULL for nothing */
  const struct np_epilogue *epilogue;
  const float *residual; /* of `end`; NULL for none; lies as `out` does */
} np_matmul_block;

typedef void np_matmul_multiply(const np_matmul_block *block);

/* What follows the accumulators, for those that lie in `out`. */
typedef void np_matmul_finish(const np_matmul_block *block);

/* Columns [depth][columns] of any strides, in panels, the last one filled with zeros. */
typedef void np_matmul_pack(const float *b, size_t depth_step, size_t column_step, size_t depth,
                            size_t columns, float *to);

/* The code for an instruction set. */
typedef struct {
  np_matmul_multiply *multiply;
  np_matmul_multiply *dots; /* of NP_MATMUL_DOTS */
  np_matmul_pack *pack;
  np_fp32_multiply *panel;
  np_matmul_finish *finish; /* of `panel`, where alpha or a bias follow */
  size_t lanes;
  size_t most_vectors; /* of a panel */
} np_matmul_code;

NP_DECLARE_FROM_SSE4(const np_matmul_code, np_matmul_code);
