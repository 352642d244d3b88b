/* exp, log, the logistic function and SiLU, and sqrt, right for all numbers: infinities, huge ones
 * and NaN, where XNNPACK's give something else.
 *
 * exp splits off a power of two; for the rest, in [-ln 2 / 2, ln 2 / 2], the polynomial of degree
 * 5 with value 1 at 0 and the least relative error is off by 9.2e-08 at most. Results below the least normal number are 0. */
#include <math.h>
#include <string.h>

#include "run.h"

#define TILE 4096

typedef struct {
  const void *params;
  const float *in;
  float *out;
} job;

/* exp of x - n ln 2, where n is x / ln 2, rounded. */
NP_INLINE float exp_of_rest(float x, float n) {
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f; /* ln 2 in two parts */
  float p = 0.00829030573f;
  p = p * r + 0.0418979749f;
  p = p * r + 0.166676372f;
  p = p * r + 0.499991506f;
  p = p * r + 0.999999702f;
  return p * r + 1.0f;
}

NP_INLINE float power_of_two(int32_t n) { /* from -127, which gives 0, to 128, infinity */
  const uint32_t bits = ((uint32_t)n + 127u) << 23;
  float power;
  memcpy(&power, &bits, sizeof power);
  return power;
}

/* exp(-|x|); 0 where |x| is above 87.68, and for NaN. The magnitude is bounded as an integer: the
 * bits of positive numbers have their order, and one instruction does it. */
NP_INLINE float exp_of_minus_magnitude(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits &= 0x7fffffffu;
  bits = bits < 0x42aff8d5u ? bits : 0x42aff8d5u; /* 87.986 */
  float magnitude;
  memcpy(&magnitude, &bits, sizeof magnitude);
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

/* log of m · 2^e with m in [sqrt(1/2), sqrt(2)): x - x²/2 + x³ · a polynomial in x = m - 1, with the
 * coefficients of S. Moshier's Cephes library. Subnormal numbers are made normal first. */
NP_INLINE float logarithm_of(float x) {
  int32_t given, bits;
  memcpy(&given, &x, sizeof given);
  const int tiny = (given & 0x7fffffff) < 0x00800000;
  const float normal = tiny ? x * 0x1p24f : x;
  memcpy(&bits, &normal, sizeof bits);
  const uint32_t moved = (uint32_t)bits - 0x3f3504f3u; /* sqrt(1/2) */
  const float e = (float)((int32_t)moved >> 23) - (tiny ? 24.0f : 0.0f);
  const uint32_t rest = (uint32_t)bits - (moved & ~0x7fffffu);
  float m;
  memcpy(&m, &rest, sizeof m);
  m -= 1.0f;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const float square = m * m;
  float result = p * m * square - 2.12194440e-4f * e; /* ln 2 in two parts */
  result = (m + (result - 0.5f * square)) + 0.693359375f * e;
  result = given >= 0x7f800000 ? x : result; /* infinity and NaN */
  result = given < 0 ? NAN : result;         /* below 0 */
  return (given & 0x7fffffff) == 0 ? -INFINITY : result;
}

NP_INLINE void silu_body(const float *in, float *out, size_t count) {
  for (size_t i = 0; i < count; i++) out[i] = in[i] * logistic(in[i]);
}
NP_FOR_EACH_ISA(void, silu, (const float *in, float *out, size_t count), (in, out, count))

NP_INLINE void sigmoid_body(const float *in, float *out, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const float s = logistic(in[i]);
    out[i] = in[i] != in[i] ? in[i] : s;
  }
}
NP_FOR_EACH_ISA(void, sigmoid, (const float *in, float *out, size_t count), (in, out, count))

NP_INLINE void exponential_body(const float *in, float *out, size_t count) {
  for (size_t i = 0; i < count; i++) out[i] = exponential_of(in[i]);
}
NP_FOR_EACH_ISA(void, exponential, (const float *in, float *out, size_t count), (in, out, count))

NP_INLINE void logarithm_body(const float *in, float *out, size_t count) {
  for (size_t i = 0; i < count; i++) out[i] = logarithm_of(in[i]);
}
NP_FOR_EACH_ISA(void, logarithm, (const float *in, float *out, size_t count), (in, out, count))

NP_INLINE void square_root_body(const float *in, float *out, size_t count) {
  for (size_t i = 0; i < count; i++) out[i] = sqrtf(in[i]);
}
NP_FOR_EACH_ISA(void, square_root, (const float *in, float *out, size_t count), (in, out, count))

/* As pow has it: the powers of -0 are those of 0, and those of -infinity those of infinity. */
NP_INLINE float root_of(float x) {
  const float root = sqrtf(x == 0.0f ? 0.0f : x);
  return x == -INFINITY ? INFINITY : root;
}

NP_INLINE void roots_body(const float *in, float *out, size_t count) {
  for (size_t i = 0; i < count; i++) out[i] = root_of(in[i]);
}
NP_FOR_EACH_ISA(void, roots, (const float *in, float *out, size_t count), (in, out, count))

NP_INLINE void inverse_roots_body(const float *in, float *out, size_t count) {
  for (size_t i = 0; i < count; i++) out[i] = 1.0f / root_of(in[i]);
}
NP_FOR_EACH_ISA(void, inverse_roots, (const float *in, float *out, size_t count), (in, out, count))

NP_INLINE void gate_of(const float *in, const float *factor, float *out, size_t count, float slope,
                       float cubic, const int multiplies, const int is_cubic) {
  for (size_t i = 0; i < count; i++) {
    const float x = in[i];
    /* Without a cube there is none: 0 times an infinite one would be NaN. */
    const float steep = is_cubic ? slope + cubic * x * x : slope;
    const float gated = x * logistic(x * steep);
    out[i] = multiplies ? gated * factor[i] : gated;
  }
}

/* x · logistic(slope · x + cubic · x³), times `factor` if that is not NULL. */
NP_INLINE void gate_body(const float *in, const float *factor, float *out, size_t count,
                         float slope, float cubic) {
  if (factor == NULL) {
    if (cubic == 0.0f) {
      gate_of(in, factor, out, count, slope, cubic, 0, 0);
    } else {
      gate_of(in, factor, out, count, slope, cubic, 0, 1);
    }
  } else if (cubic == 0.0f) {
    gate_of(in, factor, out, count, slope, cubic, 1, 0);
  } else {
    gate_of(in, factor, out, count, slope, cubic, 1, 1);
  }
}
NP_FOR_EACH_ISA(void, gate,
                (const float *in, const float *factor, float *out, size_t count, float slope,
                 float cubic),
                (in, factor, out, count, slope, cubic))

typedef struct {
  const struct np_gate_params *params;
  const float *x;
  const float *factor;
  float *out;
} gate_job;

static void gate_part(void *context, size_t start, size_t count) {
  const gate_job *task = context;
  const struct np_gate_params *p = task->params;
  for (size_t row = start; row < start + count; row++) {
    const ptrdiff_t at = (ptrdiff_t)row;
    const float *factor = task->factor == NULL ? NULL : task->factor + at * p->factor_stride;
    gate(task->x + at * p->x_stride, factor, task->out + row * p->columns, p->columns, p->slope,
         p->cubic);
  }
}

int np_gate(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_gate_params *p = params;
  if (p->rows == 0 || p->columns == 0) return 0;
  const float *factor = p->has_factor ? (const float *)inputs[1] + p->factor_offset : NULL;
  gate_job task = {p, (const float *)inputs[0] + p->x_offset, factor, out};
  np_workers *const used = p->rows * p->columns * 4 < NP_SMALL / 4 ? NULL : workers;
  const size_t tile = 1 + TILE / p->columns;
  np_divide_tiles(used, gate_part, &task, p->rows, tile, NP_DISABLE_DENORMALS);
  return 0;
}

static void part(void *context, size_t start, size_t count) {
  const job *task = context;
  const float *in = task->in + start;
  float *out = task->out + start;
  switch (((const struct np_function_params *)task->params)->function) {
    case NP_FUNCTION_SIGMOID:
      sigmoid(in, out, count);
      break;
    case NP_FUNCTION_SILU:
      silu(in, out, count);
      break;
    case NP_FUNCTION_EXP:
      exponential(in, out, count);
      break;
    case NP_FUNCTION_LOG:
      logarithm(in, out, count);
      break;
    case NP_FUNCTION_ROOT:
      roots(in, out, count);
      break;
    case NP_FUNCTION_INVERSE_ROOT:
      inverse_roots(in, out, count);
      break;
    default:
      square_root(in, out, count);
  }
}

int np_function(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_function_params *p = params;
  job task = {p, inputs[0], out};
  if (p->count == 0) return 0;
  np_workers *const used = p->count * 4 < NP_SMALL / 4 ? NULL : workers;
  /* The logistic function counts on powers of e to vanish; for the others all numbers count. */
  const int vanish = p->function == NP_FUNCTION_SIGMOID || p->function == NP_FUNCTION_SILU;
  np_divide_tiles(used, part, &task, p->count, TILE, vanish ? NP_DISABLE_DENORMALS : 0);
  return 0;
}

NP_INLINE void softmax_pairs_body(const float *in, float *out, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const float d = in[2 * i] - in[2 * i + 1];
    const float most = d < 0.0f ? in[2 * i + 1] : in[2 * i];
    const float e = exp_of_minus_magnitude(d);
    const float large = 1.0f / (1.0f + e) + (most - most); /* NaN where that is infinite */
    const float small = e * large;
    out[2 * i] = d != d ? d : d < 0.0f ? small : large;
    out[2 * i + 1] = d != d ? d : d < 0.0f ? large : small;
  }
}
NP_FOR_EACH_ISA(void, softmax_pairs, (const float *in, float *out, size_t count), (in, out, count))

static void pairs_part(void *context, size_t start, size_t count) {
  const job *task = context;
  softmax_pairs(task->in + 2 * start, task->out + 2 * start, count);
}

int np_softmax_pairs(const void *params, const void *const *inputs, void *out,
                     np_workers *workers) {
  const struct np_softmax_pairs_params *p = params;
  job task = {p, inputs[0], out};
  if (p->count == 0) return 0;
  np_workers *const used = p->count * 8 < NP_SMALL / 4 ? NULL : workers;
  np_divide_tiles(used, pairs_part, &task, p->count, TILE, NP_DISABLE_DENORMALS);
  return 0;
}
