/* GEMM of float32 rows with a matrix of int8.
 *
 * Read by cffi too: no directives but simple constants. */
#ifndef NARROWPASS_GEMM_FP32_INT8_WEIGHTS_H
#define NARROWPASS_GEMM_FP32_INT8_WEIGHTS_H

#include "runtime/isa.h"

/* That are upcast at a time: lanes of the code of AVX-512. */
#define NP_INT8_WEIGHTS_NR 16

/* out = clamp(row · matrix + bias, low, high), of a matrix that lies as NP_PANELS_INT8 says. Panels
 * that lie one after the other are upcast and scaled together, a part of the inputs at a time, into
 * the scratch memory of a thread, and all rows of a row tile are multiplied with them there. */
struct np_gemm_int8_weights_params {
  const void *packed;
  size_t rows;
  size_t channels;
  size_t outputs;
  size_t width; /* of a panel: a multiple of NP_INT8_WEIGHTS_NR */
  size_t panel_bytes;
  size_t together; /* panels */
  size_t depth;    /* inputs of a part */
  size_t row_tile; /* rows */
  size_t parts;    /* that the panels are divided into, for threads */
  float low;
  float high;
  int32_t target;        /* NP_TARGET_* */
  size_t bias_offset;    /* bytes, in a thread's scratch memory, which upcast weights begin */
  size_t pixels_offset;  /* where rows start */
  size_t thread_scratch; /* bytes */
};

#endif
