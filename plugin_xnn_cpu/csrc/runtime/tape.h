/* The tape: a compiled sequence of operators and kernels over numbered buffers.
 *
 * The caller owns everything that a step names and keeps it alive while the tape is used. Read by
 * cffi too: no directives but simple constants. */
#ifndef NARROWPASS_RUNTIME_TAPE_H
#define NARROWPASS_RUNTIME_TAPE_H

#include "elementwise/params.h"
#include "movement/index.h"
#include "quantize/int16.h"
#include "runtime/params.h"
#include "movement/pick.h"
#include "runtime/workers.h"

#define NP_MAX_INPUTS 6

/* What a step runs. The first group sets up an XNNPACK operator with its buffers and runs it. */
enum np_call {
  NP_UNARY = 0,
  NP_BINARY = 1,
  NP_CONVOLUTION = 2,
  NP_DECONVOLUTION = 3,
  NP_FULLY_CONNECTED = 4,
  NP_REDUCE = 8,
  NP_SOFTMAX = 9,
  NP_PAD = 10,
  NP_TRANSPOSE = 11,
  NP_RESIZE_BILINEAR = 12,
  NP_FULLY_CONNECTED_F16 = 13,
  NP_FULLY_CONNECTED_BF16 = 14,
  NP_FULLY_CONNECTED_INT8 = 15, /* of the matrix; its rows are float32 */
  NP_FULLY_CONNECTED_INT8_ROWS = 16,
  /* All of these are of int8 from end to end; the last one gives float32. */
  NP_CONVOLUTION_S8 = 17,
  NP_DECONVOLUTION_S8 = 18,
  NP_FULLY_CONNECTED_S8 = 19,
  NP_MAX_POOL_S8 = 20,
  NP_PAD_S8 = 21,
  NP_TRANSPOSE_S8 = 22,
  NP_REDUCE_S8 = 23,
  NP_FULLY_CONNECTED_S8_F32 = 24,

  NP_COPY = 32,
  NP_WHERE = 33,
  NP_GATHER = 34,
  NP_LAYER_NORM = 35,
  NP_ADD_CLAMP = 36,
  NP_FUNCTION = 38,
  NP_INTERLEAVE = 39,
  NP_SOFTMAX_PAIRS = 40,
  NP_CONVERT = 41,
  NP_ATTENTION = 42,
  NP_QUANTIZE = 43,
  NP_DEQUANTIZE = 44,
  NP_TABLE = 45,
  NP_GATHER_S8 = 46,
  NP_ROTARY = 47,
  NP_SCATTER_ROWS = 48,
  NP_CACHED_ATTENTION = 49,
  NP_GATE = 55,
  NP_POOL = 56,
  NP_EXTREMES = 57,

  NP_OBSERVE = 60, /* writes nothing to its output */

  NP_INT8_CONVOLUTION = 70,
  NP_INT8_DEPTHWISE = 71,
  NP_INT8_PRODUCT = 72,
  NP_INT8_WINOGRAD = 73,
  NP_FP32_CONVOLUTION = 74,
  NP_BF16_CONVOLUTION = 75,
  NP_NBITS = 76,
  NP_INT8_ROWS = 77,
  NP_INT8_QUAD_DEPTHWISE = 78,
  NP_FEW_ROWS = 80,
  NP_FP32_WINOGRAD = 81,
  NP_FP32_DEPTHWISE = 82,
  NP_FP32_SEPARABLE = 83,
  NP_WIDENED = 84,
  NP_RECURRENT = 90,

  NP_MATH = 100,
  NP_TYPED_BINARY = 101,
  NP_TYPED_UNARY = 102,
  NP_CAST = 103,
  NP_TYPED_REDUCTION = 104,
  NP_ROWS = 105,
  NP_GROUP_NORM = 106,
  NP_LRN = 107,
  NP_AFFINE = 108,

  NP_DYNAMIC_RANGE = 150,
  NP_DYNAMIC_QUANTIZE = 151,
  NP_DYNAMIC_DEQUANTIZE = 152,
  NP_PICK = 160,
  NP_MATMUL = 170,
  NP_TREES = 180,
  NP_GATHER_ELEMENTS = 190,
  NP_SCATTER_ELEMENTS = 191,
  NP_GATHER_TUPLES = 192,
  NP_SCATTER_TUPLES = 193,
  NP_TOP_K = 194,
  NP_QUANTIZE16 = 200,
  NP_DEQUANTIZE16 = 201,
  NP_FAKE_QUANTIZE = 202,
  NP_FAKE_CHANNELS = 203
};

/* Statuses of ours, beside those of XNNPACK. */
#define NP_STATUS_INDEX 100
#define NP_STATUS_CALL 101
#define NP_STATUS_STOPPED 102

typedef struct {
  int32_t call;       /* enum np_call */
  int32_t set_up;     /* 0: buffers changed since the last setup, or may change in each run */
  int32_t inputs[6];  /* buffer numbers */
  int32_t output;     /* buffer number */
  int32_t alone;      /* 1: an XNNPACK operator that is not worth waking the workers for */
  xnn_operator_t op;  /* NULL for kernels of ours */
  const void *params; /* for kernels of ours, and for products that convert their operands */
} np_step;

/* Run `count` steps. `buffers` holds the address of each buffer, `workspace` what the operators'
 * reshape and the kernels' parameters asked for; `workers` may be NULL for none.
 * Where `nanoseconds` is not NULL, each step's time goes there. Gives 0, or the status of the step
 * whose index is then in `failed`.
 *
 * Where `ask` is not NULL it is asked some fifty times a second, by the thread that calls, between
 * steps and between the parts of our kernels. Anything but 0 ends the run with NP_STATUS_STOPPED; what
 * it would have computed is then undefined. An operator of XNNPACK is computed to its end. */
int np_run(np_step *steps, size_t count, void *const *buffers, void *workspace,
           np_workers *workers, uint64_t *nanoseconds, size_t *failed, int (*ask)(void *context),
           void *context);

/* Whether the bytes that kernels may read beyond `size` bytes at `start` lie in the page of the last
 * of these, which is mapped. */
int np_ends_in_page(const void *start, size_t size);

#endif
