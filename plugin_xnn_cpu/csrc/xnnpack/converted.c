/* Fully connected operators of XNNPACK whose operands are converted; see xnnpack/converted.h. */
#include <math.h>

#include "elementwise/convert.h"
#include "runtime/kernel.h"
#include "xnnpack/converted.h"

#define TILE_BYTES 32768
#define HUGE_BITS 0x7f000000u /* 2^127: the range of a row of smaller numbers is finite */

static int convert(int conversion, size_t count, const void *in, void *out, np_workers *workers) {
  const struct np_convert_params params = {count, conversion};
  return np_convert(&(np_job){&params, &in, out, NULL, workers, 0});
}

int np_fully_connected_bf16(np_job *job, xnn_operator_t op) {
  const struct np_converted_params *p = job->params;
  int status =
      convert(NP_CONVERT_F32_TO_BF16, p->inputs, job->inputs[0], job->scratch, job->workers);
  if (status == 0) status = xnn_setup_fully_connected_nc_bf16_f32(op, job->scratch, job->out);
  return status != 0 ? status : (int)xnn_run_operator(op, np_workers_pool(job->workers));
}

int np_fully_connected_f16(np_job *job, xnn_operator_t op) {
  const struct np_converted_params *p = job->params;
  void *half = job->scratch + p->output_offset;
  int status =
      convert(NP_CONVERT_F32_TO_F16, p->inputs, job->inputs[0], job->scratch, job->workers);
  if (status == 0) status = xnn_setup_fully_connected_nc_f16(op, job->scratch, half);
  if (status == 0) status = xnn_run_operator(op, np_workers_pool(job->workers));
  if (status != 0) return status;
  return convert(NP_CONVERT_F16_TO_F32, p->outputs, half, job->out, job->workers);
}

/* Which rows have an element that is NaN, infinite or huge. */
NP_TILE(find_odd_rows) {
  const struct np_dynamic_int8_params *p = job->params;
  const size_t channels = p->channels;
  const float *row = (const float *)job->inputs[0] + start * channels;
  uint8_t *odd = job->scratch + p->odd_offset;
  for (size_t i = start; i < start + count; i++, row += channels) {
    uint32_t largest = 0;
    for (size_t k = 0; k < channels; k++) {
      const uint32_t bits = np_bits_of(row[k]) & 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
    odd[i] = largest >= HUGE_BITS;
  }
}

/* XNNPACK's conversion hides NaN, and infinities become anything: rows with such are NaN. */
int np_fully_connected_int8_rows(np_job *job, xnn_operator_t op) {
  const struct np_dynamic_int8_params *p = job->params;
  const float *rows = job->inputs[0];
  float *out = job->out;
  int8_t *integers = (int8_t *)job->scratch;
  struct xnn_quantization_params *ranges =
      (struct xnn_quantization_params *)(void *)(job->scratch + p->ranges_offset);
  const uint8_t *odd = job->scratch + p->odd_offset;
  void *scratch = job->scratch + p->scratch_offset;

  const size_t row_bytes = p->channels * sizeof(float);
  np_for_tiles(job, find_odd_rows, p->rows, row_bytes < TILE_BYTES ? TILE_BYTES / row_bytes : 1,
               p->rows * row_bytes, 0);
  np_workers *const used = np_workers_for(p->rows * row_bytes, job->workers);
  int status =
      p->is_unsigned
          ? xnn_setup_convert_nc_f32_qdu8(p->to_int8, rows, (uint8_t *)integers, NULL, ranges)
          : xnn_setup_convert_nc_f32_qd8(p->to_int8, rows, integers, NULL, ranges);
  if (status == 0) status = xnn_run_operator(p->to_int8, np_workers_pool(used));
  if (status == 0) {
    status = p->is_unsigned
                 ? xnn_setup_fully_connected_nc_qdu8_f32_qc8w(op, integers, out, scratch, ranges)
                 : xnn_setup_fully_connected_nc_qd8_f32_qc8w(op, integers, out, scratch, ranges);
  }
  if (status == 0) status = xnn_run_operator(op, np_workers_pool(job->workers));
  if (status != 0) return status;
  for (size_t i = 0; i < p->rows; i++) {
    if (!odd[i]) continue;
    for (size_t n = 0; n < p->outputs; n++) out[i * p->outputs + n] = NAN;
  }
  return 0;
}

static void add_offset(np_job *job, size_t start, size_t count) {
  const int8_t *rows = job->inputs[0];
  uint8_t *moved = job->scratch;
  for (size_t i = start; i < start + count; i++) moved[i] = (uint8_t)(rows[i] ^ 0x80);
}

int np_fully_connected_s8_f32(np_job *job, xnn_operator_t op) {
  const struct np_s8_f32_params *p = job->params;
  void *scratch = job->scratch + p->scratch_offset, *out = job->out;
  int status;
  if (p->is_unsigned) {
    np_for_tiles(job, add_offset, p->count, TILE_BYTES, p->count, 0);
    status = xnn_setup_fully_connected_nc_qdu8_f32_qc8w(op, job->scratch, out, scratch, p->ranges);
  } else {
    status = xnn_setup_fully_connected_nc_qd8_f32_qc8w(op, job->inputs[0], out, scratch, p->ranges);
  }
  return status != 0 ? status : (int)xnn_run_operator(op, np_workers_pool(job->workers));
}
