/* Convolutions and transposed convolutions of [N, H, W, C], of float32 and of int8.
 *
 * Each output pixel walks the taps of its kernel window, and each tap multiplies the channels of a
 * group by panels of 16 outputs. Depthwise convolutions have one matrix [taps, outputs]. */
#include <string.h>

#include "panels.h"

typedef struct {
  struct xnn_operator base;
  bool is_int8, is_transposed, is_depthwise;
  size_t top, left, bottom, right, kernel_height, kernel_width;
  size_t stride_height, stride_width, dilation_height, dilation_width;
  size_t groups, group_inputs, group_outputs;
  np_panel_layout layout; /* of the matrix of a group; of a depthwise convolution, of all */
  const uint8_t *packed;
  float low, high;
  struct xnn_quantization_params in, out;
  size_t images, height, width, out_height, out_width;
} convolution;

static void run_convolution(const struct xnn_operator *base);

/* Geometry as the create functions take it. */
typedef struct {
  size_t top, right, bottom, left, kernel_height, kernel_width;
  size_t stride_height, stride_width, dilation_height, dilation_width;
  size_t groups, group_inputs, group_outputs;
} geometry;

static enum xnn_status pack(convolution *op, const void *kernel, const void *bias,
                            const float *scales, float scale, xnn_weights_cache_t cache) {
  const size_t taps = op->kernel_height * op->kernel_width;
  const size_t outputs = op->groups * op->group_outputs, element = op->is_int8 ? 1 : 4;
  const uint32_t fingerprint = 0x4e500006u + op->is_int8;
  const uint8_t *weights = kernel, *biases = bias;
  if (op->is_depthwise) {
    /* [H, W, outputs] is a matrix [taps, outputs] as it lies. */
    op->layout = (np_panel_layout){taps, outputs, NP_COLUMNS, element, op->is_int8};
    const np_constants all = {kernel, bias, scales, scale, 1, outputs};
    return np_portable_pack(&op->base, &op->layout, 1, &all, fingerprint, kernel, bias, cache,
                            &op->packed);
  }
  const size_t depth = taps * op->group_inputs;
  op->layout = (np_panel_layout){depth, op->group_outputs, NP_COLUMNS, element, op->is_int8};
  np_constants *constants = malloc(op->groups * sizeof *constants);
  if (constants == NULL) return xnn_status_out_of_memory;
  for (size_t g = 0; g < op->groups; g++) {
    const size_t first = g * op->group_outputs;
    constants[g] = (np_constants){
        weights + element * first * depth,
        biases == NULL ? NULL : biases + 4 * first,
        scales == NULL ? NULL : scales + first,
        scale,
        depth,
        1,
    };
  }
  const enum xnn_status status =
      np_portable_pack(&op->base, &op->layout, op->groups, constants, fingerprint, kernel, bias,
                       cache, &op->packed);
  free(constants);
  return status;
}

static enum xnn_status create(const geometry *g, bool is_int8, bool is_transposed, float low,
                              float high, uint32_t flags, const void *kernel, const void *bias,
                              struct xnn_quantization_params in, const float *scales,
                              struct xnn_quantization_params out, xnn_weights_cache_t cache,
                              xnn_operator_t *op_out) {
  if (g->kernel_height * g->kernel_width == 0 || g->groups == 0 || g->group_inputs == 0 ||
      g->group_outputs == 0 || !(low <= high)) {
    return xnn_status_invalid_parameter;
  }
  convolution *op = np_portable_new(sizeof *op, run_convolution, op_out);
  if (op == NULL) return xnn_status_out_of_memory;
  op->is_int8 = is_int8;
  op->is_transposed = is_transposed;
  op->is_depthwise = (flags & XNN_FLAG_DEPTHWISE_CONVOLUTION) != 0;
  op->top = g->top;
  op->left = g->left;
  op->bottom = g->bottom;
  op->right = g->right;
  op->kernel_height = g->kernel_height;
  op->kernel_width = g->kernel_width;
  op->stride_height = g->stride_height;
  op->stride_width = g->stride_width;
  op->dilation_height = g->dilation_height;
  op->dilation_width = g->dilation_width;
  op->groups = g->groups;
  op->group_inputs = g->group_inputs;
  op->group_outputs = g->group_outputs;
  op->low = low;
  op->high = high;
  op->in = in;
  op->out = out;
  const enum xnn_status status = pack(op, kernel, bias, scales, in.scale / out.scale, cache);
  if (status != xnn_status_success) {
    xnn_delete_operator(*op_out);
    *op_out = NULL;
  }
  return status;
}

/* The row or column of the input that tap `k` of output `at` reads; SIZE_MAX for none. */
static size_t source_of(const convolution *op, size_t at, size_t k, size_t stride, size_t dilation,
                        size_t padding, size_t size) {
  size_t from;
  if (op->is_transposed) {
    /* What is before the first pixel wraps to numbers that are too large. */
    from = at + padding - k * dilation;
    if (at + padding < k * dilation || from % stride != 0) return SIZE_MAX;
    from /= stride;
  } else {
    from = at * stride + k * dilation - padding;
  }
  return from < size ? from : SIZE_MAX;
}

static void store(const convolution *op, const void *acc, const float *scales, size_t at,
                  size_t columns) {
  if (!op->is_int8) {
    float *out = (float *)op->base.out + at;
    const float *values = acc;
    for (size_t n = 0; n < columns; n++) {
      out[n] = np_portable_clamp(values[n], op->low, op->high);
    }
    return;
  }
  int8_t *out = (int8_t *)op->base.out + at;
  const int32_t *values = acc;
  const float zero = (float)op->out.zero_point;
  for (size_t n = 0; n < columns; n++) {
    const float value = (float)values[n] * scales[n];
    out[n] =
        (int8_t)(np_portable_round(value, op->low - zero, op->high - zero) + op->out.zero_point);
  }
}

/* The pixel of the input that a tap of an output pixel reads; NULL for padding. */
static const uint8_t *pixel_of(const convolution *op, size_t image, size_t y, size_t x,
                               size_t tap) {
  const size_t row = source_of(op, y, tap / op->kernel_width, op->stride_height,
                               op->dilation_height, op->top, op->height);
  const size_t column = source_of(op, x, tap % op->kernel_width, op->stride_width,
                                  op->dilation_width, op->left, op->width);
  if (row == SIZE_MAX || column == SIZE_MAX) return NULL;
  const size_t channels = op->groups * op->group_inputs, element = op->is_int8 ? 1 : 4;
  return (const uint8_t *)op->base.a +
         element * channels * ((image * op->height + row) * op->width + column);
}

/* NP_COLUMNS outputs of one pixel. */
static void run_part(const convolution *op, size_t group, size_t index, size_t image, size_t y,
                      size_t x) {
  const np_panel_layout *l = &op->layout;
  const size_t element = op->is_int8 ? 1 : 4;
  const size_t group_bytes = np_panel_count(l) * np_panel_bytes(l);
  const np_part part = np_part_of(op->packed + group * group_bytes, l, index);
  union {
    float f[NP_COLUMNS];
    int32_t i[NP_COLUMNS];
  } acc;
  memcpy(&acc, part.bias, sizeof acc);
  const size_t depth = op->is_depthwise ? 1 : op->group_inputs;
  for (size_t tap = 0; tap < op->kernel_height * op->kernel_width; tap++) {
    const uint8_t *pixel = pixel_of(op, image, y, x, tap);
    if (pixel == NULL) continue;
    const uint8_t *w = (const uint8_t *)part.weights + element * tap * depth * l->width;
    if (op->is_depthwise) {
      for (size_t n = 0; n < part.columns; n++) {
        const size_t channel = (part.start + n) / op->group_outputs;
        if (op->is_int8) {
          const int32_t value = ((const int8_t *)pixel)[channel] - op->in.zero_point;
          acc.i[n] += value * ((const int8_t *)w)[n];
        } else {
          acc.f[n] += ((const float *)(const void *)pixel)[channel] *
                       ((const float *)(const void *)w)[n];
        }
      }
      continue;
    }
    pixel += element * group * depth;
    if (op->is_int8) {
      np_multiply_s8((const int8_t *)pixel, op->in.zero_point, (const int8_t *)w, l->width, depth,
                     acc.i);
    } else {
      np_multiply_f32((const float *)(const void *)pixel, (const float *)(const void *)w, l->width,
                      depth, acc.f);
    }
  }
  const size_t outputs = op->groups * op->group_outputs;
  const size_t at = ((image * op->out_height + y) * op->out_width + x) * outputs;
  store(op, &acc, part.scales,
        at + (op->is_depthwise ? 0 : group * op->group_outputs) + part.start, part.columns);
}

static void run_convolution(const struct xnn_operator *base) {
  const convolution *op = (const convolution *)base;
  const size_t groups = op->is_depthwise ? 1 : op->groups, parts = np_part_count(&op->layout);
  for (size_t image = 0; image < op->images; image++) {
    for (size_t y = 0; y < op->out_height; y++) {
      for (size_t x = 0; x < op->out_width; x++) {
        for (size_t i = 0; i < groups * parts; i++) {
          run_part(op, i / parts, i % parts, image, y, x);
        }
      }
    }
  }
}

static enum xnn_status size_images(xnn_operator_t base, bool is_int8, bool is_transposed,
                                   size_t batch_size, size_t height, size_t width,
                                   size_t adjust_height, size_t adjust_width, size_t *out_height,
                                   size_t *out_width) {
  convolution *op = (convolution *)base;
  if (!np_portable_is(base, run_convolution) || op->is_int8 != is_int8 ||
      op->is_transposed != is_transposed || height == 0 || width == 0) {
    return xnn_status_invalid_parameter;
  }
  const size_t tall = (op->kernel_height - 1) * op->dilation_height + 1;
  const size_t wide = (op->kernel_width - 1) * op->dilation_width + 1;
  const size_t rows = op->top + op->bottom, columns = op->left + op->right;
  if (is_transposed) {
    const size_t full_height = op->stride_height * (height - 1) + adjust_height + tall;
    const size_t full_width = op->stride_width * (width - 1) + adjust_width + wide;
    if (full_height <= rows || full_width <= columns) return xnn_status_invalid_parameter;
    op->out_height = full_height - rows;
    op->out_width = full_width - columns;
  } else {
    if (height + rows < tall || width + columns < wide) return xnn_status_invalid_parameter;
    op->out_height = (height + rows - tall) / op->stride_height + 1;
    op->out_width = (width + columns - wide) / op->stride_width + 1;
  }
  op->images = batch_size;
  op->height = height;
  op->width = width;
  *out_height = op->out_height;
  *out_width = op->out_width;
  base->sized = true;
  return xnn_status_success;
}

/* The interface */

#define GEOMETRY                                                                          \
  &(const geometry) {                                                                     \
    input_padding_top, input_padding_right, input_padding_bottom, input_padding_left,     \
        kernel_height, kernel_width, stride_height, stride_width, dilation_height,        \
        dilation_width, groups, group_input_channels, group_output_channels               \
  }
#define GEOMETRY_PARAMETERS                                                                      \
  uint32_t input_padding_top, uint32_t input_padding_right, uint32_t input_padding_bottom,       \
      uint32_t input_padding_left, uint32_t kernel_height, uint32_t kernel_width,                \
      uint32_t stride_height, uint32_t stride_width, uint32_t dilation_height,                   \
      uint32_t dilation_width, uint32_t groups, size_t group_input_channels,                     \
      size_t group_output_channels, size_t input_pixel_stride, size_t output_pixel_stride

static const struct xnn_quantization_params NONE = {0, 1.0f};

enum xnn_status xnn_create_convolution2d_nhwc_f32(GEOMETRY_PARAMETERS, const void *kernel,
                                                  const void *bias, float output_min,
                                                  float output_max, uint32_t flags,
                                                  xnn_weights_cache_t weights_cache,
                                                  xnn_operator_t *op_out) {
  (void)input_pixel_stride, (void)output_pixel_stride;
  return create(GEOMETRY, false, false, output_min, output_max, flags, kernel, bias, NONE, NULL,
                NONE, weights_cache, op_out);
}

enum xnn_status xnn_create_deconvolution2d_nhwc_f32(GEOMETRY_PARAMETERS, const void *kernel,
                                                    const void *bias, float output_min,
                                                    float output_max, uint32_t flags,
                                                    xnn_weights_cache_t weights_cache,
                                                    xnn_operator_t *op_out) {
  (void)input_pixel_stride, (void)output_pixel_stride;
  return create(GEOMETRY, false, true, output_min, output_max, flags, kernel, bias, NONE, NULL,
                NONE, weights_cache, op_out);
}

enum xnn_status xnn_create_convolution2d_nhwc_qs8_qc8w(
    GEOMETRY_PARAMETERS, int8_t input_zero_point, float input_scale, const float *kernel_scale,
    const void *kernel, const void *bias, int8_t output_zero_point, float output_scale,
    int8_t output_min, int8_t output_max, uint32_t flags, xnn_weights_cache_t weights_cache,
    xnn_operator_t *op_out) {
  (void)input_pixel_stride, (void)output_pixel_stride;
  const struct xnn_quantization_params in = {input_zero_point, input_scale};
  const struct xnn_quantization_params out = {output_zero_point, output_scale};
  return create(GEOMETRY, true, false, output_min, output_max, flags, kernel, bias, in,
                kernel_scale, out, weights_cache, op_out);
}

enum xnn_status xnn_create_deconvolution2d_nhwc_qs8_qc8w(
    GEOMETRY_PARAMETERS, int8_t input_zero_point, float input_scale, const float *kernel_scale,
    const void *kernel, const void *bias, int8_t output_zero_point, float output_scale,
    int8_t output_min, int8_t output_max, uint32_t flags, xnn_weights_cache_t weights_cache,
    xnn_operator_t *op_out) {
  (void)input_pixel_stride, (void)output_pixel_stride;
  const struct xnn_quantization_params in = {input_zero_point, input_scale};
  const struct xnn_quantization_params out = {output_zero_point, output_scale};
  return create(GEOMETRY, true, true, output_min, output_max, flags, kernel, bias, in,
                kernel_scale, out, weights_cache, op_out);
}

enum xnn_status xnn_reshape_convolution2d_nhwc_f32(xnn_operator_t op, size_t batch_size,
                                                   size_t input_height, size_t input_width,
                                                   size_t *workspace_size,
                                                   size_t *output_height_out,
                                                   size_t *output_width_out,
                                                   pthreadpool_t threadpool) {
  (void)threadpool;
  *workspace_size = 0;
  return size_images(op, false, false, batch_size, input_height, input_width, 0, 0,
                     output_height_out, output_width_out);
}

enum xnn_status xnn_reshape_convolution2d_nhwc_qs8_qc8w(xnn_operator_t op, size_t batch_size,
                                                        size_t input_height, size_t input_width,
                                                        size_t *workspace_size,
                                                        size_t *output_height_out,
                                                        size_t *output_width_out,
                                                        pthreadpool_t threadpool) {
  (void)threadpool;
  *workspace_size = 0;
  return size_images(op, true, false, batch_size, input_height, input_width, 0, 0,
                     output_height_out, output_width_out);
}

enum xnn_status xnn_reshape_deconvolution2d_nhwc_f32(xnn_operator_t op, size_t batch_size,
                                                     size_t input_height, size_t input_width,
                                                     uint32_t adjustment_height,
                                                     uint32_t adjustment_width,
                                                     size_t *output_height_out,
                                                     size_t *output_width_out,
                                                     pthreadpool_t threadpool) {
  (void)threadpool;
  return size_images(op, false, true, batch_size, input_height, input_width, adjustment_height,
                     adjustment_width, output_height_out, output_width_out);
}

enum xnn_status xnn_reshape_deconvolution2d_nhwc_qs8_qc8w(xnn_operator_t op, size_t batch_size,
                                                          size_t input_height, size_t input_width,
                                                          uint32_t adjustment_height,
                                                          uint32_t adjustment_width,
                                                          size_t *output_height_out,
                                                          size_t *output_width_out,
                                                          pthreadpool_t threadpool) {
  (void)threadpool;
  return size_images(op, true, true, batch_size, input_height, input_width, adjustment_height,
                     adjustment_width, output_height_out, output_width_out);
}

enum xnn_status xnn_setup_convolution2d_nhwc_f32(xnn_operator_t op, void *workspace,
                                                 const void *input, void *output) {
  (void)workspace;
  return np_portable_set_up(op, input, NULL, output);
}

enum xnn_status xnn_setup_convolution2d_nhwc_qs8_qc8w(xnn_operator_t op, void *workspace,
                                                      const void *input, void *output) {
  (void)workspace;
  return np_portable_set_up(op, input, NULL, output);
}

enum xnn_status xnn_setup_deconvolution2d_nhwc_f32(xnn_operator_t op, const void *input,
                                                   void *output) {
  return np_portable_set_up(op, input, NULL, output);
}

enum xnn_status xnn_setup_deconvolution2d_nhwc_qs8_qc8w(xnn_operator_t op, const void *input,
                                                        void *output) {
  return np_portable_set_up(op, input, NULL, output);
}
