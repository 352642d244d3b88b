/* GEMM with float32 results of rows and a matrix of int8; see gemm/int8/int8.h. */
#include "gemm/int8/panel.h"

typedef struct {
  const struct np_int8_gemm_params *params;
  const np_int8_micro_kernels *code;
  const uint8_t *in;
  float in_scale; /* of rows of int8 */
  int32_t in_zero;
  float *out;
  uint8_t *scratch;
} job;

/* Prepare a row tile: write the offset, scale and zero point of each row, and upcast rows that are
 * not in the kernel's form to scratch memory. Returns what the offsets count from. */
static const uint8_t *prepare_rows(const job *task, size_t first, size_t rows, size_t steps,
                                   uint8_t *scratch) {
  const struct np_int8_gemm_params *p = task->params;
  const np_int8_micro_kernels *code = task->code;
  int32_t *pixels = (int32_t *)(scratch + p->pixels_offset);
  float *scales = (float *)(scratch + p->scales_offset);
  int32_t *zeros = (int32_t *)(scratch + p->zeros_offset);
  if (p->from == NP_INT8_ROWS_QUANTIZED) {
    const uint8_t *given = task->in + first * p->row_bytes;
    for (size_t row = 0; row < rows; row++) {
      const uint8_t *end = given + (row + 1) * p->row_bytes;
      pixels[row] = (int32_t)(row * p->row_bytes / code->element);
      memcpy(&scales[row], end - 8, sizeof *scales);
      memcpy(&zeros[row], end - 4, sizeof *zeros);
    }
    return given;
  }
  uint8_t *wide = scratch;
  const size_t row_size = steps * code->group, filled = p->channels * code->element;
  for (size_t row = 0; row < rows; row++, wide += row_size * code->element) {
    pixels[row] = (int32_t)(row * row_size);
    memset(wide + filled, 0, row_size * code->element - filled);
    code->upcast(task->in + (first + row) * p->channels, p->channels, task->in_zero,
                 wide);
    scales[row] = task->in_scale;
    zeros[row] = task->in_zero + 128;
  }
  return scratch;
}

static void part(void *context, size_t thread, size_t index) {
  const job *task = context;
  const struct np_int8_gemm_params *p = task->params;
  const np_int8_micro_kernels *code = task->code;
  const size_t columns = index % p->parts * p->part_columns;
  const size_t first = index / p->parts * p->row_tile;
  const size_t rows = first + p->row_tile < p->rows ? p->row_tile : p->rows - first;
  const size_t steps = (p->channels + code->group - 1) / code->group;
  uint8_t *scratch = task->scratch + thread * p->thread_scratch;
  const uint8_t *image = prepare_rows(task, first, rows, steps, scratch);
  const size_t last =
      columns + p->part_columns < p->outputs ? columns + p->part_columns : p->outputs;
  const int32_t run = 0;
  const int given = p->from == NP_INT8_ROWS_QUANTIZED;
  np_int8_panel panel = {
      .kind = NP_INT8_TO_FLOAT,
      .image = image,
      .pixels = (const int32_t *)(scratch + p->pixels_offset),
      .count = rows,
      .line = rows,
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
    np_int8_row_sums(code, image, panel.pixels, rows, &run, 1, p->channels, panel.row_zeros, acc);
    panel.row_sums = acc;
  }
  const size_t panel_size = np_int8_panel_size(code->group, code->columns, steps);
  if (p->rows == 1 && code->row != NULL) {
    panel.panel = (const uint8_t *)p->packed + columns / code->columns * panel_size;
    panel.columns = last - columns;
    panel.out = task->out + columns;
    if (p->weight_zeros != NULL) panel.weight_zeros = p->weight_zeros + columns;
    code->row(&panel);
    return;
  }
  for (size_t column = columns; column < last; column += panel.columns) {
    panel.columns = last - column < code->most ? last - column : code->most;
    panel.panel = (const uint8_t *)p->packed + column / code->columns * panel_size;
    panel.out = task->out + first * p->outputs + column;
    if (p->weight_zeros != NULL) panel.weight_zeros = p->weight_zeros + column;
    code->multiply(&panel);
  }
}

int np_int8_gemm(const void *params, const void *const *inputs, void *out, void *workspace,
                 np_workers *workers) {
  const struct np_int8_gemm_params *p = params;
  job task = {.params = p,
              .code = np_int8_micro_kernels_for(p->target, p->vnni),
              .in = inputs[0],
              .in_scale = p->in_scale,
              .in_zero = p->in_zero,
              .out = out,
              .scratch = workspace};
  if (p->from == NP_INT8_ROWS_AT_RUN)
    np_int8_read_quantization(inputs, &task.in_scale, &task.in_zero);
  const double work = (double)p->rows * (double)p->channels * (double)p->outputs;
  const size_t row_tiles = (p->rows + p->row_tile - 1) / p->row_tile;
  np_parallel_for(work < NP_SMALL_NARROW ? NULL : workers, part, &task, row_tiles * p->parts, 0);
  return 0;
}

typedef struct {
  const struct np_int8_rows_params *params;
  const np_int8_micro_kernels *code;
  const float *in;
  uint8_t *out;
} rows_job;

static void quantize_rows(void *context, size_t start, size_t count) {
  const rows_job *task = context;
  const struct np_int8_rows_params *p = task->params;
  const size_t filled = p->channels * task->code->element;
  uint8_t *out = task->out + start * p->row_bytes;
  for (size_t row = start; row < start + count; row++, out += p->row_bytes) {
    int32_t zero;
    const float scale = task->code->quantize(task->in + row * p->channels, p->channels, out, &zero);
    memset(out + filled, 0, p->row_bytes - 8 - filled);
    memcpy(out + p->row_bytes - 8, &scale, sizeof scale);
    memcpy(out + p->row_bytes - 4, &zero, sizeof zero);
  }
}

int np_int8_rows(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_int8_rows_params *p = params;
  rows_job task = {p, np_int8_micro_kernels_for(p->target, p->vnni), inputs[0], out};
  const size_t bytes = p->rows * p->channels * sizeof(float);
  const size_t tile = 1 + NP_PARALLEL_MIN_BYTES / 8 / p->channels;
  np_parallel_for_tiles(bytes < NP_PARALLEL_MIN_BYTES ? NULL : workers, quantize_rows, &task,
                        p->rows, tile, 0);
  return 0;
}
