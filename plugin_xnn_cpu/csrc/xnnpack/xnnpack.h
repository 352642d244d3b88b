/* What this backend uses of XNNPACK and pthreadpool, declared by hand.
 *
 * No headers come with the libraries. This file says what the documented interfaces of
 * XNNPACK at commit 92a7ad501b9516f9fecae119e0146dd1f58e54c1 and of pthreadpool say; the build
 * identifier is checked when the library is loaded, and a test calls every function named here.
 * Read by cffi too: no directives but simple constants. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* pthreadpool */

typedef struct pthreadpool *pthreadpool_t;

struct pthreadpool_executor {
  int (*num_threads)(void *executor_context);
  void (*schedule)(void *executor_context, void *context, void (*task)(void *context));
};

pthreadpool_t pthreadpool_create_v2(struct pthreadpool_executor *executor, void *executor_context,
                                    size_t max_num_threads);
void pthreadpool_destroy(pthreadpool_t threadpool);

/* XNNPACK: types */

#define XNN_MAX_TENSOR_DIMS 6
#define XNN_EXTRA_BYTES 16
#define XNN_EXTRA_QUANTIZATION_PARAMS 15
#define XNN_FLAG_DEPTHWISE_CONVOLUTION 0x00000001
#define XNN_FLAG_TRANSPOSE_WEIGHTS 0x00000001
#define XNN_FLAG_ALIGN_CORNERS 0x00000008
#define XNN_FLAG_DONT_SPIN_WORKERS 0x00000010
#define XNN_FLAG_TENSORFLOW_LEGACY_MODE 0x00000004
#define XNN_FLAG_KEEP_DIMS 0x00000040

enum xnn_status {
  xnn_status_success = 0,
  xnn_status_uninitialized = 1,
  xnn_status_invalid_parameter = 2,
  xnn_status_invalid_state = 3,
  xnn_status_unsupported_parameter = 4,
  xnn_status_unsupported_hardware = 5,
  xnn_status_out_of_memory = 6,
  xnn_status_reallocation_required = 7,
  xnn_status_deprecated = 8
};

enum xnn_datatype {
  xnn_datatype_invalid = 0,
  xnn_datatype_fp32 = 1,
  xnn_datatype_fp16 = 2,
  xnn_datatype_qint8 = 3
};

enum xnn_unary_operator {
  xnn_unary_invalid = -1,
  xnn_unary_abs = 0,
  xnn_unary_approxgelu = 1,
  xnn_unary_bankers_rounding = 2,
  xnn_unary_ceiling = 3,
  xnn_unary_clamp = 4,
  xnn_unary_convert = 5,
  xnn_unary_cosine = 6,
  xnn_unary_elu = 7,
  xnn_unary_exp = 8,
  xnn_unary_floor = 9,
  xnn_unary_gelu = 10,
  xnn_unary_hardswish = 11,
  xnn_unary_leaky_relu = 12,
  xnn_unary_log = 13,
  xnn_unary_negate = 14,
  xnn_unary_reciprocal_square_root = 15,
  xnn_unary_sigmoid = 16,
  xnn_unary_sine = 17,
  xnn_unary_square_root = 18,
  xnn_unary_square = 19,
  xnn_unary_tanh = 20
};

union xnn_unary_params {
  struct {
    float min;
    float max;
  } clamp;
  struct {
    float alpha;
  } elu;
  struct {
    float negative_slope;
  } leaky_relu;
};

enum xnn_binary_operator {
  xnn_binary_invalid = -1,
  xnn_binary_add = 0,
  xnn_binary_subtract = 1,
  xnn_binary_multiply = 2,
  xnn_binary_divide = 3,
  xnn_binary_maximum = 4,
  xnn_binary_minimum = 5,
  xnn_binary_copysign = 6,
  xnn_binary_squared_difference = 7,
  xnn_binary_prelu = 8
};

enum xnn_reduce_operator {
  xnn_reduce_invalid = -1,
  xnn_reduce_sum = 0,
  xnn_reduce_sum_squared = 1,
  xnn_reduce_mean = 2,
  xnn_reduce_mean_squared = 3,
  xnn_reduce_max = 4,
  xnn_reduce_min = 5
};

struct xnn_allocator;
struct xnn_quantization_params {
  int32_t zero_point;
  float scale;
};
typedef struct xnn_operator *xnn_operator_t;
/* XNNPACK: weights caches, and fingerprints of how weights are packed */

struct xnn_weights_cache_look_up_key {
  uint32_t seed;
  const void *kernel;
  const void *bias;
  uint32_t fingerprint_id;
};

struct xnn_weights_cache_provider {
  void *context;
  size_t (*look_up)(void *context, const struct xnn_weights_cache_look_up_key *cache_key);
  void *(*reserve_space)(void *context, size_t n);
  size_t (*look_up_or_insert)(void *context,
                              const struct xnn_weights_cache_look_up_key *cache_key, void *ptr,
                              size_t size);
  bool (*is_finalized)(void *context);
  void *(*offset_to_addr)(void *context, size_t offset);
  enum xnn_status (*delete_cache)(void *context);
  enum xnn_status (*alias_data)(void *context, void *alias, void *original);
};

typedef struct xnn_weights_cache_provider *xnn_weights_cache_t;

struct xnn_fingerprint {
  uint32_t id;
  uint32_t value;
};

const struct xnn_fingerprint *xnn_get_fingerprint(uint32_t id);
enum xnn_status xnn_check_fingerprint(struct xnn_fingerprint fingerprint);

/* XNNPACK: the library */

enum xnn_status xnn_initialize(const struct xnn_allocator *allocator);
const void *xnn_experimental_get_build_identifier_data(void);
size_t xnn_experimental_get_build_identifier_size(void);

/* XNNPACK: operators, each with create, reshape and setup */

enum xnn_status xnn_run_operator(xnn_operator_t op, pthreadpool_t threadpool);
enum xnn_status xnn_delete_operator(xnn_operator_t op);

/* Operators that differ in nothing but their types share a declaration; data pointers are void.
 * Of transposed convolutions the first four parameters are the padding of the output, which is
 * subtracted. */

typedef enum xnn_status xnn_create_plain_fn(uint32_t flags, xnn_operator_t *op_out);
xnn_create_plain_fn xnn_create_transpose_nd_x32, xnn_create_transpose_nd_x8,
                    xnn_create_convert_nc_f32_qd8, xnn_create_convert_nc_f32_qdu8;

typedef enum xnn_status xnn_reshape_rows_fn(xnn_operator_t op, size_t batch_size, size_t channels,
                                            size_t input_stride, size_t output_stride,
                                            pthreadpool_t threadpool);
xnn_reshape_rows_fn xnn_reshape_convert_nc_f32_qd8, xnn_reshape_convert_nc_f32_qdu8,
                    xnn_reshape_unary_elementwise_nc;

typedef enum xnn_status xnn_setup_plain_fn(xnn_operator_t op, const void *input, void *output);
xnn_setup_plain_fn xnn_setup_unary_elementwise_nc, xnn_setup_deconvolution2d_nhwc_f32,
                   xnn_setup_deconvolution2d_nhwc_qs8_qc8w, xnn_setup_fully_connected_nc_f32,
                   xnn_setup_fully_connected_nc_f16, xnn_setup_fully_connected_nc_bf16_f32,
                   xnn_setup_fully_connected_nc_f32_qc8w, xnn_setup_fully_connected_nc_qs8_qc8w,
                   xnn_setup_max_pooling2d_nhwc_s8, xnn_setup_constant_pad_nd_x32,
                   xnn_setup_constant_pad_nd_x8, xnn_setup_transpose_nd_x8,
                   xnn_setup_transpose_nd_x32;

typedef enum xnn_status xnn_setup_with_workspace_fn(xnn_operator_t op, void *workspace,
                                                    const void *input, void *output);
xnn_setup_with_workspace_fn xnn_setup_convolution2d_nhwc_f32, xnn_setup_convolution2d_nhwc_qs8_qc8w,
                            xnn_setup_reduce_nd, xnn_setup_resize_bilinear2d_nhwc;

typedef enum xnn_status xnn_create_convolution_f32_fn(
    uint32_t input_padding_top, uint32_t input_padding_right, uint32_t input_padding_bottom,
    uint32_t input_padding_left, uint32_t kernel_height, uint32_t kernel_width,
    uint32_t stride_height, uint32_t stride_width, uint32_t dilation_height,
    uint32_t dilation_width, uint32_t groups, size_t group_input_channels,
    size_t group_output_channels, size_t input_pixel_stride, size_t output_pixel_stride,
    const void *kernel, const void *bias, float output_min, float output_max, uint32_t flags,
    xnn_weights_cache_t weights_cache, xnn_operator_t *op_out);
xnn_create_convolution_f32_fn xnn_create_convolution2d_nhwc_f32,
                              xnn_create_deconvolution2d_nhwc_f32;

typedef enum xnn_status xnn_create_convolution_s8_fn(
    uint32_t input_padding_top, uint32_t input_padding_right, uint32_t input_padding_bottom,
    uint32_t input_padding_left, uint32_t kernel_height, uint32_t kernel_width,
    uint32_t stride_height, uint32_t stride_width, uint32_t dilation_height,
    uint32_t dilation_width, uint32_t groups, size_t group_input_channels,
    size_t group_output_channels, size_t input_pixel_stride, size_t output_pixel_stride,
    int8_t input_zero_point, float input_scale, const float *kernel_scale, const void *kernel,
    const void *bias, int8_t output_zero_point, float output_scale, int8_t output_min,
    int8_t output_max, uint32_t flags, xnn_weights_cache_t weights_cache, xnn_operator_t *op_out);
xnn_create_convolution_s8_fn xnn_create_convolution2d_nhwc_qs8_qc8w,
                             xnn_create_deconvolution2d_nhwc_qs8_qc8w;

typedef enum xnn_status xnn_reshape_convolution_fn(
    xnn_operator_t op, size_t batch_size, size_t input_height, size_t input_width,
    size_t *workspace_size, size_t *output_height_out, size_t *output_width_out,
    pthreadpool_t threadpool);
xnn_reshape_convolution_fn xnn_reshape_convolution2d_nhwc_f32,
                           xnn_reshape_convolution2d_nhwc_qs8_qc8w;

typedef enum xnn_status xnn_reshape_deconvolution_fn(
    xnn_operator_t op, size_t batch_size, size_t input_height, size_t input_width,
    uint32_t adjustment_height, uint32_t adjustment_width, size_t *output_height_out,
    size_t *output_width_out, pthreadpool_t threadpool);
xnn_reshape_deconvolution_fn xnn_reshape_deconvolution2d_nhwc_f32,
                             xnn_reshape_deconvolution2d_nhwc_qs8_qc8w;

typedef enum xnn_status xnn_create_fully_connected_fn(
    size_t input_channels, size_t output_channels, size_t input_stride, size_t output_stride,
    const void *kernel, const void *bias, float output_min, float output_max, uint32_t flags,
    xnn_weights_cache_t weights_cache, xnn_operator_t *op_out);
xnn_create_fully_connected_fn xnn_create_fully_connected_nc_f32, xnn_create_fully_connected_nc_f16,
                              xnn_create_fully_connected_nc_bf16_f32;

typedef enum xnn_status xnn_create_fully_connected_qc8w_fn(
    size_t input_channels, size_t output_channels, size_t input_stride, size_t output_stride,
    const float *kernel_scale, const void *kernel, const void *bias, float output_min,
    float output_max, uint32_t flags, xnn_weights_cache_t weights_cache, xnn_operator_t *op_out);
xnn_create_fully_connected_qc8w_fn xnn_create_fully_connected_nc_f32_qc8w,
                                   xnn_create_fully_connected_nc_qd8_f32_qc8w,
                                   xnn_create_fully_connected_nc_qdu8_f32_qc8w;

typedef enum xnn_status xnn_reshape_fully_connected_fn(xnn_operator_t op, size_t batch_size,
                                                       pthreadpool_t threadpool);
xnn_reshape_fully_connected_fn
    xnn_reshape_fully_connected_nc_f32, xnn_reshape_fully_connected_nc_f16,
    xnn_reshape_fully_connected_nc_bf16_f32, xnn_reshape_fully_connected_nc_f32_qc8w,
    xnn_reshape_fully_connected_nc_qs8_qc8w;

typedef enum xnn_status xnn_reshape_fully_connected_dynamic_fn(
    xnn_operator_t op, size_t batch_size, size_t *workspace_size, pthreadpool_t threadpool);
xnn_reshape_fully_connected_dynamic_fn xnn_reshape_fully_connected_nc_qd8_f32_qc8w,
                                       xnn_reshape_fully_connected_nc_qdu8_f32_qc8w;

typedef enum xnn_status xnn_setup_fully_connected_dynamic_fn(
    xnn_operator_t op, const void *input, void *output, void *workspace,
    const struct xnn_quantization_params *quantization_params);
xnn_setup_fully_connected_dynamic_fn xnn_setup_fully_connected_nc_qd8_f32_qc8w,
                                     xnn_setup_fully_connected_nc_qdu8_f32_qc8w;

typedef enum xnn_status xnn_setup_convert_dynamic_fn(
    xnn_operator_t op, const void *input, void *output, float *row_sum,
    struct xnn_quantization_params *quantization_params);
xnn_setup_convert_dynamic_fn xnn_setup_convert_nc_f32_qd8, xnn_setup_convert_nc_f32_qdu8;

typedef enum xnn_status xnn_create_constant_pad_fn(const void *padding_value, uint32_t flags,
                                                   xnn_operator_t *op_out);
xnn_create_constant_pad_fn xnn_create_constant_pad_nd_x32, xnn_create_constant_pad_nd_x8;

typedef enum xnn_status xnn_reshape_constant_pad_fn(
    xnn_operator_t op, size_t num_dims, const size_t *input_shape, const size_t *pre_padding,
    const size_t *post_padding, pthreadpool_t threadpool);
xnn_reshape_constant_pad_fn xnn_reshape_constant_pad_nd_x32, xnn_reshape_constant_pad_nd_x8;

typedef enum xnn_status xnn_reshape_transpose_fn(
    xnn_operator_t op, size_t num_dims, const size_t *input_shape, const size_t *output_perm,
    pthreadpool_t threadpool);
xnn_reshape_transpose_fn xnn_reshape_transpose_nd_x32, xnn_reshape_transpose_nd_x8;

enum xnn_status xnn_create_unary_elementwise_nc(
    enum xnn_unary_operator op_type, enum xnn_datatype input_datatype,
    enum xnn_datatype output_datatype, const union xnn_unary_params *params, const void *lut,
    const struct xnn_quantization_params *input_quantization,
    const struct xnn_quantization_params *output_quantization, uint32_t flags,
    xnn_operator_t *op_out);
enum xnn_status xnn_create_binary_elementwise_nd(
    enum xnn_binary_operator type, enum xnn_datatype datatype,
    const struct xnn_quantization_params *a_quantization,
    const struct xnn_quantization_params *b_quantization,
    const struct xnn_quantization_params *output_quantization, uint32_t flags,
    xnn_operator_t *binary_op_out);
enum xnn_status xnn_reshape_binary_elementwise_nd(
    xnn_operator_t binary_op, size_t num_input1_dims, const size_t *input1_shape,
    size_t num_input2_dims, const size_t *input2_shape, pthreadpool_t threadpool);
enum xnn_status xnn_setup_binary_elementwise_nd(xnn_operator_t binary_op, const void *input1,
                                                const void *input2, void *output);
enum xnn_status xnn_create_fully_connected_nc_qs8_qc8w(
    size_t input_channels, size_t output_channels, size_t input_stride, size_t output_stride,
    int8_t input_zero_point, float input_scale, const float *kernel_scale, const int8_t *kernel,
    const int32_t *bias, int8_t output_zero_point, float output_scale, int8_t output_min,
    int8_t output_max, uint32_t flags, xnn_weights_cache_t weights_cache,
    xnn_operator_t *fully_connected_op_out);
enum xnn_status xnn_create_max_pooling2d_nhwc_s8(
    uint32_t input_padding_top, uint32_t input_padding_right, uint32_t input_padding_bottom,
    uint32_t input_padding_left, uint32_t pooling_height, uint32_t pooling_width,
    uint32_t stride_height, uint32_t stride_width, uint32_t dilation_height,
    uint32_t dilation_width, int8_t output_min, int8_t output_max, uint32_t flags,
    xnn_operator_t *max_pooling_op_out);
enum xnn_status xnn_reshape_max_pooling2d_nhwc_s8(
    xnn_operator_t max_pooling_op, size_t batch_size, size_t input_height, size_t input_width,
    size_t channels, size_t input_pixel_stride, size_t output_pixel_stride,
    size_t *output_height_out, size_t *output_width_out, pthreadpool_t threadpool);
enum xnn_status xnn_create_reduce_nd(enum xnn_reduce_operator reduce_operator_type,
                                     enum xnn_datatype datatype,
                                     const struct xnn_quantization_params *input_quantization,
                                     const struct xnn_quantization_params *output_quantization,
                                     uint32_t flags, xnn_operator_t *reduce_op_out);
enum xnn_status xnn_reshape_reduce_nd(xnn_operator_t reduce_op, size_t num_reduction_axes,
                                      const int64_t *reduction_axes, size_t num_input_dims,
                                      const size_t *input_shape, size_t *workspace_size,
                                      pthreadpool_t threadpool);
enum xnn_status xnn_create_resize_bilinear2d_nhwc(enum xnn_datatype datatype, size_t output_height,
                                                  size_t output_width, uint32_t flags,
                                                  xnn_operator_t *resize_op_out);
enum xnn_status xnn_reshape_resize_bilinear2d_nhwc(
    xnn_operator_t resize_op, size_t batch_size, size_t input_height, size_t input_width,
    size_t channels, size_t input_pixel_stride, size_t output_pixel_stride, size_t *workspace_size,
    pthreadpool_t threadpool);
