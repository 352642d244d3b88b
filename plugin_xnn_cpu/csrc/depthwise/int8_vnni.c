/* Depthwise convolutions of int8 4-way interleaved: four pixels of a channel, one below the other,
 * are multiplied with four weights at a time.
 *
 * For each row of the output the rows of the input that it needs are interleaved by fours, for 64
 * channels at a time: a pixel takes 256 bytes, and each K-group of rows a row of such pixels.
 * Halves of 16 channels are interleaved twice, so that a vector has four channels of each 16;
 * narrowing the accumulators to bytes brings them in order again. A kernel of three rows leaves one
 * row of its K-group free: with stride 1, two rows of the output share a K-group. */
#include "gemm/int8/panel.h"

#define SMALL_WORK 1e5

typedef struct {
  const struct np_int8_depthwise_vnni_params *params;
  const np_int8_micro_kernels *code;
  const int8_t *in;
  int8_t *out;
  uint8_t *scratch;
} job;

/* The pixels that the output pixels of one row of the output need; NULL rows are outside. */
static void interleave_row(const job *task, const int8_t *image, size_t top, size_t height,
                           size_t columns, uint8_t *wide) {
  const struct np_int8_depthwise_vnni_params *p = task->params;
  const int32_t zero = p->in_zero + 128;
  const size_t left = p->pads[1] < p->wide_width ? p->pads[1] : p->wide_width;
  const size_t end = p->width + p->pads[1];
  const size_t right = end < p->wide_width ? end : p->wide_width;
  for (size_t first = 0; first < height; first += 4) {
    const int8_t *rows[4] = {NULL, NULL, NULL, NULL};
    for (size_t i = 0; i < 4 && first + i < height; i++) {
      const size_t y = top + (first + i) * p->dilations[0];
      if (y < p->pads[0] || y - p->pads[0] >= p->height) continue;
      rows[i] = image + (y - p->pads[0]) * p->width * p->channels;
    }
    memset(wide, zero, left * NP_INT8_VNNI_PIXEL);
    task->code->interleave(rows, p->channels, right - left, columns, zero, p->in_u8 ? 0 : 0x80,
                           wide + left * NP_INT8_VNNI_PIXEL);
    memset(wide + right * NP_INT8_VNNI_PIXEL, zero, (p->wide_width - right) * NP_INT8_VNNI_PIXEL);
    wide += p->wide_width * NP_INT8_VNNI_PIXEL;
  }
}

static void part(void *context, size_t thread, size_t index) {
  const job *task = context;
  const struct np_int8_depthwise_vnni_params *p = task->params;
  const size_t blocks = (p->channels + NP_INT8_VNNI_CHANNELS - 1) / NP_INT8_VNNI_CHANNELS;
  const size_t number = index % blocks, channel = number * NP_INT8_VNNI_CHANNELS;
  const size_t left = p->channels - channel;
  const size_t columns = left < NP_INT8_VNNI_CHANNELS ? left : NP_INT8_VNNI_CHANNELS;
  const size_t first = index / blocks % p->row_tiles * p->row_tile;
  const size_t number_of_image = index / blocks / p->row_tiles;
  const size_t last = first + p->row_tile < p->out_height ? first + p->row_tile : p->out_height;
  const int8_t *image = task->in + number_of_image * p->height * p->width * p->channels + channel;
  uint8_t *wide = task->scratch + thread * p->thread_scratch;
  const size_t block_size = np_int8_vnni_depthwise_packed_size(1, p->window[0], p->window[1]);
  np_int8_vnni_depthwise_tile block = {
      .image = wide,
      .count = p->out_width,
      .step = p->strides[1] * NP_INT8_VNNI_PIXEL,
      .k_groups = (p->window[0] + 3) / 4,
      .group_stride = p->wide_width * NP_INT8_VNNI_PIXEL,
      .width = p->window[1],
      .column_stride = p->dilations[1] * NP_INT8_VNNI_PIXEL,
      .head = (const uint8_t *)p->packed + number * block_size,
      .columns = columns,
      .out_stride = p->channels,
      .zero = p->in_zero + 128,
      .out_xor = p->out_u8 ? 0x80 : 0,
      .range = {p->out_zero, p->low, p->high},
  };
  const int shared = p->window[0] == 3 && p->window[1] == 3 && p->strides[0] * p->dilations[0] == 1;
  for (size_t row = first; row < last; row++) {
    block.lower = shared && (row - first) % 2 == 1;
    if (!block.lower) {
      const size_t height = shared ? 4 : p->window[0];
      interleave_row(task, image, row * p->strides[0], height, columns, wide);
    }
    const size_t pixel = (number_of_image * p->out_height + row) * p->out_width;
    block.out = task->out + pixel * p->channels + channel;
    task->code->depthwise_vnni(&block);
  }
}

int np_int8_depthwise_vnni(const void *params, const void *const *inputs, void *out,
                           void *workspace, np_workers *workers) {
  const struct np_int8_depthwise_vnni_params *p = params;
  job task = {p, np_int8_micro_kernels_for(p->target, 1), inputs[0], out, workspace};
  const size_t blocks = (p->channels + NP_INT8_VNNI_CHANNELS - 1) / NP_INT8_VNNI_CHANNELS;
  const double outputs = (double)p->batch * (double)(p->out_height * p->out_width * p->channels);
  const double work = outputs * (double)(p->window[0] * p->window[1]);
  np_parallel_for(work < SMALL_WORK ? NULL : workers, part, &task, p->batch * p->row_tiles * blocks,
                  0);
  return 0;
}
