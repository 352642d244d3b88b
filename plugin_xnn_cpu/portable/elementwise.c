/* Elementwise operators of float32 with one and two operands, and of int8 with two. */
#include <math.h>

#include "operator.h"

/* One operand */

typedef struct {
  struct xnn_operator base;
  enum xnn_unary_operator function;
  union xnn_unary_params params;
  size_t count;
} unary;

static float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }

static float approximate_gelu(float x) {
  return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

static float hard_swish(float x) { return x * np_portable_clamp(x / 6.0f + 0.5f, 0.0f, 1.0f); }

static void run_unary(const struct xnn_operator *op) {
  const unary *u = (const unary *)op;
  const float *in = op->a;
  float *out = op->out;
  const float alpha = u->params.elu.alpha, slope = u->params.leaky_relu.negative_slope;
  const float low = u->params.clamp.min, high = u->params.clamp.max;
#define EACH(case_, expression)                \
  case case_:                                  \
    for (size_t i = 0; i < u->count; i++) {    \
      const float x = in[i];                   \
      out[i] = (expression);                   \
    }                                          \
    return;
  switch (u->function) {
    EACH(xnn_unary_abs, fabsf(x))
    EACH(xnn_unary_approxgelu, approximate_gelu(x))
    EACH(xnn_unary_bankers_rounding, rintf(x))
    EACH(xnn_unary_ceiling, ceilf(x))
    EACH(xnn_unary_clamp, np_portable_clamp(x, low, high))
    EACH(xnn_unary_cosine, cosf(x))
    EACH(xnn_unary_elu, x < 0.0f ? alpha * expm1f(x) : x)
    EACH(xnn_unary_exp, expf(x))
    EACH(xnn_unary_floor, floorf(x))
    EACH(xnn_unary_gelu, gelu(x))
    EACH(xnn_unary_hardswish, hard_swish(x))
    EACH(xnn_unary_leaky_relu, x < 0.0f ? slope * x : x)
    EACH(xnn_unary_log, logf(x))
    EACH(xnn_unary_negate, -x)
    EACH(xnn_unary_reciprocal_square_root, 1.0f / sqrtf(x))
    EACH(xnn_unary_sigmoid, sigmoid(x))
    EACH(xnn_unary_sine, sinf(x))
    EACH(xnn_unary_square_root, sqrtf(x))
    EACH(xnn_unary_square, x * x)
    EACH(xnn_unary_tanh, tanhf(x))
    default: return; /* refused by create */
  }
#undef EACH
}

enum xnn_status xnn_create_unary_elementwise_nc(
    enum xnn_unary_operator op_type, enum xnn_datatype input_datatype,
    enum xnn_datatype output_datatype, const union xnn_unary_params *params, const void *lut,
    const struct xnn_quantization_params *input_quantization,
    const struct xnn_quantization_params *output_quantization, uint32_t flags,
    xnn_operator_t *op_out) {
  (void)lut, (void)input_quantization, (void)output_quantization, (void)flags;
  if (input_datatype != xnn_datatype_fp32 || output_datatype != xnn_datatype_fp32 ||
      op_type < xnn_unary_abs || op_type > xnn_unary_tanh || op_type == xnn_unary_convert) {
    return xnn_status_unsupported_parameter;
  }
  unary *u = np_portable_new(sizeof *u, run_unary, op_out);
  if (u == NULL) return xnn_status_out_of_memory;
  u->function = op_type;
  if (params != NULL) u->params = *params;
  return xnn_status_success;
}

enum xnn_status xnn_reshape_unary_elementwise_nc(xnn_operator_t op, size_t batch_size,
                                                 size_t channels, size_t input_stride,
                                                 size_t output_stride, pthreadpool_t threadpool) {
  (void)threadpool;
  if (!np_portable_is(op, run_unary)) return xnn_status_invalid_parameter;
  if (batch_size > 1 && (input_stride != channels || output_stride != channels)) {
    return xnn_status_unsupported_parameter;
  }
  ((unary *)op)->count = batch_size * channels;
  op->sized = true;
  return xnn_status_success;
}

enum xnn_status xnn_setup_unary_elementwise_nc(xnn_operator_t op, const void *input, void *output) {
  return np_portable_set_up(op, input, NULL, output);
}

/* Two operands */

typedef struct {
  struct xnn_operator base;
  enum xnn_binary_operator function;
  bool is_int8;
  struct xnn_quantization_params quantized[3]; /* of both operands and the result */
  int32_t first, second, bias, shift;          /* of an addition of int8 */
  size_t sizes[NP_DIMS], strides[2][NP_DIMS];  /* of the result, outermost first; of operands */
} binary;

static float apply(enum xnn_binary_operator function, float a, float b) {
  switch (function) {
    case xnn_binary_add: return a + b;
    case xnn_binary_subtract: return a - b;
    case xnn_binary_multiply: return a * b;
    case xnn_binary_divide: return a / b;
    case xnn_binary_maximum: return a > b || isnan(a) ? a : b;
    case xnn_binary_minimum: return a < b || isnan(a) ? a : b;
    case xnn_binary_copysign: return copysignf(a, b);
    case xnn_binary_squared_difference: return (a - b) * (a - b);
    case xnn_binary_prelu: return a < 0.0f ? a * b : a;
    default: return NAN; /* refused by create */
  }
}

static void run_floats(const binary *op, const float *a, const float *b, float *out) {
  const size_t count = op->sizes[NP_DIMS - 1];
  const size_t step_a = op->strides[0][NP_DIMS - 1], step_b = op->strides[1][NP_DIMS - 1];
  /* The switch stands outside of the loops, so that these are vectorized. */
#define EACH(case_)                                                                      \
  case case_:                                                                            \
    if (step_a == 1 && step_b == 1) {                                                    \
      for (size_t i = 0; i < count; i++) out[i] = apply(case_, a[i], b[i]);              \
    } else {                                                                             \
      for (size_t i = 0; i < count; i++) out[i] = apply(case_, a[i * step_a], b[i * step_b]); \
    }                                                                                    \
    return;
  switch (op->function) {
    EACH(xnn_binary_add)
    EACH(xnn_binary_subtract)
    EACH(xnn_binary_multiply)
    EACH(xnn_binary_divide)
    EACH(xnn_binary_maximum)
    EACH(xnn_binary_minimum)
    EACH(xnn_binary_copysign)
    EACH(xnn_binary_squared_difference)
    EACH(xnn_binary_prelu)
    default: return;
  }
#undef EACH
}

static void run_int8(const binary *op, const int8_t *a, const int8_t *b, int8_t *out) {
  const size_t count = op->sizes[NP_DIMS - 1];
  const size_t step_a = op->strides[0][NP_DIMS - 1], step_b = op->strides[1][NP_DIMS - 1];
  const struct xnn_quantization_params x = op->quantized[0], y = op->quantized[1];
  const struct xnn_quantization_params z = op->quantized[2];
  if (op->function == xnn_binary_multiply) {
    const float low = -128.0f - (float)z.zero_point, high = 127.0f - (float)z.zero_point;
    const float scale = x.scale * y.scale / z.scale;
    for (size_t i = 0; i < count; i++) {
      const int32_t scaled = (a[i * step_a] - x.zero_point) * (b[i * step_b] - y.zero_point);
      out[i] = (int8_t)(np_portable_round((float)scaled * scale, low, high) + z.zero_point);
    }
    return;
  }
  for (size_t i = 0; i < count; i++) {
    const int32_t sum = a[i * step_a] * op->first + b[i * step_b] * op->second + op->bias;
    const int32_t value = (sum >> op->shift) + z.zero_point;
    out[i] = (int8_t)(value < -128 ? -128 : value > 127 ? 127 : value);
  }
}

/* Sets the fixed-point multipliers of an addition: 21 bits for the larger ratio of scales, as our
 * convolutions that add a residual have them (native/problems/quantization.py). */
static void set_multipliers(binary *op) {
  const struct xnn_quantization_params x = op->quantized[0], y = op->quantized[1];
  const double first = x.scale / op->quantized[2].scale;
  const double second = y.scale / op->quantized[2].scale;
  int exponent;
  (void)frexp(first > second ? first : second, &exponent);
  op->shift = 21 - exponent;
  op->first = (int32_t)rint(ldexp(first, op->shift));
  op->second = (int32_t)rint(ldexp(second, op->shift));
  if (op->function == xnn_binary_subtract) op->second = -op->second;
  op->bias = (1 << (op->shift - 1)) - op->first * x.zero_point - op->second * y.zero_point;
}

static void run_binary(const struct xnn_operator *base) {
  const binary *op = (const binary *)base;
  size_t outer = 1, index[NP_DIMS] = {0};
  for (size_t d = 0; d + 1 < NP_DIMS; d++) outer *= op->sizes[d];
  const size_t count = op->sizes[NP_DIMS - 1];
  size_t a = 0, b = 0;
  for (size_t row = 0; row < outer; row++) {
    if (op->is_int8) {
      run_int8(op, (const int8_t *)base->a + a, (const int8_t *)base->b + b,
               (int8_t *)base->out + row * count);
    } else {
      run_floats(op, (const float *)base->a + a, (const float *)base->b + b,
                 (float *)base->out + row * count);
    }
    for (size_t d = NP_DIMS - 1; d-- > 0;) {
      a += op->strides[0][d];
      b += op->strides[1][d];
      if (++index[d] < op->sizes[d]) break;
      a -= op->strides[0][d] * op->sizes[d];
      b -= op->strides[1][d] * op->sizes[d];
      index[d] = 0;
    }
  }
}

enum xnn_status xnn_create_binary_elementwise_nd(
    enum xnn_binary_operator type, enum xnn_datatype datatype,
    const struct xnn_quantization_params *a_quantization,
    const struct xnn_quantization_params *b_quantization,
    const struct xnn_quantization_params *output_quantization, uint32_t flags,
    xnn_operator_t *binary_op_out) {
  (void)flags;
  const bool is_int8 = datatype == xnn_datatype_qint8;
  if (type < xnn_binary_add || type > xnn_binary_prelu ||
      (is_int8 ? type > xnn_binary_multiply : datatype != xnn_datatype_fp32)) {
    return xnn_status_unsupported_parameter;
  }
  binary *op = np_portable_new(sizeof *op, run_binary, binary_op_out);
  if (op == NULL) return xnn_status_out_of_memory;
  op->function = type;
  op->is_int8 = is_int8;
  if (is_int8) {
    op->quantized[0] = *a_quantization;
    op->quantized[1] = *b_quantization;
    op->quantized[2] = *output_quantization;
    if (type != xnn_binary_multiply) set_multipliers(op);
  }
  return xnn_status_success;
}

/* Extends a shape by axes of size 1 in front. */
static void extend(size_t rank, const size_t *shape, size_t *sizes) {
  for (size_t d = 0; d < NP_DIMS; d++) {
    sizes[d] = d + rank < NP_DIMS ? 1 : shape[d + rank - NP_DIMS];
  }
}

enum xnn_status xnn_reshape_binary_elementwise_nd(
    xnn_operator_t binary_op, size_t num_input1_dims, const size_t *input1_shape,
    size_t num_input2_dims, const size_t *input2_shape, pthreadpool_t threadpool) {
  (void)threadpool;
  if (!np_portable_is(binary_op, run_binary)) return xnn_status_invalid_parameter;
  if (num_input1_dims > NP_DIMS || num_input2_dims > NP_DIMS) {
    return xnn_status_unsupported_parameter;
  }
  binary *op = (binary *)binary_op;
  size_t sizes[2][NP_DIMS], steps[2] = {1, 1};
  extend(num_input1_dims, input1_shape, sizes[0]);
  extend(num_input2_dims, input2_shape, sizes[1]);
  for (size_t d = NP_DIMS; d-- > 0;) {
    const size_t x = sizes[0][d], y = sizes[1][d];
    if (x != y && x != 1 && y != 1) return xnn_status_invalid_parameter;
    op->sizes[d] = x == 1 ? y : x;
    for (size_t i = 0; i < 2; i++) {
      op->strides[i][d] = sizes[i][d] == 1 ? 0 : steps[i];
      steps[i] *= sizes[i][d];
    }
  }
  binary_op->sized = true;
  return xnn_status_success;
}

enum xnn_status xnn_setup_binary_elementwise_nd(xnn_operator_t binary_op, const void *input1,
                                                const void *input2, void *output) {
  return np_portable_set_up(binary_op, input1, input2, output);
}
