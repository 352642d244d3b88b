/* Fully connected operators of XNNPACK whose operands are converted; see xnnpack/converted.h. */
#include <math.h>

#include "elementwise/convert.h"
#include "runtime/kernel.h"
#include "xnnpack/converted.h"

#define TILE_BYTES 32768
#define HUGE_BITS 0x7f000000u /* 2^127: the range of a row of smaller numbers is finite */

static int convert(int conversion, size_t count, const void *in, void *out, np_workers *workers) {
  const struct np_convert_params params = {count, conversion};
  const void *inputs[NP_MAX_INPUTS] = {in};
  return np_convert(&params, inputs, out, workers);
}

int np_fully_connected_bf16(const np_step *step, const void *rows, void *out, void *workspace,
                            np_workers *workers) {
  const struct np_converted_params *p = step->params;
  int status = convert(NP_CONVERT_F32_TO_BF16, p->inputs, rows, workspace, workers);
  if (status == 0) status = xnn_setup_fully_connected_nc_bf16_f32(step->op, workspace, out);
  return status != 0 ? status : (int)xnn_run_operator(step->op, np_workers_pool(workers));
}

int np_fully_connected_f16(const np_step *step, const void *rows, void *out, void *workspace,
                           np_workers *workers) {
  const struct np_converted_params *p = step->params;
  void *half = (char *)workspace + p->output_offset;
  int status = convert(NP_CONVERT_F32_TO_F16, p->inputs, rows, workspace, workers);
  if (status == 0) status = xnn_setup_fully_connected_nc_f16(step->op, workspace, half);
  if (status == 0) status = xnn_run_operator(step->op, np_workers_pool(workers));
  return status != 0 ? status : convert(NP_CONVERT_F16_TO_F32, p->outputs, half, out, workers);
}

typedef struct {
  const float *rows;
  size_t channels;
  uint8_t *odd;
} scan;

NP_MULTIVERSIONED(uint32_t, largest_magnitude, (const float *row, size_t count), (row, count)) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; i++) {
    const uint32_t bits = np_bits_of(row[i]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

static void scan_rows(void *context, size_t start, size_t count) {
  const scan *task = context;
  for (size_t i = start; i < start + count; i++) {
    task->odd[i] = largest_magnitude(task->rows + i * task->channels, task->channels) >= HUGE_BITS;
  }
}

/* XNNPACK's conversion hides NaN, and infinities become anything: rows with such are NaN. */
int np_fully_connected_int8_rows(const np_step *step, const void *inputs, void *result,
                                 void *workspace, np_workers *workers) {
  const struct np_dynamic_int8_params *p = step->params;
  const float *rows = inputs;
  float *out = result;
  int8_t *integers = workspace;
  struct xnn_quantization_params *ranges =
      (struct xnn_quantization_params *)((char *)workspace + p->ranges_offset);
  uint8_t *odd = (uint8_t *)workspace + p->odd_offset;
  void *scratch = (char *)workspace + p->scratch_offset;

  scan task = {rows, p->channels, odd};
  const size_t row_bytes = p->channels * sizeof(float);
  const size_t tile = row_bytes < TILE_BYTES ? TILE_BYTES / row_bytes : 1;
  np_workers *const used = np_workers_for(p->rows * row_bytes, workers);
  np_parallel_for_tiles(used, scan_rows, &task, p->rows, tile, 0);

  int status =
      p->is_unsigned
          ? xnn_setup_convert_nc_f32_qdu8(p->to_int8, rows, (uint8_t *)integers, NULL, ranges)
          : xnn_setup_convert_nc_f32_qd8(p->to_int8, rows, integers, NULL, ranges);
  if (status == 0) status = xnn_run_operator(p->to_int8, np_workers_pool(used));
  if (status == 0) {
    status =
        p->is_unsigned
            ? xnn_setup_fully_connected_nc_qdu8_f32_qc8w(step->op, integers, out, scratch, ranges)
            : xnn_setup_fully_connected_nc_qd8_f32_qc8w(step->op, integers, out, scratch, ranges);
  }
  if (status == 0) status = xnn_run_operator(step->op, np_workers_pool(workers));
  if (status != 0) return status;
  for (size_t i = 0; i < p->rows; i++) {
    if (!odd[i]) continue;
    for (size_t n = 0; n < p->outputs; n++) out[i * p->outputs + n] = NAN;
  }
  return 0;
}

typedef struct {
  const int8_t *rows;
  uint8_t *moved;
} move;

static void move_up(void *context, size_t start, size_t count) {
  const move *task = context;
  for (size_t i = start; i < start + count; i++) task->moved[i] = (uint8_t)(task->rows[i] ^ 0x80);
}

int np_fully_connected_s8_f32(const np_step *step, const void *rows, void *out, void *workspace,
                              np_workers *workers) {
  const struct np_s8_f32_params *p = step->params;
  void *scratch = (char *)workspace + p->scratch_offset;
  int status;
  if (p->is_unsigned) {
    move task = {rows, workspace};
    np_parallel_for_tiles(np_workers_for(p->count, workers), move_up, &task, p->count, TILE_BYTES,
                          0);
    status = xnn_setup_fully_connected_nc_qdu8_f32_qc8w(step->op, workspace, out, scratch,
                                                        p->ranges);
  } else {
    status = xnn_setup_fully_connected_nc_qd8_f32_qc8w(step->op, rows, out, scratch, p->ranges);
  }
  return status != 0 ? status : (int)xnn_run_operator(step->op, np_workers_pool(workers));
}
