/* exp, log, the logistic function and SiLU, and sqrt, right for all numbers: infinities, huge ones
 * and NaN, where XNNPACK's differ. */
#include "simd/exp_log.h"

#define NP_FUNCTION_SIGMOID 0
#define NP_FUNCTION_SILU 1
#define NP_FUNCTION_EXP 2
#define NP_FUNCTION_SQRT 3
#define NP_FUNCTION_LOG 4
#define NP_FUNCTION_ROOT 5 /* to the power of 0.5: infinity of -infinity, where sqrt is NaN */
#define NP_FUNCTION_INVERSE_ROOT 6 /* to the power of -0.5 */

/* out[i] = function(x[i]). */
struct np_function_params {
  size_t count;
  int32_t function;
};

/* out = x · logistic(slope · x + cubic · x³) of `rows` rows of `columns`, times `factor` where
 * there is one; strides are those of rows. */
struct np_gate_params {
  size_t rows;
  size_t columns;
  ptrdiff_t x_offset;
  ptrdiff_t x_stride;
  ptrdiff_t factor_offset;
  ptrdiff_t factor_stride;
  float slope;
  float cubic;
  int32_t has_factor;
};

/* out[2 i] and out[2 i + 1] = softmax of x[2 i] and x[2 i + 1]; `count` pairs. Rows of two are
 * what XNNPACK's softmax is slowest at. */
struct np_softmax_pairs_params {
  size_t count;
};

#define TILE 4096

/* As pow has it: the powers of -0 are those of 0, and those of -infinity those of infinity. */
NP_INLINE float root_of(float x) {
  const float root = sqrtf(x == 0.0f ? 0.0f : x);
  return x == -INFINITY ? INFINITY : root;
}

NP_INLINE float sigmoid_of(float x) {
  const float s = logistic(x);
  return x != x ? x : s;
}

#define NP_FUNCTION_OF(name, expression)                                                         \
  NP_MULTIVERSIONED(void, name, (const float *in, float *out, size_t count), (in, out, count)) { \
    for (size_t i = 0; i < count; i++) out[i] = expression;                                      \
  }

NP_FUNCTION_OF(silu, in[i] * logistic(in[i]))
NP_FUNCTION_OF(sigmoid, sigmoid_of(in[i]))
NP_FUNCTION_OF(exponential, exponential_of(in[i]))
NP_FUNCTION_OF(logarithm, logarithm_of(in[i]))
NP_FUNCTION_OF(square_root, sqrtf(in[i]))
NP_FUNCTION_OF(roots, root_of(in[i]))
NP_FUNCTION_OF(inverse_roots, 1.0f / root_of(in[i]))

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
NP_MULTIVERSIONED(void, gate,
                  (const float *in, const float *factor, float *out, size_t count, float slope,
                   float cubic),
                  (in, factor, out, count, slope, cubic)) {
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

static void gate_part(void *context, size_t start, size_t count) {
  const np_job *job = context;
  const struct np_gate_params *p = job->params;
  const float *x = (const float *)job->inputs[0] + p->x_offset;
  const float *factors = p->has_factor ? (const float *)job->inputs[1] + p->factor_offset : NULL;
  for (size_t row = start; row < start + count; row++) {
    const ptrdiff_t at = (ptrdiff_t)row;
    gate(x + at * p->x_stride, factors == NULL ? NULL : factors + at * p->factor_stride,
         (float *)job->out + row * p->columns, p->columns, p->slope, p->cubic);
  }
}

int np_gate(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_gate_params *p = params;
  if (p->columns == 0) return 0;
  return np_run_tiles((np_job){params, inputs, out, NULL, 0}, gate_part, p->rows,
                      1 + TILE / p->columns, p->rows * p->columns * 16, NP_DISABLE_DENORMALS, workers);
}

static void part(void *context, size_t start, size_t count) {
  typedef void function(const float *, float *, size_t);
  static function *const functions[] = {
      [NP_FUNCTION_SIGMOID] = sigmoid,  [NP_FUNCTION_SILU] = silu,
      [NP_FUNCTION_EXP] = exponential,  [NP_FUNCTION_SQRT] = square_root,
      [NP_FUNCTION_LOG] = logarithm,    [NP_FUNCTION_ROOT] = roots,
      [NP_FUNCTION_INVERSE_ROOT] = inverse_roots,
  };
  const np_job *job = context;
  const struct np_function_params *p = job->params;
  functions[p->function]((const float *)job->inputs[0] + start, (float *)job->out + start, count);
}

int np_function(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_function_params *p = params;
  /* The logistic function counts on powers of e to vanish; for the others all numbers count. */
  const int vanish = p->function == NP_FUNCTION_SIGMOID || p->function == NP_FUNCTION_SILU;
  return np_run_tiles((np_job){params, inputs, out, NULL, 0}, part, p->count, TILE, p->count * 16,
                      vanish ? NP_DISABLE_DENORMALS : 0, workers);
}

NP_MULTIVERSIONED(void, softmax_pairs, (const float *in, float *out, size_t count),
                  (in, out, count)) {
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

static void pairs_part(void *context, size_t start, size_t count) {
  const np_job *job = context;
  softmax_pairs((const float *)job->inputs[0] + 2 * start, (float *)job->out + 2 * start, count);
}

int np_softmax_pairs(const void *params, const void *const *inputs, void *out,
                     np_workers *workers) {
  const size_t count = ((const struct np_softmax_pairs_params *)params)->count;
  return np_run_tiles((np_job){params, inputs, out, NULL, 0}, pairs_part, count, TILE, count * 32,
                      NP_DISABLE_DENORMALS, workers);
}
