/* Depthwise convolutions of int8 by quads: four pixels of a channel, one below the other, are
 * multiplied with four weights at a time.
 *
 * For each row of the output the rows of the input that it needs are interleaved by fours, for 64
 * channels at a time: a pixel takes 256 bytes, and each quad of rows a row of such pixels. Halves of
 * 16 channels are interleaved twice, so that a vector has four channels of each 16; narrowing the
 * sums to bytes brings them in order again. A window of three rows leaves one of its quad free: where
 * such windows move by 1, two rows of the output share a quad. */
#include "gemm/int8/panel.h"

#define SMALL_WORK 1e5

typedef struct {
  const struct np_int8_quad_depthwise_params *params;
  const np_int8_code *code;
  const int8_t *in;
  int8_t *out;
  uint8_t *scratch;
} job;

/* The pixels that the windows of one row of the output need; NULL rows are outside. */
static void interleave_row(const job *task, const int8_t *image, size_t top, size_t height,
                           size_t columns, uint8_t *wide) {
  const struct np_int8_quad_depthwise_params *p = task->params;
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
    memset(wide, zero, left * NP_INT8_QUAD_PIXEL);
    task->code->interleave(rows, p->channels, right - left, columns, zero,
                           p->in_raised ? 0 : 0x80, wide + left * NP_INT8_QUAD_PIXEL);
    memset(wide + right * NP_INT8_QUAD_PIXEL, zero, (p->wide_width - right) * NP_INT8_QUAD_PIXEL);
    wide += p->wide_width * NP_INT8_QUAD_PIXEL;
  }
}

static void part(void *context, size_t thread, size_t index) {
  const job *task = context;
  const struct np_int8_quad_depthwise_params *p = task->params;
  const size_t blocks = (p->channels + NP_INT8_QUAD_CHANNELS - 1) / NP_INT8_QUAD_CHANNELS;
  const size_t number = index % blocks, channel = number * NP_INT8_QUAD_CHANNELS;
  const size_t left = p->channels - channel;
  const size_t columns = left < NP_INT8_QUAD_CHANNELS ? left : NP_INT8_QUAD_CHANNELS;
  const size_t first = index / blocks % p->bands * p->band;
  const size_t number_of_image = index / blocks / p->bands;
  const size_t last = first + p->band < p->out_height ? first + p->band : p->out_height;
  const int8_t *image = task->in + number_of_image * p->height * p->width * p->channels + channel;
  uint8_t *wide = task->scratch + thread * p->thread_scratch;
  const size_t block_size = np_int8_quads_depthwise_packed_size(1, p->window[0], p->window[1]);
  np_int8_quad_block block = {
      .image = wide,
      .count = p->out_width,
      .step = p->strides[1] * NP_INT8_QUAD_PIXEL,
      .quads = (p->window[0] + 3) / 4,
      .quad_stride = p->wide_width * NP_INT8_QUAD_PIXEL,
      .width = p->window[1],
      .column_stride = p->dilations[1] * NP_INT8_QUAD_PIXEL,
      .head = (const uint8_t *)p->packed + number * block_size,
      .columns = columns,
      .out_stride = p->channels,
      .zero = p->in_zero + 128,
      .turned = p->out_raised ? 0x80 : 0,
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
    task->code->quad_depthwise(&block);
  }
}

int np_int8_quad_depthwise(const void *params, const void *const *inputs, void *out,
                           void *workspace, np_workers *workers) {
  const struct np_int8_quad_depthwise_params *p = params;
  job task = {p, np_int8_code_for(p->target, 1), inputs[0], out, workspace};
  const size_t blocks = (p->channels + NP_INT8_QUAD_CHANNELS - 1) / NP_INT8_QUAD_CHANNELS;
  const double outputs = (double)p->batch * (double)(p->out_height * p->out_width * p->channels);
  const double work = outputs * (double)(p->window[0] * p->window[1]);
  np_divide(work < SMALL_WORK ? NULL : workers, part, &task, p->batch * p->bands * blocks, 0);
  return 0;
}
