/* Padding with a constant, and transposes. */
#include <string.h>

#include "operator.h"

/* Advances `index` over `sizes`, the innermost last; returns the axis that advanced. */
static size_t advance(size_t *index, const size_t *sizes, size_t rank) {
  for (size_t d = rank; d-- > 0;) {
    if (++index[d] < sizes[d]) return d;
    index[d] = 0;
  }
  return rank;
}

/* Padding */

typedef struct {
  struct xnn_operator base;
  size_t element;
  uint8_t value[4];
  size_t rank, sizes[NP_DIMS], before[NP_DIMS], out_sizes[NP_DIMS];
} padding;

static void run_pad(const struct xnn_operator *base) {
  const padding *op = (const padding *)base;
  size_t total = 1, rows = 1;
  for (size_t d = 0; d < op->rank; d++) total *= op->out_sizes[d];
  for (size_t d = 0; d + 1 < op->rank; d++) rows *= op->sizes[d];
  uint8_t *out = base->out;
  for (size_t i = 0; i < total; i++) memcpy(out + i * op->element, op->value, op->element);
  if (op->rank == 0) {
    memcpy(out, base->a, op->element);
    return;
  }
  const size_t bytes = op->sizes[op->rank - 1] * op->element;
  size_t index[NP_DIMS] = {0};
  for (size_t row = 0; row < rows; row++) {
    size_t at = 0;
    for (size_t d = 0; d < op->rank; d++) at = at * op->out_sizes[d] + index[d] + op->before[d];
    memcpy(out + at * op->element, (const uint8_t *)base->a + row * bytes, bytes);
    advance(index, op->sizes, op->rank - 1);
  }
}

static enum xnn_status create_pad(const void *value, size_t element, xnn_operator_t *out) {
  padding *op = np_portable_new(sizeof *op, run_pad, out);
  if (op == NULL) return xnn_status_out_of_memory;
  op->element = element;
  memcpy(op->value, value, element);
  return xnn_status_success;
}

enum xnn_status xnn_create_constant_pad_nd_x32(const void *padding_value, uint32_t flags,
                                               xnn_operator_t *op_out) {
  (void)flags;
  return create_pad(padding_value, 4, op_out);
}

enum xnn_status xnn_create_constant_pad_nd_x8(const void *padding_value, uint32_t flags,
                                              xnn_operator_t *op_out) {
  (void)flags;
  return create_pad(padding_value, 1, op_out);
}

static enum xnn_status reshape_pad(xnn_operator_t base, size_t rank, const size_t *shape,
                                   const size_t *before, const size_t *after) {
  if (!np_portable_is(base, run_pad)) return xnn_status_invalid_parameter;
  if (rank > NP_DIMS) return xnn_status_unsupported_parameter;
  padding *op = (padding *)base;
  op->rank = rank;
  for (size_t d = 0; d < rank; d++) {
    op->sizes[d] = shape[d];
    op->before[d] = before[d];
    op->out_sizes[d] = before[d] + shape[d] + after[d];
  }
  base->sized = true;
  return xnn_status_success;
}

enum xnn_status xnn_reshape_constant_pad_nd_x32(xnn_operator_t op, size_t num_dims,
                                                const size_t *input_shape,
                                                const size_t *pre_padding,
                                                const size_t *post_padding,
                                                pthreadpool_t threadpool) {
  (void)threadpool;
  return reshape_pad(op, num_dims, input_shape, pre_padding, post_padding);
}

enum xnn_status xnn_reshape_constant_pad_nd_x8(xnn_operator_t op, size_t num_dims,
                                               const size_t *input_shape,
                                               const size_t *pre_padding,
                                               const size_t *post_padding,
                                               pthreadpool_t threadpool) {
  (void)threadpool;
  return reshape_pad(op, num_dims, input_shape, pre_padding, post_padding);
}

enum xnn_status xnn_setup_constant_pad_nd_x32(xnn_operator_t op, const void *input, void *output) {
  return np_portable_set_up(op, input, NULL, output);
}

enum xnn_status xnn_setup_constant_pad_nd_x8(xnn_operator_t op, const void *input, void *output) {
  return np_portable_set_up(op, input, NULL, output);
}

/* Transposes */

typedef struct {
  struct xnn_operator base;
  size_t element, rank, sizes[NP_DIMS], strides[NP_DIMS]; /* of the result; of the operand */
} transpose;

static void run_transpose(const struct xnn_operator *base) {
  const transpose *op = (const transpose *)base;
  size_t total = 1, index[NP_DIMS] = {0}, from = 0;
  for (size_t d = 0; d < op->rank; d++) total *= op->sizes[d];
  for (size_t i = 0; i < total; i++) {
    if (op->element == 4) {
      ((uint32_t *)base->out)[i] = ((const uint32_t *)base->a)[from];
    } else {
      ((uint8_t *)base->out)[i] = ((const uint8_t *)base->a)[from];
    }
    const size_t moved = advance(index, op->sizes, op->rank);
    for (size_t d = moved + 1; d < op->rank; d++) from -= (op->sizes[d] - 1) * op->strides[d];
    if (moved < op->rank) from += op->strides[moved];
  }
}

static enum xnn_status create_transpose(size_t element, xnn_operator_t *out) {
  transpose *op = np_portable_new(sizeof *op, run_transpose, out);
  if (op == NULL) return xnn_status_out_of_memory;
  op->element = element;
  return xnn_status_success;
}

enum xnn_status xnn_create_transpose_nd_x32(uint32_t flags, xnn_operator_t *op_out) {
  (void)flags;
  return create_transpose(4, op_out);
}

enum xnn_status xnn_create_transpose_nd_x8(uint32_t flags, xnn_operator_t *op_out) {
  (void)flags;
  return create_transpose(1, op_out);
}

static enum xnn_status reshape_transpose(xnn_operator_t base, size_t rank, const size_t *shape,
                                         const size_t *perm) {
  if (!np_portable_is(base, run_transpose)) return xnn_status_invalid_parameter;
  if (rank > NP_DIMS) return xnn_status_unsupported_parameter;
  transpose *op = (transpose *)base;
  size_t strides[NP_DIMS], stride = 1;
  for (size_t d = rank; d-- > 0; stride *= shape[d]) strides[d] = stride;
  op->rank = rank;
  for (size_t d = 0; d < rank; d++) {
    if (perm[d] >= rank) return xnn_status_invalid_parameter;
    op->sizes[d] = shape[perm[d]];
    op->strides[d] = strides[perm[d]];
  }
  base->sized = true;
  return xnn_status_success;
}

enum xnn_status xnn_reshape_transpose_nd_x32(xnn_operator_t op, size_t num_dims,
                                             const size_t *input_shape, const size_t *output_perm,
                                             pthreadpool_t threadpool) {
  (void)threadpool;
  return reshape_transpose(op, num_dims, input_shape, output_perm);
}

enum xnn_status xnn_reshape_transpose_nd_x8(xnn_operator_t op, size_t num_dims,
                                            const size_t *input_shape, const size_t *output_perm,
                                            pthreadpool_t threadpool) {
  (void)threadpool;
  return reshape_transpose(op, num_dims, input_shape, output_perm);
}

enum xnn_status xnn_setup_transpose_nd_x32(xnn_operator_t op, const void *input, void *output) {
  return np_portable_set_up(op, input, NULL, output);
}

enum xnn_status xnn_setup_transpose_nd_x8(xnn_operator_t op, const void *input, void *output) {
  return np_portable_set_up(op, input, NULL, output);
}
