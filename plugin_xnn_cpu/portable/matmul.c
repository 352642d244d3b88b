/* Matmuls with a constant matrix: of float32 and bfloat16, and of int8. */
#include <string.h>

#include "panels.h"

enum kind { F32 = 1, BF16, F32_INT8, INT8, ROWS_INT8 };

typedef struct {
  struct xnn_operator base;
  np_panel_layout layout;
  const uint8_t *packed;
  float low, high;
  struct xnn_quantization_params in, out;             /* of int8 by int8 */
  const struct xnn_quantization_params *ranges;       /* of rows with their own scales */
  size_t rows;
} matmul;

static void run_f32(const struct xnn_operator *base);
static void run_bf16(const struct xnn_operator *base);
static void run_f32_int8(const struct xnn_operator *base);
static void run_int8(const struct xnn_operator *base);
static void run_rows_int8(const struct xnn_operator *base);

/* Creates a matmul, and packs its matrix. */
static enum xnn_status create(void (*run)(const struct xnn_operator *), enum kind kind,
                              size_t element, size_t depth, size_t outputs, const void *kernel,
                              const void *bias, const float *scales, float scale, float low,
                              float high, uint32_t flags, xnn_weights_cache_t cache,
                              xnn_operator_t *out) {
  if (depth == 0 || outputs == 0 || !(low <= high)) return xnn_status_invalid_parameter;
  matmul *op = np_portable_new(sizeof *op, run, out);
  if (op == NULL) return xnn_status_out_of_memory;
  const bool is_read = kind == F32 || kind == F32_INT8; /* by GEMV kernels */
  const size_t width = is_read ? np_portable_width(kind == F32) : NP_COLUMNS;
  op->layout = (np_panel_layout){depth, outputs, width, element, scales != NULL};
  op->low = low;
  op->high = high;
  const bool transposed = (flags & XNN_FLAG_TRANSPOSE_WEIGHTS) != 0;
  const np_constants constants = {
      kernel, bias, scales, scale, transposed ? 1 : depth, transposed ? outputs : 1,
  };
  const enum xnn_status status = np_portable_pack(
      &op->base, &op->layout, 1, &constants, 0x4e500000u + kind, kernel, bias, cache, &op->packed);
  if (status != xnn_status_success) {
    xnn_delete_operator(*out);
    *out = NULL;
  }
  return status;
}

static enum xnn_status size_matmul(xnn_operator_t op, void (*run)(const struct xnn_operator *),
                                   size_t rows) {
  if (!np_portable_is(op, run)) return xnn_status_invalid_parameter;
  ((matmul *)op)->rows = rows;
  op->sized = true;
  return xnn_status_success;
}

static void store(const matmul *op, const np_part *p, size_t row, const float *values) {
  float *out = (float *)op->base.out + row * op->layout.outputs + p->start;
  for (size_t n = 0; n < p->columns; n++) {
    out[n] = np_portable_clamp(values[n], op->low, op->high);
  }
}

static void run_f32(const struct xnn_operator *base) {
  const matmul *op = (const matmul *)base;
  for (size_t i = 0; i < np_part_count(&op->layout); i++) {
    const np_part p = np_part_of(op->packed, &op->layout, i);
    for (size_t row = 0; row < op->rows; row++) {
      float acc[NP_COLUMNS];
      memcpy(acc, p.bias, sizeof acc);
      np_multiply_f32((const float *)base->a + row * op->layout.depth, p.weights, op->layout.width,
                      op->layout.depth, acc);
      store(op, &p, row, acc);
    }
  }
}

static float of_bf16(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void run_bf16(const struct xnn_operator *base) {
  const matmul *op = (const matmul *)base;
  for (size_t i = 0; i < np_part_count(&op->layout); i++) {
    const np_part p = np_part_of(op->packed, &op->layout, i);
    for (size_t row = 0; row < op->rows; row++) {
      const uint16_t *x = (const uint16_t *)base->a + row * op->layout.depth, *w = p.weights;
      float acc[NP_COLUMNS];
      memcpy(acc, p.bias, sizeof acc);
      for (size_t k = 0; k < op->layout.depth; k++, w += op->layout.width) {
        const float value = of_bf16(x[k]);
        for (size_t n = 0; n < NP_COLUMNS; n++) acc[n] += value * of_bf16(w[n]);
      }
      store(op, &p, row, acc);
    }
  }
}

/* The sum of accumulator and bias is multiplied by the scale. */
static void run_f32_int8(const struct xnn_operator *base) {
  const matmul *op = (const matmul *)base;
  for (size_t i = 0; i < np_part_count(&op->layout); i++) {
    const np_part p = np_part_of(op->packed, &op->layout, i);
    for (size_t row = 0; row < op->rows; row++) {
      const float *x = (const float *)base->a + row * op->layout.depth;
      const int8_t *w = p.weights;
      float acc[NP_COLUMNS];
      memcpy(acc, p.bias, sizeof acc);
      for (size_t k = 0; k < op->layout.depth; k++, w += op->layout.width) {
        for (size_t n = 0; n < NP_COLUMNS; n++) acc[n] += x[k] * (float)w[n];
      }
      for (size_t n = 0; n < NP_COLUMNS; n++) acc[n] *= p.scales[n];
      store(op, &p, row, acc);
    }
  }
}

static void run_int8(const struct xnn_operator *base) {
  const matmul *op = (const matmul *)base;
  const float zero = (float)op->out.zero_point;
  for (size_t i = 0; i < np_part_count(&op->layout); i++) {
    const np_part p = np_part_of(op->packed, &op->layout, i);
    for (size_t row = 0; row < op->rows; row++) {
      int32_t acc[NP_COLUMNS];
      memcpy(acc, p.bias, sizeof acc);
      np_multiply_s8((const int8_t *)base->a + row * op->layout.depth, op->in.zero_point,
                     p.weights, op->layout.width, op->layout.depth, acc);
      int8_t *out = (int8_t *)base->out + row * op->layout.outputs + p.start;
      for (size_t n = 0; n < p.columns; n++) {
        const float value = (float)acc[n] * p.scales[n];
        out[n] = (int8_t)(np_portable_round(value, op->low - zero, op->high - zero) +
                          op->out.zero_point);
      }
    }
  }
}

static void run_rows_int8(const struct xnn_operator *base) {
  const matmul *op = (const matmul *)base;
  for (size_t i = 0; i < np_part_count(&op->layout); i++) {
    const np_part p = np_part_of(op->packed, &op->layout, i);
    const float *bias = p.bias;
    for (size_t row = 0; row < op->rows; row++) {
      int32_t acc[NP_COLUMNS] = {0};
      float values[NP_COLUMNS];
      const struct xnn_quantization_params range = op->ranges[row];
      np_multiply_s8((const int8_t *)base->a + row * op->layout.depth, range.zero_point, p.weights,
                     op->layout.width, op->layout.depth, acc);
      for (size_t n = 0; n < NP_COLUMNS; n++) {
        values[n] = (float)acc[n] * range.scale * p.scales[n] + bias[n];
      }
      store(op, &p, row, values);
    }
  }
}

/* The interface */

/* How operators of types without quantized rows are sized and set up. */
#define SIZE_AND_SET_UP(types, run)                                                              \
  enum xnn_status xnn_reshape_fully_connected_nc_##types(xnn_operator_t op, size_t batch_size,   \
                                                         pthreadpool_t threadpool) {             \
    (void)threadpool;                                                                            \
    return size_matmul(op, run, batch_size);                                                     \
  }                                                                                              \
  enum xnn_status xnn_setup_fully_connected_nc_##types(xnn_operator_t op, const void *input,     \
                                                       void *output) {                           \
    return np_portable_set_up(op, input, NULL, output);                                          \
  }

enum xnn_status xnn_create_fully_connected_nc_f32(size_t input_channels, size_t output_channels,
                                                  size_t input_stride, size_t output_stride,
                                                  const void *kernel, const void *bias,
                                                  float output_min, float output_max,
                                                  uint32_t flags,
                                                  xnn_weights_cache_t weights_cache,
                                                  xnn_operator_t *op_out) {
  (void)input_stride, (void)output_stride;
  return create(run_f32, F32, 4, input_channels, output_channels, kernel, bias, NULL, 1.0f,
                output_min, output_max, flags, weights_cache, op_out);
}

SIZE_AND_SET_UP(f32, run_f32)

/* Weights of float16 are upcast before they are packed where there is no GEMM for them. */
enum xnn_status xnn_create_fully_connected_nc_f16(size_t input_channels, size_t output_channels,
                                                  size_t input_stride, size_t output_stride,
                                                  const void *kernel, const void *bias,
                                                  float output_min, float output_max,
                                                  uint32_t flags,
                                                  xnn_weights_cache_t weights_cache,
                                                  xnn_operator_t *op_out) {
  (void)input_channels, (void)output_channels, (void)input_stride, (void)output_stride;
  (void)kernel, (void)bias, (void)output_min, (void)output_max, (void)flags, (void)weights_cache;
  *op_out = NULL;
  return xnn_status_unsupported_hardware;
}

enum xnn_status xnn_reshape_fully_connected_nc_f16(xnn_operator_t op, size_t batch_size,
                                                   pthreadpool_t threadpool) {
  (void)op, (void)batch_size, (void)threadpool;
  return xnn_status_invalid_parameter;
}

enum xnn_status xnn_setup_fully_connected_nc_f16(xnn_operator_t op, const void *input,
                                                 void *output) {
  (void)op, (void)input, (void)output;
  return xnn_status_invalid_parameter;
}

enum xnn_status xnn_create_fully_connected_nc_bf16_f32(size_t input_channels,
                                                       size_t output_channels, size_t input_stride,
                                                       size_t output_stride, const void *kernel,
                                                       const void *bias, float output_min,
                                                       float output_max, uint32_t flags,
                                                       xnn_weights_cache_t weights_cache,
                                                       xnn_operator_t *op_out) {
  (void)input_stride, (void)output_stride;
  return create(run_bf16, BF16, 2, input_channels, output_channels, kernel, bias, NULL, 1.0f,
                output_min, output_max, flags, weights_cache, op_out);
}

SIZE_AND_SET_UP(bf16_f32, run_bf16)

enum xnn_status xnn_create_fully_connected_nc_f32_qc8w(
    size_t input_channels, size_t output_channels, size_t input_stride, size_t output_stride,
    const float *kernel_scale, const void *kernel, const void *bias, float output_min,
    float output_max, uint32_t flags, xnn_weights_cache_t weights_cache, xnn_operator_t *op_out) {
  (void)input_stride, (void)output_stride;
  return create(run_f32_int8, F32_INT8, 1, input_channels, output_channels, kernel, bias,
                kernel_scale, 1.0f, output_min, output_max, flags, weights_cache, op_out);
}

SIZE_AND_SET_UP(f32_qc8w, run_f32_int8)

enum xnn_status xnn_create_fully_connected_nc_qs8_qc8w(
    size_t input_channels, size_t output_channels, size_t input_stride, size_t output_stride,
    int8_t input_zero_point, float input_scale, const float *kernel_scale, const int8_t *kernel,
    const int32_t *bias, int8_t output_zero_point, float output_scale, int8_t output_min,
    int8_t output_max, uint32_t flags, xnn_weights_cache_t weights_cache,
    xnn_operator_t *fully_connected_op_out) {
  (void)input_stride, (void)output_stride;
  const enum xnn_status status =
      create(run_int8, INT8, 1, input_channels, output_channels, kernel, bias, kernel_scale,
             input_scale / output_scale, output_min, output_max, flags, weights_cache,
             fully_connected_op_out);
  if (status != xnn_status_success) return status;
  matmul *op = (matmul *)*fully_connected_op_out;
  op->in = (struct xnn_quantization_params){input_zero_point, input_scale};
  op->out = (struct xnn_quantization_params){output_zero_point, output_scale};
  return xnn_status_success;
}

SIZE_AND_SET_UP(qs8_qc8w, run_int8)

enum xnn_status xnn_create_fully_connected_nc_qd8_f32_qc8w(
    size_t input_channels, size_t output_channels, size_t input_stride, size_t output_stride,
    const float *kernel_scale, const void *kernel, const void *bias, float output_min,
    float output_max, uint32_t flags, xnn_weights_cache_t weights_cache, xnn_operator_t *op_out) {
  (void)input_stride, (void)output_stride;
  return create(run_rows_int8, ROWS_INT8, 1, input_channels, output_channels, kernel, bias,
                kernel_scale, 1.0f, output_min, output_max, flags, weights_cache, op_out);
}

enum xnn_status xnn_reshape_fully_connected_nc_qd8_f32_qc8w(xnn_operator_t op, size_t batch_size,
                                                            size_t *workspace_size,
                                                            pthreadpool_t threadpool) {
  (void)threadpool;
  *workspace_size = 0;
  return size_matmul(op, run_rows_int8, batch_size);
}

enum xnn_status xnn_setup_fully_connected_nc_qd8_f32_qc8w(
    xnn_operator_t op, const void *input, void *output, void *workspace,
    const struct xnn_quantization_params *quantization_params) {
  (void)workspace;
  if (!np_portable_is(op, run_rows_int8)) return xnn_status_invalid_parameter;
  ((matmul *)op)->ranges = quantization_params;
  return np_portable_set_up(op, input, NULL, output);
}

/* Rows of uint8 are for VNNI, which multiplies unsigned by signed bytes. */
enum xnn_status xnn_create_fully_connected_nc_qdu8_f32_qc8w(
    size_t input_channels, size_t output_channels, size_t input_stride, size_t output_stride,
    const float *kernel_scale, const void *kernel, const void *bias, float output_min,
    float output_max, uint32_t flags, xnn_weights_cache_t weights_cache, xnn_operator_t *op_out) {
  (void)input_channels, (void)output_channels, (void)input_stride, (void)output_stride;
  (void)kernel_scale, (void)kernel, (void)bias, (void)output_min, (void)output_max, (void)flags;
  (void)weights_cache;
  *op_out = NULL;
  return xnn_status_unsupported_hardware;
}

enum xnn_status xnn_reshape_fully_connected_nc_qdu8_f32_qc8w(xnn_operator_t op, size_t batch_size,
                                                             size_t *workspace_size,
                                                             pthreadpool_t threadpool) {
  (void)op, (void)batch_size, (void)workspace_size, (void)threadpool;
  return xnn_status_invalid_parameter;
}

enum xnn_status xnn_setup_fully_connected_nc_qdu8_f32_qc8w(
    xnn_operator_t op, const void *input, void *output, void *workspace,
    const struct xnn_quantization_params *quantization_params) {
  (void)op, (void)input, (void)output, (void)workspace, (void)quantization_params;
  return xnn_status_invalid_parameter;
}

enum xnn_status xnn_create_convert_nc_f32_qdu8(uint32_t flags, xnn_operator_t *op_out) {
  (void)flags;
  *op_out = NULL;
  return xnn_status_unsupported_hardware;
}

enum xnn_status xnn_reshape_convert_nc_f32_qdu8(xnn_operator_t op, size_t batch_size,
                                                size_t channels, size_t input_stride,
                                                size_t output_stride, pthreadpool_t threadpool) {
  (void)op, (void)batch_size, (void)channels, (void)input_stride, (void)output_stride;
  (void)threadpool;
  return xnn_status_invalid_parameter;
}

enum xnn_status xnn_setup_convert_nc_f32_qdu8(xnn_operator_t op, const void *input, void *output,
                                              float *row_sum,
                                              struct xnn_quantization_params *quantization_params) {
  (void)op, (void)input, (void)output, (void)row_sum, (void)quantization_params;
  return xnn_status_invalid_parameter;
}
