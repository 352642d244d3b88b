/* Conversions between float32 and narrower floats. */
#include <string.h>

#include "elementwise/convert.h"
#include "runtime/kernel.h"

#define TILE 4096

typedef struct {
  const struct np_convert_params *params;
  const void *in;
  void *out;
} job;

NP_INLINE float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

NP_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* The exponent is moved by a product, which makes normal numbers of subnormal ones too. */
NP_INLINE float widened(uint16_t half) {
  const uint32_t magnitude = (uint32_t)(half & 0x7fffu) << 13;
  const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  const uint32_t finite = bits_of(float_of(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000u; /* infinity, or NaN with its bits */
  return float_of((magnitude >= 0x0f800000u ? special : finite) | sign);
}

/* Rounding is left to a sum: the addend's last bit is worth that of the result. */
NP_INLINE uint16_t halved(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  /* Normal results: round the 13 bits that go, and move the exponent. */
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t normal = (magnitude + 0x0fffu + odd - 0x38000000u) >> 13;
  /* Subnormal ones: 2^-24 is the last bit of 0.5. */
  const uint32_t tiny = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t result = magnitude < 0x38800000u ? tiny : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result; /* 65520 and above */
  result = magnitude > 0x7f800000u ? 0x7e00u : result;  /* NaN */
  return (uint16_t)(result | sign);
}

NP_INLINE uint16_t rounded(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t odd = (bits >> 16) & 1u;
  const uint32_t result = (bits + 0x7fffu + odd) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : result);
}

NP_MULTIVERSIONED(void, f16_to_f32, (const uint16_t *in, float *out, size_t count),
                  (in, out, count)) {
  for (size_t i = 0; i < count; i++) out[i] = widened(in[i]);
}

NP_MULTIVERSIONED(void, f32_to_f16, (const float *in, uint16_t *out, size_t count),
                  (in, out, count)) {
  for (size_t i = 0; i < count; i++) out[i] = halved(in[i]);
}

NP_MULTIVERSIONED(void, bf16_to_f32, (const uint16_t *in, float *out, size_t count),
                  (in, out, count)) {
  for (size_t i = 0; i < count; i++) out[i] = float_of((uint32_t)in[i] << 16);
}

NP_MULTIVERSIONED(void, f32_to_bf16, (const float *in, uint16_t *out, size_t count),
                  (in, out, count)) {
  for (size_t i = 0; i < count; i++) out[i] = rounded(in[i]);
}

NP_MULTIVERSIONED(void, round_to_f16, (const float *in, float *out, size_t count),
                  (in, out, count)) {
  for (size_t i = 0; i < count; i++) out[i] = widened(halved(in[i]));
}

NP_MULTIVERSIONED(void, round_to_bf16, (const float *in, float *out, size_t count),
                  (in, out, count)) {
  for (size_t i = 0; i < count; i++) out[i] = float_of((uint32_t)rounded(in[i]) << 16);
}

static void part(void *context, size_t start, size_t count) {
  const job *task = context;
  switch (task->params->conversion) {
    case NP_CONVERT_ROUND_TO_F16:
      round_to_f16((const float *)task->in + start, (float *)task->out + start, count);
      break;
    case NP_CONVERT_ROUND_TO_BF16:
      round_to_bf16((const float *)task->in + start, (float *)task->out + start, count);
      break;
    case NP_CONVERT_F16_TO_F32:
      f16_to_f32((const uint16_t *)task->in + start, (float *)task->out + start, count);
      break;
    case NP_CONVERT_F32_TO_F16:
      f32_to_f16((const float *)task->in + start, (uint16_t *)task->out + start, count);
      break;
    case NP_CONVERT_BF16_TO_F32:
      bf16_to_f32((const uint16_t *)task->in + start, (float *)task->out + start, count);
      break;
    default:
      f32_to_bf16((const float *)task->in + start, (uint16_t *)task->out + start, count);
  }
}

int np_convert(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_convert_params *p = params;
  job task = {p, inputs[0], out};
  if (p->count == 0) return 0;
  np_workers *const used = p->count * 4 < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  /* Denormals are left as they are: half of the subnormal halves pass through them. */
  np_parallel_for_tiles(used, part, &task, p->count, TILE, 0);
  return 0;
}
