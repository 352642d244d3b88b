/* Quantization of rows to int8, each by its own range. */
#include <math.h>

#include "operator.h"

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
