/* Conversions between float32 and narrower floats. Read by cffi too: no directives but simple
 * constants. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define NP_CONVERT_F16_TO_F32 0
#define NP_CONVERT_F32_TO_F16 1
#define NP_CONVERT_BF16_TO_F32 2
#define NP_CONVERT_F32_TO_BF16 3
#define NP_CONVERT_ROUND_TO_F16 4 /* float32 with the values of the narrower type */
#define NP_CONVERT_ROUND_TO_BF16 5

/* out[i] = in[i], rounded to nearest even where it is narrower; infinity where that is too
 * large. */
struct np_convert_params {
  size_t count;
  int32_t conversion;
};
