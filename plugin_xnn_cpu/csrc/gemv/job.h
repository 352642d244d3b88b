/* GEMV and skinny GEMM, as their code for each instruction set has them. */
#ifndef NARROWPASS_GEMV_JOB_H
#define NARROWPASS_GEMV_JOB_H

#include "gemv/gemv.h"
#include "runtime/kernel.h"

typedef struct {
  const struct np_gemv_params *params;
  const void *rows;                             /* dense, of float32 or of bytes */
  const struct xnn_quantization_params *ranges; /* of rows of bytes */
  const float *before; /* a residual that accumulators start from, or NULL */
  float *out;
} np_gemv_job;

/* The panels from `first` to `last`. */
typedef void np_gemv_code(const np_gemv_job *job, size_t first, size_t last);

NP_DECLARE_FOR_ISAS(np_gemv_code, np_gemv);
np_gemv_code np_gemv_avx512vnni; /* of NP_PANELS_INT8_BY_4 */

/* Rows of bytes from 0 to 255, for NP_PANELS_INT8_BY_4. */
int np_gemv_int8(const struct np_gemv_params *params, const uint8_t *rows,
                 const struct xnn_quantization_params *ranges, float *out, np_workers *workers);

#endif
