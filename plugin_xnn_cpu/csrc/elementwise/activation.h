/* Activations of vectors, for each instruction set. */
#pragma once

#include "runtime/kernel.h"

/* out[i] = activation(in[i]); `out` may be `in`. */
typedef void np_activation(const float *in, float *out, size_t count);

typedef struct {
  np_activation *tanh;
  np_activation *gelu;      /* x · (1 + erf(x / sqrt(2))) / 2 */
  np_activation *tanh_gelu; /* x · (1 + tanh(sqrt(2/π) · (x + 0.044715 x³))) / 2 */
  np_activation *hard_swish;
} np_activations;

NP_DECLARE_FROM_SSE4(const np_activations, np_activations);
