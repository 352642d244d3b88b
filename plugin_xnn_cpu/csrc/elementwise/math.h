/* Activations and functions of a float that XNNPACK lacks, right for all numbers. Written for loops
 * that become vector code.
 *
 * Errors, in units in the last place of the result: erf 1.3, softplus 3.4, softsign 1.5, selu 1.5,
 * celu 1.0, mish and swish 4.3. sin, cos and tan up to 10^5, asin, acos, atan, sinh, cosh, asinh, acosh and
 * atanh are computed in double and rounded once: 0.51. tests/test_math_functions.py checks them. */
#pragma once

#include "simd/exp_log.h"

NP_INLINE float with_sign_of(float magnitude, float x) {
  return np_float_of((np_bits_of(magnitude) & 0x7fffffffu) | (np_bits_of(x) & 0x80000000u));
}

/* As pow has it: the powers of -0 are those of 0, and those of -infinity those of infinity. */
NP_INLINE float root_of(float x) {
  const float root = sqrtf(x == 0.0f ? 0.0f : x);
  return x == -INFINITY ? INFINITY : root;
}

NP_INLINE float sigmoid_of(float x) {
  const float s = logistic(x);
  return x != x ? x : s;
}

/* Up to 0.89 an odd polynomial; beyond 1 - exp(-x · polynomial), 1 from 4 on. Both are of least
 * relative error: 3e-10. */
NP_INLINE float erf_of(float x) {
  const float t = fabsf(x), s = x * x;
  const float p = NP_POLYNOMIAL(7, s, 0.128379167f, -0.37612635f, 0.11283715f, -0.0268605084f,
                                0.00520385912f, -0.000817563885f, 8.51310226e-05f);
  const float near = x + x * p;
  const float b = t < 4.0f ? t : 4.0f;
  const float q = NP_POLYNOMIAL(7, b, 1.12862573f, 0.635245077f, 0.106079703f, -0.0236249522f,
                                0.00357685954f, -0.00030649173f, 9.58491954e-06f);
  const float far = with_sign_of(1.0f - exp_of_minus_magnitude(b * q), x);
  return t < 0.89f ? near : t >= 0.89f ? far : x;
}

/* exp(x) - 1: 2^n (1 + e) - 1 = 2^n e + (2^n - 1), where e = exp(r) - 1. */
NP_INLINE float expm1_of(float x) {
  /* NaN fails the first comparison: no NaN reaches the cast to an integer. */
  float t = x > -30.0f ? x : -30.0f;
  t = t > 88.7f ? 88.7f : t;
  const float n = rintf(t * 1.44269504f);
  const float r = (t - n * 0.693359375f) + n * 2.12194440e-4f;
  const float p =
      NP_POLYNOMIAL(5, r, 0.49999998f, 0.166665387f, 0.0416672213f, 0.008367181f, 0.00138823932f);
  const float e = r + r * r * p;
  const float half = power_of_two((int32_t)n - 1);
  const float result = 2.0f * (half * e + (half - 0.5f));
  return x != x ? x : x > 88.72f ? INFINITY : result;
}

/* x, or alpha (exp(x) - 1) below 0: as above, where results cannot be infinite. */
NP_INLINE float elu_of(float x, float alpha) {
  const float t = x > -30.0f ? (x < 0.0f ? x : 0.0f) : -30.0f;
  const float n = rintf(t * 1.44269504f);
  const float r = (t - n * 0.693359375f) + n * 2.12194440e-4f;
  const float p =
      NP_POLYNOMIAL(5, r, 0.49999998f, 0.166665387f, 0.0416672213f, 0.008367181f, 0.00138823932f);
  const float e = r + r * r * p, power = power_of_two((int32_t)n);
  return x < 0.0f ? alpha * (power * e + (power - 1.0f)) : x;
}

NP_INLINE float softplus_of(float x) {
  const float e = exp_of_minus_magnitude(x);
  const float u = 1.0f + e;
  /* log(1 + e): what is lost when 1 is added is put back by the quotient. */
  const float l = u == 1.0f ? e : logarithm_of(u) * (e / (u - 1.0f));
  return x != x ? x : (x > 0.0f ? x : 0.0f) + l;
}

NP_INLINE float mish_of(float x) {
  const float t = x > 20.0f ? 20.0f : x;
  const float e = exponential_of(t);
  const float n = e * (e + 2.0f);
  return x * (n / (n + 2.0f));
}

NP_INLINE float celu_of(float x, float alpha) {
  const float below = alpha * expm1_of(x / alpha);
  return (x > 0.0f ? x : 0.0f) + (below < 0.0f ? below : below != below ? x : 0.0f);
}

NP_INLINE float selu_of(float x, float alpha, float gamma) {
  return x > 0.0f ? gamma * x : gamma * (alpha * expm1_of(x));
}

NP_INLINE float hard_sigmoid_of(float x, float alpha, float beta) {
  const float line = alpha * x + beta;
  const float above = line < 0.0f ? 0.0f : line;
  return above > 1.0f ? 1.0f : above;
}

NP_INLINE float swish_of(float x, float alpha) {
  const float z = alpha * x;
  return z != z ? z : x * logistic(z);
}

NP_INLINE float shrink_of(float x, float lambd, float bias) {
  return x < -lambd ? x + bias : x > lambd ? x - bias : 0.0f;
}

NP_INLINE double power_of_two_wide(int64_t n) { /* from -1022 to 1023 */
  const uint64_t bits = (uint64_t)(n + 1023) << 52;
  double power;
  memcpy(&power, &bits, sizeof power);
  return power;
}

/* exp of what is between -700 and 700. */
NP_INLINE double exp_wide(double x) {
  const double n = rint(x * 1.4426950408889634);
  const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  const double p =
      NP_POLYNOMIAL(8, r, 0.49999999999661981, 0.16666666667269478, 0.041666666963816143,
                    0.0083333330938353614, 0.0013888810867966896, 0.00019841540017745594,
                    2.4880951039537777e-05, 2.7492965270362088e-06);
  return (1.0 + (r + r * r * p)) * power_of_two_wide((int64_t)(int32_t)n);
}

/* log of what is positive, normal and finite. */
NP_INLINE double log_wide(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint64_t moved = bits - 0x3fe6a09e667f3bcdu; /* sqrt(1/2) */
  const double e = (double)(int32_t)((int64_t)moved >> 52);
  bits -= moved & 0xfff0000000000000u;
  double m;
  memcpy(&m, &bits, sizeof m);
  const double z = (m - 1.0) / (m + 1.0), s = z * z;
  const double p = NP_POLYNOMIAL(5, s, 0.66666666675776798, 0.39999995629629548, 0.2857210837894123,
                                 0.22176219357374446, 0.1958373636398528);
  return e * 0.6931471805599453 + (2.0 * z + z * s * p);
}

/* atan of what is at least 0; of infinity it is half of pi. */
NP_INLINE double atan_wide(double x) {
  const int far = x > 2.414213562373095, middle = x > 0.41421356237309503;
  const double top = far ? -1.0 : middle ? x - 1.0 : x;
  const double bottom = far ? x : middle ? x + 1.0 : 1.0;
  const double base = far ? 1.5707963267948966 : middle ? 0.7853981633974483 : 0.0;
  const double t = top / bottom, s = t * t;
  const double p =
      NP_POLYNOMIAL(6, s, -0.33333332498216406, 0.19999903821681309, -0.14282005149191521,
                    0.11044657683676072, -0.084760709811178392, 0.047436212638795397);
  return base + (t + t * s * p);
}

NP_INLINE float atan_of(float x) {
  const float t = (float)atan_wide(fabs((double)x));
  return x != x ? x : with_sign_of(t, x);
}

NP_INLINE float asin_of(float x) {
  const double t = fabs((double)x), rest = (1.0 - t) * (1.0 + t);
  const float y = (float)atan_wide(t / sqrt(rest > 0.0 ? rest : 0.0));
  return t <= 1.0 ? with_sign_of(y, x) : NAN;
}

NP_INLINE float acos_of(float x) {
  const double t = x, rest = (1.0 - t) / (1.0 + t);
  const float y = (float)(2.0 * atan_wide(sqrt(rest > 0.0 ? rest : 0.0)));
  return fabsf(x) <= 1.0f ? y : NAN;
}

NP_INLINE double bounded(double t) { return t < 100.0 ? t : 100.0; }

NP_INLINE float sinh_of(float x) {
  const double t = bounded(fabs((double)x)), s = t * t;
  const double e = exp_wide(t);
  const double near = t + t * s * (0.16666666666666666 + s * 0.008333333333333333);
  const float y = (float)(t < 0.01 ? near : 0.5 * (e - 1.0 / e));
  return x != x ? x : with_sign_of(y, x);
}

NP_INLINE float cosh_of(float x) {
  const double e = exp_wide(bounded(fabs((double)x)));
  return x != x ? x : (float)(0.5 * (e + 1.0 / e));
}

NP_INLINE float asinh_of(float x) {
  const double t = fabs((double)x), s = t * t;
  const double near = t - t * s * (0.16666666666666666 - s * 0.075);
  const float y = (float)(t < 0.01 ? near : log_wide(t + sqrt(s + 1.0)));
  return t < INFINITY ? with_sign_of(y, x) : x;
}

NP_INLINE float acosh_of(float x) {
  const double t = (double)x - 1.0, u = t > 0.0 ? t : 0.0;
  const double y = log_wide(1.0 + (u + sqrt(u * (u + 2.0))));
  return x >= 1.0f ? (x < INFINITY ? (float)y : x) : NAN;
}

NP_INLINE float atanh_of(float x) {
  const double t = fabs((double)x), s = t * t;
  const double rest = 1.0 - t, under = rest > 0.0 ? rest : 1.0;
  const double near = t + t * s * (0.3333333333333333 + s * 0.2);
  const float y = (float)(t < 0.01 ? near : 0.5 * log_wide((1.0 + t) / under));
  return t < 1.0 ? with_sign_of(y, x) : t == 1.0 ? with_sign_of(INFINITY, x) : NAN;
}

/* The sine and the cosine of x up to 10^5 less the nearest multiple n of half of pi; returns n. Of
 * half of pi a part has 33 bits, so that its multiples up to 2^20 are exact. */
NP_INLINE int32_t sine_and_cosine(float x, double *sine, double *cosine) {
  const double n = rint((double)x * 0.6366197723675814);
  const double r = ((double)x - n * 1.57079632673412561417e+00) - n * 6.07710050650619224932e-11;
  const double s = r * r;
  const double a =
      NP_POLYNOMIAL(5, s, -0.16666666666630245, 0.008333333325063353, -0.00019841263721243369,
                    2.7555338135014421e-06, -2.476034702154282e-08);
  const double b =
      NP_POLYNOMIAL(5, s, -0.49999999999488942, 0.041666666553343078, -0.0013888880654803425,
                    2.4798959745139921e-05, -2.7174717720162091e-07);
  *sine = r + r * s * a;
  *cosine = 1.0 + s * b;
  return (int32_t)n;
}

NP_INLINE float tan_near(float x) {
  double sine, cosine;
  const int odd = sine_and_cosine(x, &sine, &cosine) & 1;
  return with_sign_of((float)(odd ? -cosine / sine : sine / cosine),
                      (float)(odd ? -cosine * sine : sine * cosine));
}

NP_INLINE float sin_near(float x) {
  double sine, cosine;
  const int32_t n = sine_and_cosine(x, &sine, &cosine);
  const double found = n & 1 ? cosine : sine;
  return x == 0.0f ? x : (float)(n & 2 ? -found : found); /* -0 stays */
}

NP_INLINE float cos_near(float x) {
  double sine, cosine;
  const int32_t n = sine_and_cosine(x, &sine, &cosine);
  const double found = n & 1 ? sine : cosine;
  return (float)((n + 1) & 2 ? -found : found);
}
