/* Depthwise convolutions of int8; see gemm/int8/int8.h. */
#include "gemm/int8/panel.h"

#define SMALL_WORK 1e5

typedef struct {
  const struct np_int8_depthwise_params *params;
  const np_int8_micro_kernels *code;
  const int8_t *in;
  int8_t *out;
  uint8_t *scratch;
} job;

/* A row of the padded input, counted from the first one of a row tile; NULL outside of the
 * input. */
static const int8_t *row_of(const struct np_int8_depthwise_params *p, const int8_t *image,
                            size_t y) {
  if (y < p->pads[0] || y - p->pads[0] >= p->height) return NULL;
  return image + (y - p->pads[0]) * p->width * p->channels;
}

/* What a row tile of output rows is made from, of `columns` channels. */
static void upcast_rows(const job *task, const int8_t *image, size_t first, size_t columns,
                        int16_t *wide) {
  const struct np_int8_depthwise_params *p = task->params;
  const size_t left = p->pads[1] < p->wide_width ? p->pads[1] : p->wide_width;
  const size_t end = p->width + p->pads[1];
  const size_t right = end < p->wide_width ? end : p->wide_width;
  const size_t pixel = NP_INT8_PAIR * sizeof *wide, distance = p->dilations[0];
  for (size_t index = 0; index < distance * p->pairs; index++) {
    const size_t y = first * p->strides[0] + index / p->pairs + index % p->pairs * 2 * distance;
    memset(wide, 0, left * pixel);
    task->code->interleave_pairs(row_of(p, image, y), row_of(p, image, y + distance), p->channels,
                                 right - left, columns, p->in_zero, wide + left * NP_INT8_PAIR);
    memset(wide + right * NP_INT8_PAIR, 0, (p->wide_width - right) * pixel);
    wide += p->wide_width * NP_INT8_PAIR;
  }
}

/* Weights of output pixels that start in the lower row of a pair: all are moved down by a row. */
static void move_down(const uint32_t *weights, size_t pairs, size_t width, uint32_t *moved) {
  const size_t row = width * NP_INT8_NR;
  for (size_t i = 0; i < row; i++) moved[i] = weights[i] << 16;
  for (size_t i = row; i < pairs * row; i++) moved[i] = weights[i - row] >> 16 | weights[i] << 16;
  for (size_t i = 0; i < row; i++) moved[pairs * row + i] = weights[(pairs - 1) * row + i] >> 16;
}

static void part(void *context, size_t thread, size_t index) {
  const job *task = context;
  const struct np_int8_depthwise_params *p = task->params;
  const size_t blocks = (p->channels + NP_INT8_NR - 1) / NP_INT8_NR;
  const size_t number = index % blocks;
  const size_t channel = number * NP_INT8_NR;
  const size_t columns = p->channels - channel < NP_INT8_NR ? p->channels - channel : NP_INT8_NR;
  const size_t first = index / blocks % p->row_tiles * p->row_tile;
  const size_t image = index / blocks / p->row_tiles;
  const size_t rows = first + p->row_tile < p->out_height ? p->row_tile : p->out_height - first;
  uint8_t *scratch = task->scratch + thread * p->thread_scratch;
  int16_t *wide = (int16_t *)scratch;
  upcast_rows(task, task->in + image * p->height * p->width * p->channels + channel, first, columns,
              wide);

  const size_t width = p->window[1], pairs = (p->window[0] + 1) / 2;
  const size_t block_size = np_int8_depthwise_packed_size(1, p->window[0], width);
  const uint8_t *head = (const uint8_t *)p->packed + number * block_size;
  const int16_t *weights = (const int16_t *)(head + NP_INT8_HEAD);
  uint32_t *moved = (uint32_t *)(scratch + p->weights_offset);
  move_down((const uint32_t *)weights, pairs, width, moved);
  const size_t row_size = p->out_width * p->channels;
  int8_t *out = task->out + (image * p->out_height + first) * row_size + channel;
  np_int8_depthwise_tile block = {
      .count = p->out_width,
      .step = p->strides[1] * NP_INT8_PAIR,
      .pair_stride = p->wide_width * NP_INT8_PAIR,
      .width = width,
      .column_stride = p->dilations[1] * NP_INT8_PAIR,
      .head = head,
      .columns = columns,
      .out_stride = p->channels,
      .range = {p->out_zero, p->low, p->high},
  };
  for (size_t row = 0; row < rows; row++) {
    const size_t y = row * p->strides[0], distance = p->dilations[0];
    const size_t lower = y / distance % 2;
    block.image = wide + (y % distance * p->pairs + y / distance / 2) * block.pair_stride;
    block.pairs = (p->window[0] + lower + 1) / 2;
    block.weights = lower ? (const int16_t *)moved : weights;
    block.out = out + row * row_size;
    task->code->depthwise(&block);
  }
}

int np_int8_depthwise(const void *params, const void *const *inputs, void *out, void *workspace,
                      np_workers *workers) {
  const struct np_int8_depthwise_params *p = params;
  job task = {p, np_int8_micro_kernels_for(p->target, 0), inputs[0], out, workspace};
  const size_t blocks = (p->channels + NP_INT8_NR - 1) / NP_INT8_NR;
  const double outputs = (double)p->batch * (double)(p->out_height * p->out_width * p->channels);
  const double work = outputs * (double)(p->window[0] * p->window[1]);
  np_parallel_for(work < SMALL_WORK ? NULL : workers, part, &task, p->batch * p->row_tiles * blocks,
                  0);
  return 0;
}
