/* Depthwise convolutions with registers of four floats, which any CPU has. */
#define HIGH 1
#define DEPTHWISE np_fp32_depthwise_plain
#include "simd/f32_plain.h"
#include "depthwise/fp32_code.h"
