/* Products of a few rows, as their code for each instruction set has them. */
#ifndef NARROWPASS_GEMV_CODE_FOR_H
#define NARROWPASS_GEMV_CODE_FOR_H

#include "gemv/gemv.h"
#include "runtime/kernel.h"

typedef struct {
  const struct np_few_rows_params *params;
  const void *rows;                             /* dense, of float32 or of bytes */
  const struct xnn_quantization_params *ranges; /* of rows of bytes */
  const float *before; /* a residual that sums start from, or NULL */
  float *out;
} np_few_rows_job;

/* The panels from `first` to `last`. */
typedef void np_few_rows_code(const np_few_rows_job *job, size_t first, size_t last);

np_few_rows_code np_few_rows_plain;
#ifdef NP_CHOOSES_CPU
np_few_rows_code np_few_rows_avx2, np_few_rows_avx512, np_few_rows_vnni;
#endif

/* Rows of bytes from 0 to 255, for NP_PANELS_INT8_BY_4. */
int np_few_rows_of_bytes(const struct np_few_rows_params *params, const uint8_t *rows,
                         const struct xnn_quantization_params *ranges, float *out,
                         np_workers *workers);

#endif
