/* float32 rounded to float16 and to bfloat16, to nearest even; for loops that become vector code. */
#pragma once

#include "runtime/kernel.h"

/* Rounding is left to a sum: the addend's last bit is worth that of the result. */
NP_INLINE uint16_t np_half_of(float value) {
  const uint32_t bits = np_bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  /* Normal results: round the 13 bits that go, and move the exponent. */
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t normal = (magnitude + 0x0fffu + odd - 0x38000000u) >> 13;
  /* Subnormal ones: 2^-24 is the last bit of 0.5. */
  const uint32_t tiny = np_bits_of(np_float_of(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t result = magnitude < 0x38800000u ? tiny : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result; /* 65520 and above */
  result = magnitude > 0x7f800000u ? 0x7e00u : result;  /* NaN */
  return (uint16_t)(result | sign);
}

NP_INLINE uint16_t np_bfloat_of(float value) {
  const uint32_t bits = np_bits_of(value);
  const uint32_t odd = (bits >> 16) & 1u;
  const uint32_t result = (bits + 0x7fffu + odd) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : result);
}
