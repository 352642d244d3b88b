/* GEMMs and convolutions with weights of bfloat16, of our own.
 *
 * What is packed for them is written by np_bf16_pack, alike for all processors. Read by cffi too:
 * no directives but simple constants. */
#pragma once

#include "conv/image.h"
#include "epilogue/epilogue.h"

/* Changes whenever packed bytes are laid out otherwise. */
#define NP_BF16_LAYOUT 1

/* out = epilogue(sum over the kernel window of input · weight, plus the bias). Images are float32
 * [N, H, W, C], the epilogue's residual is as the output; a GEMM's rows are an image of one column.
 *
 * Inputs are rounded to bfloat16, to nearest even, in the copy of a row tile. Accumulators are
 * float32: the bias, then the elements of a run in pairs, of each the second one first. Subnormal
 * numbers count as 0 wherever they appear. Two bfloat16 numbers that are multiplied have 16 bits,
 * which float32 has exactly: whether a processor multiplies and adds in one instruction does not
 * matter, and results are the same bits on all; but for AMX, which adds the elements of a tile before it
 * adds them to the accumulator. */
struct np_bf16_convolution_params {
  const void *packed;
  struct np_convolution_geometry geometry;
  size_t chunk; /* output pixels of a row tile that stay in cache for all columns */
  struct np_epilogue epilogue;
  int32_t target;        /* NP_TARGET_* */
  size_t thread_scratch; /* bytes */
};

/* Bytes of packed weights of `outputs` columns for each group. */
size_t np_bf16_packed_size(size_t groups, size_t outputs, size_t runs, size_t run_length);

/* weights[groups][outputs][runs][run_length] of bfloat16 in panels of 32 columns; `bias`, of
 * float32, may be NULL. */
void np_bf16_pack(size_t groups, size_t outputs, size_t runs, size_t run_length,
                  const void *weights, const void *bias, void *packed);

/* Which code runs for a target, as NP_TARGET_*: never NP_TARGET_BEST. */
int32_t np_bf16_code_target(int32_t target);

/* Bytes of an element of a copy, for a target. */
size_t np_bf16_element_size(int32_t target);
