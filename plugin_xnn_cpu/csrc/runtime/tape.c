#define _POSIX_C_SOURCE 199309L /* clock_gettime */

#include "runtime/tape.h"

#include <string.h>
#include <time.h>

#include "runtime/loop.h"
#include "runtime/kernel.h"
#include "runtime/cancel.h"

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int set_up(const np_step *step, void *const *buffers, void *workspace) {
  const void *a = buffers[step->inputs[0]];
  void *out = buffers[step->output];
  switch (step->call) {
    case NP_UNARY:
      return xnn_setup_unary_elementwise_nc(step->op, a, out);
    case NP_BINARY:
      return xnn_setup_binary_elementwise_nd(step->op, a, buffers[step->inputs[1]], out);
    case NP_CONVOLUTION:
      return xnn_setup_convolution2d_nhwc_f32(step->op, workspace, a, out);
    case NP_DECONVOLUTION:
      return xnn_setup_deconvolution2d_nhwc_f32(step->op, a, out);
    case NP_FULLY_CONNECTED:
      return xnn_setup_fully_connected_nc_f32(step->op, a, out);
    case NP_FULLY_CONNECTED_INT8:
      return xnn_setup_fully_connected_nc_f32_qc8w(step->op, a, out);
    case NP_REDUCE:
      /* Workspace is for accumulators wider than the output; given one, fp32 jumps to NULL. */
      return xnn_setup_reduce_nd(step->op, NULL, a, out);
    case NP_SOFTMAX:
      return xnn_setup_softmax_nc_f32(step->op, a, out);
    case NP_PAD:
      return xnn_setup_constant_pad_nd_x32(step->op, a, out);
    case NP_TRANSPOSE:
      return xnn_setup_transpose_nd_x32(step->op, a, out);
    case NP_CONVOLUTION_S8:
      return xnn_setup_convolution2d_nhwc_qs8_qc8w(step->op, workspace, a, out);
    case NP_DECONVOLUTION_S8:
      return xnn_setup_deconvolution2d_nhwc_qs8_qc8w(step->op, a, out);
    case NP_FULLY_CONNECTED_S8:
      return xnn_setup_fully_connected_nc_qs8_qc8w(step->op, a, out);
    case NP_MAX_POOL_S8:
      return xnn_setup_max_pooling2d_nhwc_s8(step->op, a, out);
    case NP_PAD_S8:
      return xnn_setup_constant_pad_nd_x8(step->op, a, out);
    case NP_TRANSPOSE_S8:
      return xnn_setup_transpose_nd_x8(step->op, a, out);
    case NP_REDUCE_S8:
      return xnn_setup_reduce_nd(step->op, workspace, a, out);
    case NP_RESIZE_BILINEAR:
      return xnn_setup_resize_bilinear2d_nhwc(step->op, workspace, a, out);
    default:
      return NP_STATUS_CALL;
  }
}

static int convert(int conversion, size_t count, const void *in, void *out, np_workers *workers) {
  const struct np_convert_params params = {count, conversion};
  const void *inputs[NP_MAX_INPUTS] = {in};
  return np_convert(&params, inputs, out, workers);
}

/* Products in a narrow type: operands of float32 are rounded, results are float32 again. */
static int run_narrow(const np_step *step, void *const *buffers, void *workspace,
                      np_workers *workers) {
  const struct np_narrow_params *p = step->params;
  const void *rows = buffers[step->inputs[0]];
  void *out = buffers[step->output];
  if (step->call == NP_FULLY_CONNECTED_INT8_ROWS) {
    return np_product_int8(step, rows, out, workspace, workers);
  }
  if (step->call == NP_FULLY_CONNECTED_S8_F32) {
    return np_product_s8_f32(step, (const int8_t *)rows, out, workspace, workers);
  }
  int status;
  if (step->call == NP_FULLY_CONNECTED_BF16) {
    status = convert(NP_CONVERT_F32_TO_BF16, p->inputs, rows, workspace, workers);
    if (status == 0) status = xnn_setup_fully_connected_nc_bf16_f32(step->op, workspace, out);
    return status != 0 ? status : (int)xnn_run_operator(step->op, np_workers_pool(workers));
  }
  void *half = (char *)workspace + p->output_offset;
  status = convert(NP_CONVERT_F32_TO_F16, p->inputs, rows, workspace, workers);
  if (status == 0) status = xnn_setup_fully_connected_nc_f16(step->op, workspace, half);
  if (status == 0) status = xnn_run_operator(step->op, np_workers_pool(workers));
  return status != 0 ? status : convert(NP_CONVERT_F16_TO_F32, p->outputs, half, out, workers);
}

static int run_kernel(const np_step *step, void *const *buffers, void *workspace,
                      np_workers *workers) {
  const void *inputs[NP_MAX_INPUTS];
  for (size_t i = 0; i < NP_MAX_INPUTS; i++) {
    inputs[i] = step->inputs[i] < 0 ? NULL : buffers[step->inputs[i]];
  }
  void *out = buffers[step->output];
  switch (step->call) {
    case NP_COPY:
      return np_copy(step->params, inputs, out, workers);
    case NP_WHERE:
      return np_where(step->params, inputs, out, workers);
    case NP_GATHER:
      return np_gather(step->params, inputs, out, workers);
    case NP_LAYER_NORM:
      return np_layer_norm(step->params, inputs, out, workers);
    case NP_ADD_CLAMP:
      return np_add_clamp(step->params, inputs, out, workers);
    case NP_FUNCTION:
      return np_function(step->params, inputs, out, workers);
    case NP_INTERLEAVE:
      return np_interleave(step->params, inputs, out, workers);
    case NP_SOFTMAX_PAIRS:
      return np_softmax_pairs(step->params, inputs, out, workers);
    case NP_CONVERT:
      return np_convert(step->params, inputs, out, workers);
    case NP_QUANTIZE:
      return np_quantize(step->params, inputs, out, workers);
    case NP_DEQUANTIZE:
      return np_dequantize(step->params, inputs, out, workers);
    case NP_TABLE:
      return np_table(step->params, inputs, out, workers);
    case NP_GATHER_S8:
      return np_gather_s8(step->params, inputs, out, workers);
    case NP_SCATTER_ROWS:
      return np_scatter_rows(step->params, inputs, out, workers);
    case NP_GATE:
      return np_gate(step->params, inputs, out, workers);
    case NP_POOL:
      return np_pool(step->params, inputs, out, workers);
    case NP_EXTREMES:
      return np_extremes(step->params, inputs, out, workers);
    case NP_ROTARY:
      return np_rotary(step->params, inputs, out, workers);
    case NP_ATTENTION:
      return np_attention(step->params, inputs, out, workspace, workers);
    case NP_CACHED_ATTENTION:
      return np_cached_attention(step->params, inputs, out, workspace, workers);
    case NP_OBSERVE:
      return np_observe(step->params, inputs, out, workers);
    case NP_INT8_CONVOLUTION:
      return np_int8_convolution(step->params, inputs, out, workspace, workers);
    case NP_INT8_DEPTHWISE:
      return np_int8_depthwise(step->params, inputs, out, workspace, workers);
    case NP_INT8_PRODUCT:
      return np_int8_product(step->params, inputs, out, workspace, workers);
    case NP_INT8_ROWS:
      return np_int8_rows(step->params, inputs, out, workers);
    case NP_INT8_QUAD_DEPTHWISE:
      return np_int8_quad_depthwise(step->params, inputs, out, workspace, workers);
    case NP_INT8_WINOGRAD:
      return np_int8_winograd(step->params, inputs, out, workspace, workers);
    case NP_FEW_ROWS:
      return np_few_rows(step->params, inputs, out, workers);
    case NP_FP32_CONVOLUTION:
      return np_fp32_convolution(step->params, inputs, out, workspace, workers);
    case NP_FP32_WINOGRAD:
      return np_fp32_winograd(step->params, inputs, out, workspace, workers);
    case NP_FP32_DEPTHWISE:
      return np_fp32_depthwise(step->params, inputs, out, workspace, workers);
    case NP_FP32_SEPARABLE:
      return np_fp32_separable(step->params, inputs, out, workspace, workers);
    case NP_NBITS:
      return np_nbits(step->params, inputs, out, workspace, workers);
    case NP_TREES:
      return np_trees(step->params, inputs, out, workspace, workers);
    case NP_RECURRENT:
      return np_recurrent(step->params, inputs, out, workspace, workers);
    case NP_WIDENED:
      return np_widened(step->params, inputs, out, workspace, workers);
    case NP_DYNAMIC_RANGE:
      return np_dynamic_range(step->params, inputs, out, workspace, workers);
    case NP_DYNAMIC_QUANTIZE:
      return np_dynamic_quantize(step->params, inputs, out, workers);
    case NP_DYNAMIC_DEQUANTIZE:
      return np_dynamic_dequantize(step->params, inputs, out, workers);
    case NP_MATMUL:
      return np_matmul(step->params, inputs, out, workspace, workers);
    case NP_BF16_CONVOLUTION:
      return np_bf16_convolution(step->params, inputs, out, workspace, workers);
    case NP_MATH:
      return np_math(step->params, inputs, out, workers);
    case NP_TYPED_BINARY:
      return np_typed_binary(step->params, inputs, out, workers);
    case NP_TYPED_UNARY:
      return np_typed_unary(step->params, inputs, out, workers);
    case NP_CAST:
      return np_cast(step->params, inputs, out, workers);
    case NP_TYPED_REDUCTION:
      return np_typed_reduction(step->params, inputs, out, workers);
    case NP_ROWS:
      return np_rows(step->params, inputs, out, workers);
    case NP_GROUP_NORM:
      return np_group_norm(step->params, inputs, out, workers);
    case NP_AFFINE:
      return np_affine(step->params, inputs, out, workers);
    case NP_QUANTIZE16:
      return np_quantize16(step->params, inputs, out, workers);
    case NP_DEQUANTIZE16:
      return np_dequantize16(step->params, inputs, out, workers);
    case NP_FAKE_CHANNELS:
      return np_fake_channels(step->params, inputs, out, workers);
    case NP_FAKE_QUANTIZE:
      return np_fake_quantize(step->params, inputs, out, workers);
    case NP_LRN:
      return np_lrn(step->params, inputs, out, workers);
    case NP_PICK:
      return np_pick(step->params, inputs, out, workers);
    case NP_GATHER_ELEMENTS:
      return np_gather_elements(step->params, inputs, out, workers);
    case NP_SCATTER_ELEMENTS:
      return np_scatter_elements(step->params, inputs, out, workers);
    case NP_GATHER_TUPLES:
      return np_gather_tuples(step->params, inputs, out, workers);
    case NP_SCATTER_TUPLES:
      return np_scatter_tuples(step->params, inputs, out, workers);
    case NP_TOP_K:
      return np_top_k(step->params, inputs, out, workers);
    default:
      return NP_STATUS_CALL;
  }
}

static int run_steps(np_step *steps, size_t count, void *const *buffers, void *workspace,
                     np_workers *workers, uint64_t *nanoseconds, size_t *failed) {
  uint64_t start = nanoseconds == NULL ? 0 : now();
  for (size_t i = 0; i < count; i++) {
    np_step *step = &steps[i];
    int status = 0;
    if (step->op == NULL) {
      status = run_kernel(step, buffers, workspace, workers);
    } else if (step->params != NULL) {
      status = run_narrow(step, buffers, workspace, workers);
    } else {
      if (!step->set_up) status = set_up(step, buffers, workspace);
      if (status == 0) {
        status = xnn_run_operator(step->op, step->alone ? NULL : np_workers_pool(workers));
      }
    }
    if (status == 0 && (np_stopped() || (np_stop_due() && np_stop_ask()))) {
      status = NP_STATUS_STOPPED;
    }
    if (status != 0) {
      *failed = i;
      return status;
    }
    if (nanoseconds != NULL) {
      uint64_t end = now();
      nanoseconds[i] = end - start;
      start = end;
    }
  }
  return 0;
}

#define PAGE 4096

int np_ends_in_page(const void *start, size_t size) {
  return ((uintptr_t)start + size - 1) % PAGE + XNN_EXTRA_BYTES < PAGE;
}

int np_run(np_step *steps, size_t count, void *const *buffers, void *workspace,
           np_workers *workers, uint64_t *nanoseconds, size_t *failed, int (*ask)(void *context),
           void *context) {
  np_stop stop = {.ask = ask, .context = context};
  np_stop *outer = np_stop_begin(&stop);
  np_workers_begin(workers);
  const int status = run_steps(steps, count, buffers, workspace, workers, nanoseconds, failed);
  np_workers_end(workers);
  np_stop_end(outer);
  return status;
}

static void move_buffers(np_loop *loop, void **buffers, size_t i) {
  for (size_t k = 0; k < loop->place_count; k++) {
    np_place *place = &loop->places[k];
    char *turn = place->turns[(i + place->phase) % 2];
    place->now = i == 0 && place->first != NULL ? place->first : turn + (ptrdiff_t)i * place->stride;
  }
  for (size_t k = 0; k < loop->buffer_count; k++) {
    const np_place_buffer *bound = &loop->buffers[k];
    buffers[bound->buffer] = loop->places[bound->place].now + bound->offset;
  }
}

int np_run_loop(np_step *steps, size_t count, void **buffers, void *workspace, np_workers *workers,
                size_t *failed, int (*ask)(void *context), void *context, np_loop *loop) {
  np_stop stop = {.ask = ask, .context = context};
  np_stop *outer = np_stop_begin(&stop);
  np_workers_begin(workers);
  int status = 0;
  for (size_t i = loop->start; i < loop->end && status == 0; i++) {
    move_buffers(loop, buffers, i);
    *loop->counter = (int64_t)i;
    loop->done = i;
    status = run_steps(steps, count, buffers, workspace, workers, NULL, failed);
    /* A body without steps asks too. */
    if (status == 0 && count == 0 && (np_stopped() || (np_stop_due() && np_stop_ask()))) {
      status = NP_STATUS_STOPPED;
    }
    if (status != 0) break;
    for (size_t k = 0; k < loop->copy_count; k++) {
      const np_place_copy *copy = &loop->copies[k];
      memcpy(loop->places[copy->to].now, loop->places[copy->from].now + copy->offset, copy->size);
    }
    loop->done = i + 1;
    if (loop->condition != NULL && *loop->condition == 0) break;
  }
  np_workers_end(workers);
  np_stop_end(outer);
  return status;
}
