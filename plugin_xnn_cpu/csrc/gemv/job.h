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

/* Panels of one width. */
typedef struct {
  const uint8_t *packed; /* the first one */
  size_t panel_bytes;
  size_t column; /* the first one of the first panel */
} np_gemv_region;

NP_INLINE np_gemv_region np_gemv_wide(const struct np_gemv_params *p) {
  return (np_gemv_region){p->packed, p->panel_bytes, 0};
}

NP_INLINE np_gemv_region np_gemv_narrow(const struct np_gemv_params *p) {
  const size_t wide = p->panels - p->narrow;
  return (np_gemv_region){(const uint8_t *)p->packed + wide * p->panel_bytes, p->narrow_bytes,
                          wide * p->width};
}

/* The panels from `first` to `last`. */
typedef void np_gemv_code(const np_gemv_job *job, size_t first, size_t last);

NP_DECLARE_FOR_ISAS(np_gemv_code, np_gemv);
