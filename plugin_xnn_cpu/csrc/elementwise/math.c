/* Activations and functions of a float that XNNPACK lacks, right for all numbers.
 *
 * Errors, in units in the last place of the result: erf 1.3, softplus 3.4, softsign 1.5, selu 1.5,
 * celu 1.0, mish and swish 4.3. tan up to 10^5, asin, acos, atan, sinh, cosh, asinh, acosh and
 * atanh are computed in double and rounded once: 0.51. tests/test_math_functions.py checks them. */
#include "simd/exp_log.h"

#define NP_MATH_ERF 0
#define NP_MATH_SOFTPLUS 1
#define NP_MATH_SOFTSIGN 2
#define NP_MATH_SELU 3
#define NP_MATH_CELU 4
#define NP_MATH_MISH 5
#define NP_MATH_THRESHOLDED_RELU 6
#define NP_MATH_SHRINK 7
#define NP_MATH_HARD_SIGMOID 8
#define NP_MATH_SWISH 9
#define NP_MATH_TAN 10
#define NP_MATH_ASIN 11
#define NP_MATH_ACOS 12
#define NP_MATH_ATAN 13
#define NP_MATH_SINH 14
#define NP_MATH_COSH 15
#define NP_MATH_ASINH 16
#define NP_MATH_ACOSH 17
#define NP_MATH_ATANH 18

/* float out[i] = f(in[i]), with up to two parameters. */
struct np_math_params {
  size_t count;
  int32_t function; /* NP_MATH_* */
  float alpha;
  float beta;
};

#define TILE 4096

NP_INLINE float with_sign_of(float magnitude, float x) {
  return np_float_of((np_bits_of(magnitude) & 0x7fffffffu) | (np_bits_of(x) & 0x80000000u));
}

/* Up to 0.89 an odd polynomial; beyond 1 - exp(-x · polynomial), 1 from 4 on. Both are of least
 * relative error: 3e-10. */
NP_INLINE float erf_of(float x) {
  const float t = fabsf(x), s = x * x;
  float p = 8.51310226e-05f;
  p = p * s - 0.000817563885f;
  p = p * s + 0.00520385912f;
  p = p * s - 0.0268605084f;
  p = p * s + 0.11283715f;
  p = p * s - 0.37612635f;
  p = p * s + 0.128379167f;
  const float near = x + x * p;
  const float b = t < 4.0f ? t : 4.0f;
  float q = 9.58491954e-06f;
  q = q * b - 0.00030649173f;
  q = q * b + 0.00357685954f;
  q = q * b - 0.0236249522f;
  q = q * b + 0.106079703f;
  q = q * b + 0.635245077f;
  q = q * b + 1.12862573f;
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
  float p = 0.00138823932f;
  p = p * r + 0.008367181f;
  p = p * r + 0.0416672213f;
  p = p * r + 0.166665387f;
  p = p * r + 0.49999998f;
  const float e = r + r * r * p;
  const float half = power_of_two((int32_t)n - 1);
  const float result = 2.0f * (half * e + (half - 0.5f));
  return x != x ? x : x > 88.72f ? INFINITY : result;
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
  double p = 2.7492965270362088e-06;
  p = p * r + 2.4880951039537777e-05;
  p = p * r + 0.00019841540017745594;
  p = p * r + 0.0013888810867966896;
  p = p * r + 0.0083333330938353614;
  p = p * r + 0.041666666963816143;
  p = p * r + 0.16666666667269478;
  p = p * r + 0.49999999999661981;
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
  double p = 0.1958373636398528;
  p = p * s + 0.22176219357374446;
  p = p * s + 0.2857210837894123;
  p = p * s + 0.39999995629629548;
  p = p * s + 0.66666666675776798;
  return e * 0.6931471805599453 + (2.0 * z + z * s * p);
}

/* atan of what is at least 0; of infinity it is half of pi. */
NP_INLINE double atan_wide(double x) {
  const int far = x > 2.414213562373095, middle = x > 0.41421356237309503;
  const double top = far ? -1.0 : middle ? x - 1.0 : x;
  const double bottom = far ? x : middle ? x + 1.0 : 1.0;
  const double base = far ? 1.5707963267948966 : middle ? 0.7853981633974483 : 0.0;
  const double t = top / bottom, s = t * t;
  double p = 0.047436212638795397;
  p = p * s - 0.084760709811178392;
  p = p * s + 0.11044657683676072;
  p = p * s - 0.14282005149191521;
  p = p * s + 0.19999903821681309;
  p = p * s - 0.33333332498216406;
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

/* A part of half of pi in 33 bits, so that multiples of it up to 2^20 are exact, and the rest. */
NP_INLINE float tan_near(float x) {
  const double n = rint((double)x * 0.6366197723675814);
  const double r = ((double)x - n * 1.57079632673412561417e+00) - n * 6.07710050650619224932e-11;
  const double s = r * r;
  double a = -2.476034702154282e-08;
  a = a * s + 2.7555338135014421e-06;
  a = a * s - 0.00019841263721243369;
  a = a * s + 0.008333333325063353;
  a = a * s - 0.16666666666630245;
  const double sine = r + r * s * a;
  double b = -2.7174717720162091e-07;
  b = b * s + 2.4798959745139921e-05;
  b = b * s - 0.0013888880654803425;
  b = b * s + 0.041666666553343078;
  b = b * s - 0.49999999999488942;
  const double cosine = 1.0 + s * b;
  const int odd = (int32_t)n & 1;
  return with_sign_of((float)(odd ? -cosine / sine : sine / cosine),
                      (float)(odd ? -cosine * sine : sine * cosine));
}

#define NP_FUNCTION_OF(name, expression)                                                  \
  NP_MULTIVERSIONED(void, name,                                                           \
                    (const float *in, float *out, size_t count, float alpha, float beta), \
                    (in, out, count, alpha, beta)) {                                      \
    (void)alpha;                                                                          \
    (void)beta;                                                                           \
    for (size_t i = 0; i < count; i++) {                                                  \
      const float x = in[i];                                                              \
      out[i] = expression;                                                                \
    }                                                                                     \
  }

NP_FUNCTION_OF(each_erf, erf_of(x))
NP_FUNCTION_OF(each_softplus, softplus_of(x))
NP_FUNCTION_OF(each_softsign, x / (1.0f + fabsf(x)))
NP_FUNCTION_OF(each_selu, selu_of(x, alpha, beta))
NP_FUNCTION_OF(each_celu, celu_of(x, alpha))
NP_FUNCTION_OF(each_mish, mish_of(x))
NP_FUNCTION_OF(each_thresholded, x > alpha ? x : 0.0f)
NP_FUNCTION_OF(each_shrink, shrink_of(x, alpha, beta))
NP_FUNCTION_OF(each_hard_sigmoid, hard_sigmoid_of(x, alpha, beta))
NP_FUNCTION_OF(each_swish, swish_of(x, alpha))
NP_FUNCTION_OF(each_tan, tan_near(x))
NP_FUNCTION_OF(each_asin, asin_of(x))
NP_FUNCTION_OF(each_acos, acos_of(x))
NP_FUNCTION_OF(each_atan, atan_of(x))
NP_FUNCTION_OF(each_sinh, sinh_of(x))
NP_FUNCTION_OF(each_cosh, cosh_of(x))
NP_FUNCTION_OF(each_asinh, asinh_of(x))
NP_FUNCTION_OF(each_acosh, acosh_of(x))
NP_FUNCTION_OF(each_atanh, atanh_of(x))

/* Arguments whose multiples of half of pi are not exact in double are left to the C library. */
static void each_tangent(const float *in, float *out, size_t count) {
  size_t i = 0;
  while (i < count && fabsf(in[i]) <= 1e5f) i++;
  if (i == count) {
    each_tan(in, out, count, 0.0f, 0.0f);
    return;
  }
  for (size_t j = 0; j < count; j++) out[j] = tanf(in[j]);
}

static void part(void *context, size_t start, size_t count) {
  typedef void each(const float *, float *, size_t, float, float);
  static each *const functions[] = {
      each_erf,         each_softplus, each_softsign,     each_selu,  each_celu,  each_mish,
      each_thresholded, each_shrink,   each_hard_sigmoid, each_swish, NULL,       each_asin,
      each_acos,        each_atan,     each_sinh,         each_cosh,  each_asinh, each_acosh,
      each_atanh,
  };
  const np_job *job = context;
  const struct np_math_params *p = job->params;
  const float *in = (const float *)job->inputs[0] + start;
  float *out = (float *)job->out + start;
  if (p->function == NP_MATH_TAN) {
    each_tangent(in, out, count);
  } else {
    functions[p->function](in, out, count, p->alpha, p->beta);
  }
}

int np_math(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const size_t count = ((const struct np_math_params *)params)->count;
  return np_run_tiles((np_job){params, inputs, out, NULL, 0}, part, count, TILE, count * 16, 0,
                      workers);
}
