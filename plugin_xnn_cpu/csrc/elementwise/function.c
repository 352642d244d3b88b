/* Functions of a float, right for all numbers: infinities, huge ones and NaN, where XNNPACK's
 * differ. */
#include "elementwise/activation.h"
#include "elementwise/math.h"

#define NP_FUNCTION_SIGMOID 0
#define NP_FUNCTION_SILU 1
#define NP_FUNCTION_EXP 2
#define NP_FUNCTION_SQRT 3
#define NP_FUNCTION_LOG 4
#define NP_FUNCTION_ROOT 5 /* to the power of 0.5: infinity of -infinity, where sqrt is NaN */
#define NP_FUNCTION_INVERSE_ROOT 6 /* to the power of -0.5 */
#define NP_FUNCTION_ERF 7
#define NP_FUNCTION_SOFTPLUS 8
#define NP_FUNCTION_SOFTSIGN 9
#define NP_FUNCTION_SELU 10
#define NP_FUNCTION_CELU 11
#define NP_FUNCTION_MISH 12
#define NP_FUNCTION_THRESHOLDED_RELU 13
#define NP_FUNCTION_SHRINK 14
#define NP_FUNCTION_HARD_SIGMOID 15
#define NP_FUNCTION_SWISH 16
#define NP_FUNCTION_TAN 17
#define NP_FUNCTION_ASIN 18
#define NP_FUNCTION_ACOS 19
#define NP_FUNCTION_ATAN 20
#define NP_FUNCTION_SINH 21
#define NP_FUNCTION_COSH 22
#define NP_FUNCTION_ASINH 23
#define NP_FUNCTION_ACOSH 24
#define NP_FUNCTION_ATANH 25
#define NP_FUNCTION_ELU 26
#define NP_FUNCTION_SIN 27
#define NP_FUNCTION_COS 28
#define NP_FUNCTION_TANH 29
#define NP_FUNCTION_RSQRT 30
#define NP_FUNCTION_GELU 31
#define NP_FUNCTION_TANH_GELU 32
#define NP_FUNCTION_HARD_SWISH 33

/* out[i] = function(x[i]), with up to two parameters. */
struct np_function_params {
  size_t count;
  int32_t function; /* NP_FUNCTION_* */
  float alpha;
  float beta;
};

#define TILE 4096

#define NP_FUNCTION_OF(name, expression)                     \
  NP_TILE(name) {                                            \
    const struct np_function_params *p = job->params;        \
    const float alpha = p->alpha, beta = p->beta;            \
    const float *in = (const float *)job->inputs[0] + start; \
    float *out = (float *)job->out + start;                  \
    (void)alpha, (void)beta;                                 \
    for (size_t i = 0; i < count; i++) {                     \
      const float x = in[i];                                 \
      out[i] = expression;                                   \
    }                                                        \
  }

NP_FUNCTION_OF(each_sigmoid, sigmoid_of(x))
NP_FUNCTION_OF(each_silu, x *logistic(x))
NP_FUNCTION_OF(each_exp, exponential_of(x))
NP_FUNCTION_OF(each_sqrt, sqrtf(x))
NP_FUNCTION_OF(each_log, logarithm_of(x))
NP_FUNCTION_OF(each_root, root_of(x))
NP_FUNCTION_OF(each_inverse_root, 1.0f / root_of(x))
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
NP_FUNCTION_OF(each_sin_near, sin_near(x))
NP_FUNCTION_OF(each_cos_near, cos_near(x))
NP_FUNCTION_OF(each_tan_near, tan_near(x))
NP_FUNCTION_OF(each_asin, asin_of(x))
NP_FUNCTION_OF(each_acos, acos_of(x))
NP_FUNCTION_OF(each_atan, atan_of(x))
NP_FUNCTION_OF(each_sinh, sinh_of(x))
NP_FUNCTION_OF(each_cosh, cosh_of(x))
NP_FUNCTION_OF(each_asinh, asinh_of(x))
NP_FUNCTION_OF(each_acosh, acosh_of(x))
NP_FUNCTION_OF(each_atanh, atanh_of(x))
NP_FUNCTION_OF(each_elu, elu_of(x, alpha))
NP_FUNCTION_OF(each_rsqrt, 1.0f / sqrtf(x))

/* Arguments whose multiples of half of pi are not exact in double are left to the C library. */
NP_INLINE void periodic(np_job *job, size_t start, size_t count, np_tile *near,
                        float (*function)(float)) {
  const float *in = (const float *)job->inputs[0] + start;
  float *out = (float *)job->out + start;
  size_t i = 0;
  while (i < count && fabsf(in[i]) <= 1e5f) i++;
  if (i == count) {
    near(job, start, count);
    return;
  }
  for (size_t j = 0; j < count; j++) out[j] = function(in[j]);
}

static void each_sin(np_job *job, size_t start, size_t count) {
  periodic(job, start, count, each_sin_near, sinf);
}

static void each_cos(np_job *job, size_t start, size_t count) {
  periodic(job, start, count, each_cos_near, cosf);
}

static void each_tan(np_job *job, size_t start, size_t count) {
  periodic(job, start, count, each_tan_near, tanf);
}

#define NP_ACTIVATION_OF(name)                                                                \
  static void each_##name(np_job *job, size_t start, size_t count) {                          \
    const np_activations *code = NP_FROM_SSE4(&np_activations, NP_TARGET_BEST);               \
    code->name((const float *)job->inputs[0] + start, (float *)job->out + start, count);      \
  }

NP_ACTIVATION_OF(tanh)
NP_ACTIVATION_OF(gelu)
NP_ACTIVATION_OF(tanh_gelu)
NP_ACTIVATION_OF(hard_swish)

int np_function(np_job *job) {
  static np_tile *const functions[] = {
      each_sigmoid,      each_silu,        each_exp,      each_sqrt,         each_log,   each_root,
      each_inverse_root, each_erf,         each_softplus, each_softsign,     each_selu,  each_celu,
      each_mish,         each_thresholded, each_shrink,   each_hard_sigmoid, each_swish, each_tan,
      each_asin,         each_acos,        each_atan,     each_sinh,         each_cosh,  each_asinh,
      each_acosh,        each_atanh,       each_elu,      each_sin,          each_cos,
      each_tanh,         each_rsqrt,       each_gelu,     each_tanh_gelu,    each_hard_swish,
  };
  const struct np_function_params *p = job->params;
  /* The logistic function counts on powers of e to vanish; for the others all numbers count. */
  const int vanish = p->function == NP_FUNCTION_SIGMOID || p->function == NP_FUNCTION_SILU;
  return np_for_tiles(job, functions[p->function], p->count, TILE, p->count * 16,
                      vanish ? NP_DISABLE_DENORMALS : 0);
}
