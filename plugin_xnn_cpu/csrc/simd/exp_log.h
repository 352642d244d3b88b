/* exp, log and the logistic function of a float, right for all numbers: infinities, huge ones and
 * NaN. Written for loops that become vector code.
 *
 * exp splits off a power of two; for the rest, in [-ln 2 / 2, ln 2 / 2], the polynomial of degree
 * 5 with value 1 at 0 and the least relative error is off by 9.2e-08 at most. Results below the
 * least normal number are 0. */
#pragma once

#include <math.h>

#include "runtime/kernel.h"
#include "simd/polynomial.h"

/* exp of x - n ln 2, where n is x / ln 2, rounded. */
NP_INLINE float exp_of_rest(float x, float n) {
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f; /* ln 2 in two parts */
  return NP_POLYNOMIAL(6, r, 1.0f, 0.999999702f, 0.499991506f, 0.166676372f, 0.0418979749f,
                       0.00829030573f);
}

NP_INLINE float power_of_two(int32_t n) { /* from -127, whose power is 0, to 128, infinity */
  return np_float_of(((uint32_t)n + 127u) << 23);
}

/* exp(-|x|); 0 where |x| is above 87.68, and for NaN. The magnitude is bounded as an integer: the
 * bits of positive numbers have their order, and one instruction does it. */
NP_INLINE float exp_of_minus_magnitude(float x) {
  const uint32_t bits = np_bits_of(x) & 0x7fffffffu;
  const float magnitude = np_float_of(bits < 0x42aff8d5u ? bits : 0x42aff8d5u); /* 87.986 */
  const float n = rintf(magnitude * -1.44269504f);
  return exp_of_rest(-magnitude, n) * power_of_two((int32_t)n);
}

/* 1 / (1 + exp(-x)), of NaN some number. */
NP_INLINE float logistic(float x) {
  const float e = exp_of_minus_magnitude(x);
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

NP_INLINE float exponential_of(float x) {
  float t = x < -88.0f ? -88.0f : x;
  t = t > 88.8f ? 88.8f : t;
  const float n = rintf(t * 1.44269504f);
  /* The largest results lie between 2^127 and 2^128: half of n twice. */
  const int32_t half = (int32_t)n >> 1;
  const int32_t rest = (int32_t)n - half;
  const float e = exp_of_rest(t, n) * power_of_two(half) * power_of_two(rest);
  return x < -87.3f ? 0.0f : e;
}

/* log of m · 2^e with m in [sqrt(1/2), sqrt(2)): x - x²/2 + x³ · a polynomial in x = m - 1, with
 * the coefficients of S. Moshier's Cephes library. Subnormal numbers are normalized first. */
NP_INLINE float logarithm_of(float x) {
  const int32_t given = (int32_t)np_bits_of(x);
  const int tiny = (given & 0x7fffffff) < 0x00800000;
  const float normal = tiny ? x * 0x1p24f : x;
  const uint32_t bits = np_bits_of(normal), moved = bits - 0x3f3504f3u; /* sqrt(1/2) */
  const float e = (float)((int32_t)moved >> 23) - (tiny ? 24.0f : 0.0f);
  const float m = np_float_of(bits - (moved & ~0x7fffffu)) - 1.0f;
  const float p = NP_POLYNOMIAL(9, m, 3.3333331174e-1f, -2.4999993993e-1f, 2.0000714765e-1f,
                                -1.6668057665e-1f, 1.4249322787e-1f, -1.2420140846e-1f,
                                1.1676998740e-1f, -1.1514610310e-1f, 7.0376836292e-2f);
  const float square = m * m;
  float result = p * m * square - 2.12194440e-4f * e; /* ln 2 in two parts */
  result = (m + (result - 0.5f * square)) + 0.693359375f * e;
  result = given >= 0x7f800000 ? x : result; /* infinity and NaN */
  result = given < 0 ? NAN : result;         /* below 0 */
  return (given & 0x7fffffff) == 0 ? -INFINITY : result;
}
