/* What the bfloat16 kernels and their micro-kernels share. */
#pragma once

#include "conv/bf16.h"
#include "epilogue/plan.h"
#include "runtime/kernel.h"

#define NP_BF16_COLUMNS 32 /* of a panel; the last one has 16 where that will do */

NP_INLINE size_t np_bf16_panel_width(size_t columns) {
  return columns > 16 ? NP_BF16_COLUMNS : 16;
}

/* Words of 32 bits: the bias, then for each pair of inputs two weights for each column. */
NP_INLINE size_t np_bf16_panel_size(size_t columns, size_t pairs) {
  return np_bf16_panel_width(columns) * (1 + pairs);
}

/* A panel and the output pixels that it is multiplied with. */
typedef struct {
  const void *image;     /* elements as `round` of the code writes them */
  const int32_t *pixels; /* where output pixels start in it */
  size_t count;          /* of output pixels */
  const int32_t *runs;   /* where runs start in a kernel window */
  size_t run_count;
  size_t run_length;
  const uint32_t *panel;
  size_t columns; /* of this panel and those behind it: as many as the code takes at a time */
  float *out;
  size_t out_stride;
  const float *residual; /* added to accumulators; lies as `out` does, or there; or NULL */
  float low;             /* what they are clamped to then; NaN stays */
  float high;
  np_epilogue_tile *end; /* what is done after that; NULL for nothing */
  const struct np_epilogue *epilogue;
  const float *after; /* its residual, which does not lie in the place of `out`; NULL for none */
} np_bf16_panel;

/* The code for an instruction set. Where there is an instruction for pairs of bfloat16 elements are
 * such; elsewhere they are float32 numbers of which the lower half is 0. */
typedef struct {
  void (*multiply)(const np_bf16_panel *panel);
  void (*round)(const void *in, size_t count, int32_t zero, void *out); /* np_convert_pixels */
  size_t element;
  size_t most; /* columns of panels that are multiplied at a time */
} np_bf16_code;

NP_DECLARE_FOR_ISAS(const np_bf16_code, np_bf16);
extern const np_bf16_code np_bf16_avx512bf16;
extern const np_bf16_code np_bf16_avx512amx; /* where NP_HAS_AVX512AMX */
