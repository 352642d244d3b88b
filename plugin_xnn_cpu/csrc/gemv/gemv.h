/* GEMV and skinny GEMM with a matrix that is read once: what takes time is memory.
 *
 * Read by cffi too: no directives but simple constants. */
#pragma once

#include "epilogue/epilogue.h"

#define NP_GEMV_MAX_ROWS 4

/* How a matrix lies: in panels of `width` columns, the last one filled up; of F32, the last few may
 * have a vector of columns less. F32: the bias, then for
 * each input a weight for each column. F16: the same in halves. INT8: the bias over the scale,
 * weights as int8, the scales. */
#define NP_PANELS_F32 0
#define NP_PANELS_F16 1
#define NP_PANELS_INT8 2
/* No panels: the matrix transposed, a dense row for each output. */
#define NP_TABLE_F32 4

/* out = epilogue(row · matrix + bias). The second input is the residual, if any; the output may lie
 * where it does if that is added before the function. */
struct np_gemv_params {
  const void *packed;
  size_t rows; /* 1 to NP_GEMV_MAX_ROWS */
  size_t channels;
  size_t outputs;
  size_t width; /* of a panel; of a table 1 */
  size_t panel_bytes;
  size_t panels;
  size_t narrow;       /* how many of the last panels are narrower */
  size_t narrow_width; /* of these */
  size_t narrow_bytes;
  size_t parts; /* for threads; each has panels of its own, one after the other */
  size_t part_panels;
  struct np_epilogue epilogue;
  int32_t layout; /* NP_PANELS_* or NP_TABLE_* */
  int32_t target; /* NP_TARGET_* */
};

/* The width of panels that the code for this processor is written for; 0 where it is plain. */
size_t np_gemv_panel_width(int32_t layout);

/* Whether that code reads NP_PANELS_F32 of this width. */
bool np_gemv_reads_width(size_t width);
