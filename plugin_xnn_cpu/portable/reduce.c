/* Reductions of float32 and means of int8 along axes, softmax of rows, and rows of int8 with their
 * own scales. */
#include <math.h>

#include "operator.h"

typedef struct {
  struct xnn_operator base;
  enum xnn_reduce_operator function;
  bool is_int8;
  struct xnn_quantization_params quantized[2]; /* of operand and result */
  size_t kept[NP_DIMS], kept_strides[NP_DIMS];
  size_t reduced[NP_DIMS], reduced_strides[NP_DIMS];
  size_t results, terms; /* elements of the result, and of the operand for each */
} reduction;

/* The offset of the element whose index, in a dense array of `sizes`, is `at`. */
static size_t offset_of(size_t at, const size_t *sizes, const size_t *strides) {
  size_t offset = 0;
  for (size_t d = NP_DIMS; d-- > 0;) {
    offset += at % sizes[d] * strides[d];
    at /= sizes[d];
  }
  return offset;
}

static double first_of(enum xnn_reduce_operator function) {
  return function == xnn_reduce_max ? -INFINITY : function == xnn_reduce_min ? INFINITY : 0.0;
}

static double with(enum xnn_reduce_operator function, double sum, double x) {
  switch (function) {
    case xnn_reduce_sum_squared:
    case xnn_reduce_mean_squared: return sum + x * x;
    case xnn_reduce_max: return x > sum || isnan(x) ? x : sum;
    case xnn_reduce_min: return x < sum || isnan(x) ? x : sum;
    default: return sum + x;
  }
}

static void run_reduction(const struct xnn_operator *base) {
  const reduction *op = (const reduction *)base;
  const bool is_mean = op->function == xnn_reduce_mean || op->function == xnn_reduce_mean_squared;
  /* Axes of the operand that are inner to all others are walked without division. */
  const size_t inner = op->reduced[NP_DIMS - 1], step = op->reduced_strides[NP_DIMS - 1];
  for (size_t i = 0; i < op->results; i++) {
    const size_t start = offset_of(i, op->kept, op->kept_strides);
    double found = first_of(op->function);
    for (size_t k = 0; k < op->terms; k += inner) {
      const size_t at = start + offset_of(k, op->reduced, op->reduced_strides);
      for (size_t j = 0; j < inner; j++) {
        const size_t from = at + j * step;
        const double x = op->is_int8
                             ? ((const int8_t *)base->a)[from] - op->quantized[0].zero_point
                             : ((const float *)base->a)[from];
        found = with(op->function, found, x);
      }
    }
    if (is_mean) found /= (double)op->terms;
    if (op->is_int8) {
      const int32_t zero = op->quantized[1].zero_point;
      const float value = (float)(found * op->quantized[0].scale / op->quantized[1].scale);
      ((int8_t *)base->out)[i] =
          (int8_t)(np_portable_round(value, -128.0f - (float)zero, 127.0f - (float)zero) + zero);
    } else {
      ((float *)base->out)[i] = (float)found;
    }
  }
}

enum xnn_status xnn_create_reduce_nd(enum xnn_reduce_operator reduce_operator_type,
                                     enum xnn_datatype datatype,
                                     const struct xnn_quantization_params *input_quantization,
                                     const struct xnn_quantization_params *output_quantization,
                                     uint32_t flags, xnn_operator_t *reduce_op_out) {
  const bool is_int8 = datatype == xnn_datatype_qint8;
  if (reduce_operator_type < xnn_reduce_sum || reduce_operator_type > xnn_reduce_min ||
      (flags & XNN_FLAG_KEEP_DIMS) == 0 ||
      (is_int8 ? reduce_operator_type != xnn_reduce_mean : datatype != xnn_datatype_fp32)) {
    return xnn_status_unsupported_parameter;
  }
  reduction *op = np_portable_new(sizeof *op, run_reduction, reduce_op_out);
  if (op == NULL) return xnn_status_out_of_memory;
  op->function = reduce_operator_type;
  op->is_int8 = is_int8;
  if (is_int8) {
    op->quantized[0] = *input_quantization;
    op->quantized[1] = *output_quantization;
  }
  return xnn_status_success;
}

enum xnn_status xnn_reshape_reduce_nd(xnn_operator_t reduce_op, size_t num_reduction_axes,
                                      const int64_t *reduction_axes, size_t num_input_dims,
                                      const size_t *input_shape, size_t *workspace_size,
                                      pthreadpool_t threadpool) {
  (void)threadpool;
  if (!np_portable_is(reduce_op, run_reduction)) return xnn_status_invalid_parameter;
  if (num_input_dims > NP_DIMS) return xnn_status_unsupported_parameter;
  reduction *op = (reduction *)reduce_op;
  op->results = op->terms = 1;
  for (size_t d = 0; d < NP_DIMS; d++) {
    op->kept[d] = op->reduced[d] = 1;
    op->kept_strides[d] = op->reduced_strides[d] = 0;
  }
  size_t stride = 1, kept = NP_DIMS, reduced = NP_DIMS;
  for (size_t d = num_input_dims; d-- > 0;) {
    bool is_reduced = false;
    for (size_t i = 0; i < num_reduction_axes; i++) {
      is_reduced = is_reduced || reduction_axes[i] == (int64_t)d;
    }
    if (is_reduced) {
      op->reduced[--reduced] = input_shape[d];
      op->reduced_strides[reduced] = stride;
      op->terms *= input_shape[d];
    } else {
      op->kept[--kept] = input_shape[d];
      op->kept_strides[kept] = stride;
      op->results *= input_shape[d];
    }
    stride *= input_shape[d];
  }
  *workspace_size = 0;
  reduce_op->sized = true;
  return xnn_status_success;
}

enum xnn_status xnn_setup_reduce_nd(xnn_operator_t op, void *workspace, const void *input,
                                    void *output) {
  (void)workspace;
  return np_portable_set_up(op, input, NULL, output);
}

/* Rows */

typedef struct {
  struct xnn_operator base;
  size_t rows, channels;
  struct xnn_quantization_params *ranges; /* of quantized rows */
} rows;

static enum xnn_status size_rows(xnn_operator_t op, size_t count, size_t channels,
                                 size_t input_stride, size_t output_stride) {
  if (input_stride != channels || output_stride != channels) {
    return xnn_status_unsupported_parameter;
  }
  ((rows *)op)->rows = count;
  ((rows *)op)->channels = channels;
  op->sized = true;
  return xnn_status_success;
}

static void run_softmax(const struct xnn_operator *base) {
  const rows *op = (const rows *)base;
  const float *in = base->a;
  float *out = base->out;
  for (size_t row = 0; row < op->rows; row++, in += op->channels, out += op->channels) {
    float largest = -INFINITY;
    double sum = 0.0;
    for (size_t i = 0; i < op->channels; i++) {
      largest = in[i] > largest || isnan(in[i]) ? in[i] : largest;
    }
    for (size_t i = 0; i < op->channels; i++) {
      out[i] = expf(in[i] - largest);
      sum += out[i];
    }
    const float scale = (float)(1.0 / sum);
    for (size_t i = 0; i < op->channels; i++) out[i] *= scale;
  }
}

enum xnn_status xnn_create_softmax_nc_f32(uint32_t flags, xnn_operator_t *op_out) {
  (void)flags;
  return np_portable_new(sizeof(rows), run_softmax, op_out) == NULL ? xnn_status_out_of_memory
                                                                    : xnn_status_success;
}

enum xnn_status xnn_reshape_softmax_nc_f32(xnn_operator_t softmax_op, size_t channels,
                                           size_t input_stride, size_t output_stride,
                                           size_t batch_size, pthreadpool_t threadpool) {
  (void)threadpool;
  if (!np_portable_is(softmax_op, run_softmax)) return xnn_status_invalid_parameter;
  return size_rows(softmax_op, batch_size, channels, input_stride, output_stride);
}

enum xnn_status xnn_setup_softmax_nc_f32(xnn_operator_t op, const void *input, void *output) {
  return np_portable_set_up(op, input, NULL, output);
}

/* Quantizes each row to [-128, 127] by its own range, which holds 0. */
static void run_row_quantizer(const struct xnn_operator *base) {
  const rows *op = (const rows *)base;
  const float *in = base->a;
  int8_t *out = base->out;
  for (size_t row = 0; row < op->rows; row++, in += op->channels, out += op->channels) {
    float low = 0.0f, high = 0.0f;
    for (size_t i = 0; i < op->channels; i++) {
      low = in[i] < low ? in[i] : low;
      high = in[i] > high ? in[i] : high;
    }
    const float steps = high > low ? 255.0f / (high - low) : 1.0f;
    const float zero = rintf(np_portable_clamp(-128.0f - low * steps, -128.0f, 127.0f));
    for (size_t i = 0; i < op->channels; i++) {
      out[i] = (int8_t)np_portable_round(in[i] * steps + zero, -128.0f, 127.0f);
    }
    op->ranges[row] = (struct xnn_quantization_params){(int32_t)zero, 1.0f / steps};
  }
}

enum xnn_status xnn_create_convert_nc_f32_qd8(uint32_t flags, xnn_operator_t *op_out) {
  (void)flags;
  return np_portable_new(sizeof(rows), run_row_quantizer, op_out) == NULL
             ? xnn_status_out_of_memory
             : xnn_status_success;
}

enum xnn_status xnn_reshape_convert_nc_f32_qd8(xnn_operator_t op, size_t batch_size,
                                               size_t channels, size_t input_stride,
                                               size_t output_stride, pthreadpool_t threadpool) {
  (void)threadpool;
  if (!np_portable_is(op, run_row_quantizer)) return xnn_status_invalid_parameter;
  return size_rows(op, batch_size, channels, input_stride, output_stride);
}

enum xnn_status xnn_setup_convert_nc_f32_qd8(xnn_operator_t op, const void *input, void *output,
                                             float *row_sum,
                                             struct xnn_quantization_params *quantization_params) {
  (void)row_sum;
  if (!np_portable_is(op, run_row_quantizer)) return xnn_status_invalid_parameter;
  ((rows *)op)->ranges = quantization_params;
  return np_portable_set_up(op, input, NULL, output);
}
