/* Depthwise convolutions of int8; see int8_kernels.h. */
#include "int8_code.h"

#define SMALL_WORK 1e5

typedef struct {
  const struct np_int8_depthwise_params *params;
  const np_int8_code *code;
  const int8_t *in;
  int8_t *out;
  uint8_t *scratch;
} job;

/* What `count` output rows from `first` on are made from, of `columns` channels. */
static void widen_band(const job *task, const int8_t *image, size_t first, size_t count,
                       size_t columns, int16_t *wide) {
  const struct np_int8_depthwise_params *p = task->params;
  const size_t rows = (count - 1) * p->strides[0] + (p->window[0] - 1) * p->dilations[0] + 1;
  const size_t row_size = p->wide_width * NP_INT8_COLUMNS;
  const size_t left = p->pads[1] < p->wide_width ? p->pads[1] : p->wide_width;
  const size_t end = p->width + p->pads[1];
  const size_t right = end < p->wide_width ? end : p->wide_width;
  for (size_t row = 0; row < rows; row++, wide += row_size) {
    const size_t y = first * p->strides[0] + row;
    if (y < p->pads[0] || y - p->pads[0] >= p->height) {
      memset(wide, 0, row_size * sizeof *wide);
      continue;
    }
    memset(wide, 0, left * NP_INT8_COLUMNS * sizeof *wide);
    task->code->widen_block(image + (y - p->pads[0]) * p->width * p->channels, p->channels,
                            right - left, columns, p->in_zero, wide + left * NP_INT8_COLUMNS);
    memset(wide + right * NP_INT8_COLUMNS, 0,
           (p->wide_width - right) * NP_INT8_COLUMNS * sizeof *wide);
  }
}

/* Where taps lie in a window; the last one stands twice where their number is odd. */
static void address(const struct np_int8_depthwise_params *p, int32_t *taps) {
  for (size_t y = 0; y < p->window[0]; y++) {
    for (size_t x = 0; x < p->window[1]; x++) {
      const size_t pixel = y * p->dilations[0] * p->wide_width + x * p->dilations[1];
      *taps++ = (int32_t)(pixel * NP_INT8_COLUMNS);
    }
  }
  *taps = taps[-1];
}

static void part(void *context, size_t thread, size_t index) {
  const job *task = context;
  const struct np_int8_depthwise_params *p = task->params;
  const size_t blocks = (p->channels + NP_INT8_COLUMNS - 1) / NP_INT8_COLUMNS;
  const size_t number = index % blocks;
  const size_t channel = number * NP_INT8_COLUMNS;
  const size_t columns =
      p->channels - channel < NP_INT8_COLUMNS ? p->channels - channel : NP_INT8_COLUMNS;
  const size_t first = index / blocks % p->bands * p->band;
  const size_t image = index / blocks / p->bands;
  const size_t rows = first + p->band < p->out_height ? p->band : p->out_height - first;
  uint8_t *scratch = task->scratch + thread * p->thread_scratch;
  int16_t *wide = (int16_t *)scratch;
  int32_t *taps = (int32_t *)(scratch + p->taps_offset);
  const int8_t *in = task->in + image * p->height * p->width * p->channels + channel;
  widen_band(task, in, first, rows, columns, wide);
  address(p, taps);

  const size_t pairs = (p->window[0] * p->window[1] + 1) / 2;
  const size_t row_size = p->out_width * p->channels;
  int8_t *out = task->out + (image * p->out_height + first) * row_size + channel;
  np_int8_block block = {
      .step = p->strides[1] * NP_INT8_COLUMNS,
      .count = p->out_width,
      .taps = taps,
      .pairs = pairs,
      .block = (const uint8_t *)p->packed +
               number * np_int8_depthwise_packed_size(NP_INT8_COLUMNS, 2 * pairs),
      .columns = columns,
      .out_stride = p->channels,
      .range = {p->out_zero, p->low, p->high},
  };
  for (size_t row = 0; row < rows; row++) {
    block.image = wide + row * p->strides[0] * p->wide_width * NP_INT8_COLUMNS;
    block.out = out + row * row_size;
    task->code->depthwise(&block);
  }
}

int np_int8_depthwise(const void *params, const void *const *inputs, void *out, void *workspace,
                      pthreadpool_t pool) {
  const struct np_int8_depthwise_params *p = params;
  job task = {p, np_int8_code_for(p->target), inputs[0], out, workspace};
  const size_t blocks = (p->channels + NP_INT8_COLUMNS - 1) / NP_INT8_COLUMNS;
  const double outputs = (double)p->batch * (double)(p->out_height * p->out_width * p->channels);
  const double work = outputs * (double)(p->window[0] * p->window[1]);
  pthreadpool_parallelize_1d_with_thread(work < SMALL_WORK ? NULL : pool, part, &task,
                                         p->batch * p->bands * blocks, 0);
  return 0;
}
