/* GEMM with float32 results of rows and a matrix of int8; see gemm/int8/int8.h. */
#include "gemm/int8/panel.h"

/* Bytes of weights between two looks at whether the run is stopped, of a single row. */
#define STRETCH_BYTES ((size_t)1 << 22)

/* Prepare a row tile: write the offset, scale and zero point of each row, and upcast rows that are
 * not in the kernel's form to scratch memory. Returns what the offsets count from. */
static const uint8_t *prepare_rows(const np_job *job, const np_int8_micro_kernels *code,
                                   size_t first, size_t rows, size_t steps, uint8_t *scratch) {
  const struct np_int8_gemm_params *p = job->params;
  int32_t *pixels = (int32_t *)(scratch + p->pixels_offset);
  float *scales = (float *)(scratch + p->scales_offset);
  int32_t *zeros = (int32_t *)(scratch + p->zeros_offset);
  if (p->from == NP_INT8_ROWS_QUANTIZED) {
    const uint8_t *given = (const uint8_t *)job->inputs[0] + first * p->row_bytes;
    for (size_t row = 0; row < rows; row++) {
      const uint8_t *end = given + (row + 1) * p->row_bytes;
      pixels[row] = (int32_t)(row * p->row_bytes / code->element);
      memcpy(&scales[row], end - 8, sizeof *scales);
      memcpy(&zeros[row], end - 4, sizeof *zeros);
    }
    return given;
  }
  float in_scale = p->in_scale;
  int32_t in_zero = p->in_zero;
  if (p->from == NP_INT8_ROWS_AT_RUN) np_int8_read_quantization(job->inputs, &in_scale, &in_zero);
  const int8_t *in = (const int8_t *)job->inputs[0] + first * p->channels;
  uint8_t *wide = scratch;
  const size_t row_size = steps * code->group, filled = p->channels * code->element;
  for (size_t row = 0; row < rows; row++, wide += row_size * code->element) {
    pixels[row] = (int32_t)(row * row_size);
    memset(wide + filled, 0, row_size * code->element - filled);
    code->upcast(in + row * p->channels, p->channels, in_zero, wide);
    scales[row] = in_scale;
    zeros[row] = in_zero + 128;
  }
  return scratch;
}

static void part(np_job *job, size_t thread, size_t index) {
  const struct np_int8_gemm_params *p = job->params;
  const np_int8_micro_kernels *code = np_int8_micro_kernels_for(p->target, p->vnni);
  const np_range columns = np_range_of(index % p->parts, p->part_columns, p->outputs);
  const np_range rows = np_range_of(index / p->parts, p->row_tile, p->rows);
  const size_t steps = np_ceil_div(p->channels, code->group);
  uint8_t *scratch = job->scratch + thread * p->thread_scratch;
  const uint8_t *image = prepare_rows(job, code, rows.first, rows.count, steps, scratch);
  const int32_t run = 0;
  const int given = p->from == NP_INT8_ROWS_QUANTIZED;
  np_int8_panel panel = {
      .kind = NP_INT8_TO_FLOAT,
      .image = image,
      .pixels = (const int32_t *)(scratch + p->pixels_offset),
      .count = rows.count,
      .line = rows.count,
      .step = given ? p->row_bytes / code->element : steps * code->group,
      .runs = &run,
      .run_count = 1,
      .groups = steps,
      .out_stride = p->outputs,
      .row_scales = (const float *)(scratch + p->scales_offset),
      .row_zeros = (const int32_t *)(scratch + p->zeros_offset),
      .low = p->low,
      .high = p->high,
      .raw = p->raw,
  };
  if (p->weight_zeros != NULL) {
    int32_t *acc = (int32_t *)(scratch + p->acc_offset);
    np_int8_row_sums(code, image, panel.pixels, rows.count, &run, 1, p->channels, panel.row_zeros,
                     acc);
    panel.row_sums = acc;
  }
  const size_t panel_size = np_int8_panel_size(code->group, code->columns, steps);
  if (p->rows == 1 && code->row != NULL) {
    const size_t some = (1 + STRETCH_BYTES / panel_size) * code->columns;
    for (size_t column = columns.first; column < columns.end; column += some) {
      if (column > columns.first && np_cancel_check()) return;
      panel.panel = (const uint8_t *)p->packed + column / code->columns * panel_size;
      panel.columns = np_min(some, columns.end - column);
      panel.out = (float *)job->out + column;
      if (p->weight_zeros != NULL) panel.weight_zeros = p->weight_zeros + column;
      code->row(&panel);
    }
    return;
  }
  const int slow = rows.count * p->channels > NP_SLOW;
  for (size_t column = columns.first; column < columns.end; column += panel.columns) {
    if (slow && np_cancel_check()) return;
    panel.columns = np_min(columns.end - column, code->most);
    panel.panel = (const uint8_t *)p->packed + column / code->columns * panel_size;
    panel.out = (float *)job->out + rows.first * p->outputs + column;
    if (p->weight_zeros != NULL) panel.weight_zeros = p->weight_zeros + column;
    code->multiply(&panel);
  }
}

int np_int8_gemm(np_job *job) {
  const struct np_int8_gemm_params *p = job->params;
  const double work = (double)p->rows * (double)p->channels * (double)p->outputs;
  return np_for_parts(job, part, np_ceil_div(p->rows, p->row_tile) * p->parts,
                      work < NP_SMALL_NARROW, 0);
}

static void quantize_rows(np_job *job, size_t start, size_t count) {
  const struct np_int8_rows_params *p = job->params;
  const np_int8_micro_kernels *code = np_int8_micro_kernels_for(p->target, p->vnni);
  const size_t filled = p->channels * code->element;
  const float *in = job->inputs[0];
  uint8_t *out = (uint8_t *)job->out + start * p->row_bytes;
  for (size_t row = start; row < start + count; row++, out += p->row_bytes) {
    int32_t zero;
    const float scale = code->quantize(in + row * p->channels, p->channels, out, &zero);
    memset(out + filled, 0, p->row_bytes - 8 - filled);
    memcpy(out + p->row_bytes - 8, &scale, sizeof scale);
    memcpy(out + p->row_bytes - 4, &zero, sizeof zero);
  }
}

int np_int8_rows(np_job *job) {
  const struct np_int8_rows_params *p = job->params;
  const size_t bytes = p->rows * p->channels * sizeof(float);
  return np_for_tiles(job, quantize_rows, p->rows, 1 + NP_PARALLEL_MIN_BYTES / 8 / p->channels,
                      bytes, 0);
}
