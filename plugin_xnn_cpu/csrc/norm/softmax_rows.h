/* Softmax of rows, as its code for each instruction set has it. */
#pragma once

#include "runtime/kernel.h"

/* `rows` dense rows of `columns` floats; `out` may be `x`. */
typedef void np_softmax_rows(const float *x, float *out, size_t rows, size_t columns);

NP_DECLARE_FROM_SSE4(np_softmax_rows, np_softmax_rows);
