/* Activations of vectors, for each instruction set. */
#pragma once

#include "runtime/kernel.h"

#define NP_VECTOR_TANH 0
#define NP_VECTOR_GELU 1      /* x · (1 + erf(x / sqrt(2))) / 2 */
#define NP_VECTOR_TANH_GELU 2 /* x · (1 + tanh(sqrt(2/π) · (x + 0.044715 x³))) / 2 */
#define NP_VECTOR_HARD_SWISH 3

/* out[i] = activation(in[i]); `out` may be `in`. */
typedef void np_activation_tile(const float *in, float *out, size_t count, int32_t activation);

NP_DECLARE_FROM_SSE4(np_activation_tile, np_activation);
