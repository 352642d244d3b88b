/* Means of int8 along axes. */
#include <math.h>

#include "operator.h"

typedef struct {
  struct xnn_operator base;
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

static void run_reduction(const struct xnn_operator *base) {
  const reduction *op = (const reduction *)base;
  /* Axes of the operand that are inner to all others are walked without division. */
  const size_t inner = op->reduced[NP_DIMS - 1], step = op->reduced_strides[NP_DIMS - 1];
  for (size_t i = 0; i < op->results; i++) {
    const size_t start = offset_of(i, op->kept, op->kept_strides);
    double found = 0.0;
    for (size_t k = 0; k < op->terms; k += inner) {
      const size_t at = start + offset_of(k, op->reduced, op->reduced_strides);
      for (size_t j = 0; j < inner; j++) {
        found += ((const int8_t *)base->a)[at + j * step] - op->quantized[0].zero_point;
      }
    }
    found /= (double)op->terms;
    const int32_t zero = op->quantized[1].zero_point;
    const float value = (float)(found * op->quantized[0].scale / op->quantized[1].scale);
    ((int8_t *)base->out)[i] =
        (int8_t)(np_portable_round(value, -128.0f - (float)zero, 127.0f - (float)zero) + zero);
  }
}

enum xnn_status xnn_create_reduce_nd(enum xnn_reduce_operator reduce_operator_type,
                                     enum xnn_datatype datatype,
                                     const struct xnn_quantization_params *input_quantization,
                                     const struct xnn_quantization_params *output_quantization,
                                     uint32_t flags, xnn_operator_t *reduce_op_out) {
  if (reduce_operator_type != xnn_reduce_mean || datatype != xnn_datatype_qint8 ||
      (flags & XNN_FLAG_KEEP_DIMS) == 0) {
    return xnn_status_unsupported_parameter;
  }
  reduction *op = np_portable_new(sizeof *op, run_reduction, reduce_op_out);
  if (op == NULL) return xnn_status_out_of_memory;
  op->quantized[0] = *input_quantization;
  op->quantized[1] = *output_quantization;
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
