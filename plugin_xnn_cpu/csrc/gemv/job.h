/* GEMV and skinny GEMM, as their code for each instruction set has them. */
#pragma once

#include "gemv/gemv.h"
#include "runtime/kernel.h"

typedef struct {
  const struct np_gemv_params *params;
  const float *rows;   /* dense */
  const float *before; /* a residual that accumulators start from, or NULL */
  float *out;
} np_gemv_job;

/* The panels from `first` to `last`. */
typedef void np_gemv_code(const np_gemv_job *job, size_t first, size_t last);

NP_DECLARE_FOR_ISAS(np_gemv_code, np_gemv);
