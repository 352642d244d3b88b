/* The innermost code of the fp32 kernels, which is written for each instruction set. */
#ifndef NARROWPASS_FP32_CODE_H
#define NARROWPASS_FP32_CODE_H

#include <string.h>

#include "fp32_kernels.h"
#include "run.h"

#define NP_FP32_ROWS 6     /* of the largest tile */
#define NP_FP32_COLUMNS 16 /* of a panel; the last one has 8 where that will do */

NP_INLINE size_t np_fp32_panel_width(size_t columns) {
  return columns > 8 ? NP_FP32_COLUMNS : 8;
}

/* Floats: the bias, then for each input a weight for each column. */
NP_INLINE size_t np_fp32_panel_size(size_t columns, size_t inputs) {
  return np_fp32_panel_width(columns) * (1 + inputs);
}

/* A panel and the windows that it is multiplied with. */
typedef struct {
  const float *image;
  const int32_t *pixels; /* where windows start in it */
  size_t count;          /* of windows */
  const int32_t *runs;   /* where runs start in a window */
  size_t run_count;
  size_t run_length;
  const float *panel;
  size_t columns; /* of the panel: 1 to 16 */
  float *out;
  size_t out_stride;
  float low;
  float high;
} np_fp32_panel;

typedef void np_fp32_multiply(const np_fp32_panel *panel);

np_fp32_multiply np_fp32_multiply_plain, np_fp32_multiply_avx2;

#endif
