/* Products with float32 results of rows and a matrix of int8; see int8_kernels.h. */
#include "int8_code.h"

#define SMALL_WORK 4e5

typedef struct {
  const struct np_int8_product_params *params;
  const np_int8_code *code;
  const void *in;
  float *out;
  uint8_t *scratch;
} job;

static void part(void *context, size_t thread, size_t index) {
  const job *task = context;
  const struct np_int8_product_params *p = task->params;
  const size_t columns = index % p->parts * p->part_columns;
  const size_t first = index / p->parts * p->band;
  const size_t rows = first + p->band < p->rows ? p->band : p->rows - first;
  const size_t pairs = (p->channels + 1) / 2;
  uint8_t *scratch = task->scratch + thread * p->thread_scratch;
  int16_t *wide = (int16_t *)scratch;
  int32_t *pixels = (int32_t *)(scratch + p->pixels_offset);
  float *scales = (float *)(scratch + p->scales_offset);
  for (size_t row = 0; row < rows; row++, wide += 2 * pairs) {
    const size_t from = (first + row) * p->channels;
    pixels[row] = (int32_t)(row * 2 * pairs);
    wide[2 * pairs - 1] = 0;
    if (p->from == NP_INT8_ROWS_FLOAT) {
      scales[row] = task->code->quantize((const float *)task->in + from, p->channels, wide);
    } else {
      task->code->widen((const int8_t *)task->in + from, p->channels, p->in_zero, wide);
      scales[row] = p->in_scale;
    }
  }
  const size_t last =
      columns + p->part_columns < p->outputs ? columns + p->part_columns : p->outputs;
  const int32_t run = 0;
  np_int8_panel panel = {
      .kind = NP_INT8_TO_FLOAT,
      .image = (const int16_t *)scratch,
      .pixels = pixels,
      .count = rows,
      .runs = &run,
      .run_count = 1,
      .pairs = pairs,
      .panel = (const uint8_t *)p->packed +
               columns / NP_INT8_COLUMNS * np_int8_panel_size(NP_INT8_COLUMNS, pairs),
      .out_stride = p->outputs,
      .row_scales = scales,
      .low = p->low,
      .high = p->high,
  };
  for (size_t column = columns; column < last; column += panel.columns) {
    panel.columns = last - column < NP_INT8_COLUMNS ? last - column : NP_INT8_COLUMNS;
    panel.out = task->out + first * p->outputs + column;
    task->code->multiply(&panel);
    panel.panel += np_int8_panel_size(panel.columns, pairs);
  }
}

int np_int8_product(const void *params, const void *const *inputs, void *out, void *workspace,
                    pthreadpool_t pool) {
  const struct np_int8_product_params *p = params;
  job task = {p, np_int8_code_for(p->target), inputs[0], out, workspace};
  const double work = (double)p->rows * (double)p->channels * (double)p->outputs;
  const size_t bands = (p->rows + p->band - 1) / p->band;
  pthreadpool_parallelize_1d_with_thread(work < SMALL_WORK ? NULL : pool, part, &task,
                                         bands * p->parts, 0);
  return 0;
}
