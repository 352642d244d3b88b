/* Conversions between float32 and narrower floats. */
#include "elementwise/convert.h"
#include "elementwise/half.h"
#include "runtime/kernel.h"

#define TILE 4096

/* A multiplication moves the exponent, and normalizes subnormal numbers. */
NP_INLINE float from_half(uint16_t half) {
  const uint32_t magnitude = (uint32_t)(half & 0x7fffu) << 13;
  const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  const uint32_t finite = np_bits_of(np_float_of(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000u; /* infinity, or NaN with its bits */
  return np_float_of((magnitude >= 0x0f800000u ? special : finite) | sign);
}

#define NP_CONVERSION(name, source, target, expression)        \
  NP_TILE(name) {                                              \
    const source *in = (const source *)job->inputs[0] + start; \
    target *out = (target *)job->out + start;                  \
    for (size_t i = 0; i < count; i++) {                       \
      const source x = in[i];                                  \
      out[i] = expression;                                     \
    }                                                          \
  }

NP_CONVERSION(f16_to_f32, uint16_t, float, from_half(x))
NP_CONVERSION(f32_to_f16, float, uint16_t, np_half_of(x))
NP_CONVERSION(bf16_to_f32, uint16_t, float, np_float_of((uint32_t)x << 16))
NP_CONVERSION(f32_to_bf16, float, uint16_t, np_bfloat_of(x))
NP_CONVERSION(round_to_f16, float, float, from_half(np_half_of(x)))
NP_CONVERSION(round_to_bf16, float, float, np_float_of((uint32_t)np_bfloat_of(x) << 16))

int np_convert(np_job *job) {
  static np_tile *const parts[] = {
      [NP_CONVERT_F16_TO_F32] = f16_to_f32,     [NP_CONVERT_F32_TO_F16] = f32_to_f16,
      [NP_CONVERT_BF16_TO_F32] = bf16_to_f32,   [NP_CONVERT_F32_TO_BF16] = f32_to_bf16,
      [NP_CONVERT_ROUND_TO_F16] = round_to_f16, [NP_CONVERT_ROUND_TO_BF16] = round_to_bf16,
  };
  const struct np_convert_params *p = job->params;
  /* Denormals are left as they are: half of the subnormal halves pass through them. */
  return np_for_tiles(job, parts[p->conversion], p->count, TILE, p->count * 4, 0);
}
