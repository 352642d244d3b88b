/* Fused epilogues: what is done with finished accumulators of a GEMM or a convolution while they
 * lie in cache. A residual is added, and an activation applied.
 *
 * Kernels of any type whose results are float32 end with this. Read by cffi too: no directives but
 * simple constants. */
#pragma once

#include "runtime/isa.h"

#define NP_EPILOGUE_CLAMP 0 /* min(max(x, low), high); infinite bounds for nothing at all */
#define NP_EPILOGUE_GELU 1  /* x · (1 + erf(x / sqrt(2))) / 2 */
#define NP_EPILOGUE_TANH_GELU 2
#define NP_EPILOGUE_SILU 3 /* x / (1 + exp(-x)) */
#define NP_EPILOGUE_HARD_SWISH 4

#define NP_RESIDUAL_NONE 0
#define NP_RESIDUAL_BEFORE 1 /* function(x + residual) */
#define NP_RESIDUAL_AFTER 2  /* function(x) + residual */

/* `low` and `high` are read for NP_EPILOGUE_CLAMP only; NaN is not clamped. */
struct np_epilogue {
  int32_t function; /* NP_EPILOGUE_* */
  int32_t residual; /* NP_RESIDUAL_* */
  float low;
  float high;
};

/* Apply it to `rows` × `columns` accumulators, of which rows are strides apart; `residual` lies
 * likewise and may be NULL where there is none. Accumulators in L1 cost least: those of a few
 * tiles. */
typedef void np_epilogue_tile(const struct np_epilogue *epilogue, float *out, size_t out_stride,
                              const float *residual, size_t residual_stride, size_t rows,
                              size_t columns);

/* The fastest code for this processor that NP_TARGET_* allows. */
np_epilogue_tile *np_epilogue_for(int32_t target);
