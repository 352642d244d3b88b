/* Bilinear resizing of float32 and max pooling of int8, of [N, H, W, C]. */
#include <string.h>

#include "operator.h"

/* Resizing */

typedef struct {
  struct xnn_operator base;
  size_t out_height, out_width, images, height, width, channels;
  uint32_t mode;
} resize;

typedef struct {
  size_t low, high;
  float share; /* of `high` */
} place;

/* Where pixel `at` of `out` pixels lies among `in` pixels. */
static place place_of(size_t at, size_t out, size_t in, uint32_t mode) {
  double x;
  if (mode & XNN_FLAG_ALIGN_CORNERS) {
    x = out > 1 ? (double)at * (double)(in - 1) / (double)(out - 1) : 0.0;
  } else if (mode & XNN_FLAG_TENSORFLOW_LEGACY_MODE) {
    x = (double)at * (double)in / (double)out;
  } else {
    x = ((double)at + 0.5) * (double)in / (double)out - 0.5;
  }
  if (x < 0.0) x = 0.0;
  if (x > (double)(in - 1)) x = (double)(in - 1);
  const size_t low = (size_t)x;
  return (place){low, low + 1 < in ? low + 1 : low, (float)(x - (double)low)};
}

static void run_resize(const struct xnn_operator *base) {
  const resize *op = (const resize *)base;
  const float *in = base->a;
  float *out = base->out;
  const size_t row = op->width * op->channels;
  for (size_t n = 0; n < op->images; n++, in += op->height * row) {
    for (size_t y = 0; y < op->out_height; y++) {
      const place v = place_of(y, op->out_height, op->height, op->mode);
      for (size_t x = 0; x < op->out_width; x++, out += op->channels) {
        const place h = place_of(x, op->out_width, op->width, op->mode);
        const float *p = in + v.low * row + h.low * op->channels;
        const float *q = in + v.low * row + h.high * op->channels;
        const float *r = in + v.high * row + h.low * op->channels;
        const float *s = in + v.high * row + h.high * op->channels;
        for (size_t c = 0; c < op->channels; c++) {
          const float top = p[c] + (q[c] - p[c]) * h.share;
          const float bottom = r[c] + (s[c] - r[c]) * h.share;
          out[c] = top + (bottom - top) * v.share;
        }
      }
    }
  }
}

enum xnn_status xnn_create_resize_bilinear2d_nhwc(enum xnn_datatype datatype, size_t output_height,
                                                  size_t output_width, uint32_t flags,
                                                  xnn_operator_t *resize_op_out) {
  if (datatype != xnn_datatype_fp32) return xnn_status_unsupported_parameter;
  resize *op = np_portable_new(sizeof *op, run_resize, resize_op_out);
  if (op == NULL) return xnn_status_out_of_memory;
  op->out_height = output_height;
  op->out_width = output_width;
  op->mode = flags;
  return xnn_status_success;
}

enum xnn_status xnn_reshape_resize_bilinear2d_nhwc(
    xnn_operator_t resize_op, size_t batch_size, size_t input_height, size_t input_width,
    size_t channels, size_t input_pixel_stride, size_t output_pixel_stride, size_t *workspace_size,
    pthreadpool_t threadpool) {
  (void)threadpool;
  if (!np_portable_is(resize_op, run_resize) || input_height == 0 || input_width == 0) {
    return xnn_status_invalid_parameter;
  }
  if (input_pixel_stride != channels || output_pixel_stride != channels) {
    return xnn_status_unsupported_parameter;
  }
  resize *op = (resize *)resize_op;
  op->images = batch_size;
  op->height = input_height;
  op->width = input_width;
  op->channels = channels;
  *workspace_size = 0;
  resize_op->sized = true;
  return xnn_status_success;
}

enum xnn_status xnn_setup_resize_bilinear2d_nhwc(xnn_operator_t op, void *workspace,
                                                 const void *input, void *output) {
  (void)workspace;
  return np_portable_set_up(op, input, NULL, output);
}

/* Max pooling */

typedef struct {
  struct xnn_operator base;
  size_t top, left, bottom, right, kernel_height, kernel_width;
  size_t stride_height, stride_width, dilation_height, dilation_width;
  int8_t low, high;
  size_t images, height, width, channels, out_height, out_width;
} pooling;

static void run_pooling(const struct xnn_operator *base) {
  const pooling *op = (const pooling *)base;
  int8_t *out = base->out;
  for (size_t n = 0; n < op->images; n++) {
    for (size_t y = 0; y < op->out_height; y++) {
      for (size_t x = 0; x < op->out_width; x++, out += op->channels) {
        memset(out, op->low, op->channels);
        for (size_t tap = 0; tap < op->kernel_height * op->kernel_width; tap++) {
          const size_t ky = tap / op->kernel_width, kx = tap % op->kernel_width;
          const size_t row = y * op->stride_height + ky * op->dilation_height - op->top;
          const size_t column = x * op->stride_width + kx * op->dilation_width - op->left;
          /* What is before the image wraps to large numbers. */
          if (row >= op->height || column >= op->width) continue;
          const int8_t *in = (const int8_t *)base->a +
                             ((n * op->height + row) * op->width + column) * op->channels;
          for (size_t c = 0; c < op->channels; c++) out[c] = in[c] > out[c] ? in[c] : out[c];
        }
        for (size_t c = 0; c < op->channels; c++) out[c] = out[c] < op->high ? out[c] : op->high;
      }
    }
  }
}

enum xnn_status xnn_create_max_pooling2d_nhwc_s8(
    uint32_t input_padding_top, uint32_t input_padding_right, uint32_t input_padding_bottom,
    uint32_t input_padding_left, uint32_t pooling_height, uint32_t pooling_width,
    uint32_t stride_height, uint32_t stride_width, uint32_t dilation_height,
    uint32_t dilation_width, int8_t output_min, int8_t output_max, uint32_t flags,
    xnn_operator_t *max_pooling_op_out) {
  (void)flags;
  pooling *op = np_portable_new(sizeof *op, run_pooling, max_pooling_op_out);
  if (op == NULL) return xnn_status_out_of_memory;
  op->top = input_padding_top;
  op->right = input_padding_right;
  op->bottom = input_padding_bottom;
  op->left = input_padding_left;
  op->kernel_height = pooling_height;
  op->kernel_width = pooling_width;
  op->stride_height = stride_height;
  op->stride_width = stride_width;
  op->dilation_height = dilation_height;
  op->dilation_width = dilation_width;
  op->low = output_min;
  op->high = output_max;
  return xnn_status_success;
}

enum xnn_status xnn_reshape_max_pooling2d_nhwc_s8(
    xnn_operator_t max_pooling_op, size_t batch_size, size_t input_height, size_t input_width,
    size_t channels, size_t input_pixel_stride, size_t output_pixel_stride,
    size_t *output_height_out, size_t *output_width_out, pthreadpool_t threadpool) {
  (void)threadpool;
  if (!np_portable_is(max_pooling_op, run_pooling)) return xnn_status_invalid_parameter;
  if (input_pixel_stride != channels || output_pixel_stride != channels) {
    return xnn_status_unsupported_parameter;
  }
  pooling *op = (pooling *)max_pooling_op;
  const size_t height = input_height + op->top + op->bottom;
  const size_t width = input_width + op->left + op->right;
  const size_t tall = (op->kernel_height - 1) * op->dilation_height + 1;
  const size_t wide = (op->kernel_width - 1) * op->dilation_width + 1;
  if (tall > height || wide > width) return xnn_status_invalid_parameter;
  op->images = batch_size;
  op->height = input_height;
  op->width = input_width;
  op->channels = channels;
  op->out_height = *output_height_out = (height - tall) / op->stride_height + 1;
  op->out_width = *output_width_out = (width - wide) / op->stride_width + 1;
  max_pooling_op->sized = true;
  return xnn_status_success;
}

enum xnn_status xnn_setup_max_pooling2d_nhwc_s8(xnn_operator_t op, const void *input,
                                                void *output) {
  return np_portable_set_up(op, input, NULL, output);
}
