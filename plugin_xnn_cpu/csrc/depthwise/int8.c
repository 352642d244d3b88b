/* Depthwise convolutions of int8; see gemm/int8/int8.h.
 *
 * Rows of the image are interleaved by K-groups: two or, for VNNI, four pixels of a channel, one
 * below the other, are multiplied with as many weights at a time. Pairs are of 16 channels in the
 * order of a panel; K-groups of 4 are of 64 channels, in an order that narrowing the accumulators
 * to bytes undoes. */
#include "gemm/int8/panel.h"

typedef struct {
  const struct np_int8_depthwise_params *params;
  const np_int8_micro_kernels *code;
  const int8_t *image; /* of the first channel */
  size_t channels;
} source_image;

static size_t channels_of(const struct np_int8_depthwise_params *p) {
  return p->vnni ? NP_INT8_VNNI_CHANNELS : NP_INT8_NR;
}

/* Interleave up to `count` rows from y on, which is counted with the pads, and return what follows
 * them. Rows outside of the image are NULL. */
static uint8_t *interleave(const source_image *source, size_t y, size_t count, uint8_t *wide) {
  const struct np_int8_depthwise_params *p = source->params;
  const np_int8_micro_kernels *code = source->code;
  const size_t pixel = channels_of(p) * code->group * code->element;
  const size_t left = np_min(p->pads[1], p->wide_width);
  const size_t right = np_min(p->image.width + p->pads[1], p->wide_width);
  const int32_t zero = p->vnni ? p->in_zero + 128 : p->in_zero;
  const int padding = p->vnni ? zero : 0;
  const int8_t *rows[4] = {NULL, NULL, NULL, NULL};
  for (size_t i = 0; i < np_min(count, code->group); i++, y += p->dilations[0]) {
    if (y < p->pads[0] || y - p->pads[0] >= p->image.height) continue;
    rows[i] = source->image + (y - p->pads[0]) * p->image.width * p->image.channels;
  }
  memset(wide, padding, left * pixel);
  code->interleave(rows, p->image.channels, right - left, source->channels, zero,
                   p->in_u8 ? 0 : 0x80, wide + left * pixel);
  memset(wide + right * pixel, padding, (p->wide_width - right) * pixel);
  return wide + p->wide_width * pixel;
}

/* Weights of output pixels that start in the lower row of a pair: all are moved down by a row. */
static void move_down(const uint32_t *weights, size_t pairs, size_t width, uint32_t *moved) {
  const size_t row = width * NP_INT8_NR;
  for (size_t i = 0; i < row; i++) moved[i] = weights[i] << 16;
  for (size_t i = row; i < pairs * row; i++) moved[i] = weights[i - row] >> 16 | weights[i] << 16;
  for (size_t i = 0; i < row; i++) moved[pairs * row + i] = weights[(pairs - 1) * row + i] >> 16;
}

/* All rows of a row tile are interleaved first: those that are dilations[0] apart are an image of
 * their own, whose pairs lie one after the other. */
static void rows_by_pairs(const source_image *source, np_range rows, np_int8_depthwise_tile *tile,
                          uint8_t *scratch, size_t row_size) {
  const struct np_int8_depthwise_params *p = source->params;
  const size_t distance = p->dilations[0], pairs = np_ceil_div(p->kernel[0], 2);
  const size_t pair_bytes = tile->group_stride * sizeof(int16_t);
  const uint8_t *weights = tile->weights;
  uint8_t *wide = scratch;
  for (size_t index = 0; index < distance * p->pairs; index++) {
    const size_t y = index / p->pairs + index % p->pairs * 2 * distance;
    wide = interleave(source, rows.first * p->strides[0] + y, 2, wide);
  }
  uint32_t *moved = (uint32_t *)(void *)(scratch + p->weights_offset);
  move_down((const uint32_t *)(const void *)weights, pairs, p->kernel[1], moved);
  for (size_t row = 0; row < rows.count; row++, tile->out += row_size) {
    const size_t y = row * p->strides[0], lower = y / distance % 2;
    tile->image = scratch + (y % distance * p->pairs + y / distance / 2) * pair_bytes;
    tile->groups = (p->kernel[0] + lower + 1) / 2;
    tile->weights = lower ? (const uint8_t *)moved : weights;
    source->code->depthwise(tile);
  }
}

/* The rows that each row of the output needs are interleaved for it. A kernel of three rows leaves
 * one row of its K-group free: with stride 1, two rows of the output share a K-group. */
static void rows_by_fours(const source_image *source, np_range rows, np_int8_depthwise_tile *tile,
                          uint8_t *scratch, size_t row_size) {
  const struct np_int8_depthwise_params *p = source->params;
  const int shared = p->kernel[0] == 3 && p->kernel[1] == 3 && p->strides[0] * p->dilations[0] == 1;
  const size_t height = shared ? 4 : p->kernel[0];
  tile->image = scratch;
  tile->groups = np_ceil_div(p->kernel[0], 4);
  for (size_t row = 0; row < rows.count; row++, tile->out += row_size) {
    tile->lower = shared && row % 2 == 1;
    uint8_t *wide = scratch;
    for (size_t i = 0; i < height && !tile->lower; i += 4) {
      const size_t y = (rows.first + row) * p->strides[0] + i * p->dilations[0];
      wide = interleave(source, y, height - i, wide);
    }
    source->code->depthwise(tile);
  }
}

static void part(np_job *job, size_t thread, size_t index) {
  const struct np_int8_depthwise_params *p = job->params;
  const struct np_image_sizes *sizes = &p->image;
  const np_int8_micro_kernels *code = np_int8_micro_kernels_for(p->target, p->vnni);
  const size_t block = channels_of(p), blocks = np_ceil_div(sizes->channels, block);
  const np_convolution_part part = np_convolution_part_of(
      index, p->row_tile, p->row_tiles, sizes->out_height, block, blocks, sizes->channels);
  const size_t channel = part.columns.first, row_size = sizes->out_width * sizes->channels;
  const size_t image_size = sizes->height * sizes->width * sizes->channels;
  const source_image source = {
      p, code, (const int8_t *)job->inputs[0] + part.image * image_size + channel,
      part.columns.count};
  const size_t packed = np_int8_depthwise_packed_size(code->group, 1, p->kernel[0], p->kernel[1]);
  const uint8_t *head = (const uint8_t *)p->packed + channel / block * packed;
  const size_t pixel = block * code->group, row = part.image * sizes->out_height + part.rows.first;
  np_int8_depthwise_tile tile = {
      .count = sizes->out_width,
      .step = p->strides[1] * pixel,
      .group_stride = p->wide_width * pixel,
      .width = p->kernel[1],
      .column_stride = p->dilations[1] * pixel,
      .weights = head + (p->vnni ? NP_INT8_VNNI_BLOCK_HEAD : NP_INT8_HEAD),
      .head = head,
      .columns = part.columns.count,
      .out = (int8_t *)job->out + row * row_size + channel,
      .out_stride = sizes->channels,
      .zero = p->in_zero + 128,
      .out_xor = p->out_u8 ? 0x80 : 0,
      .range = {p->out_zero, p->low, p->high},
  };
  (p->vnni ? rows_by_fours : rows_by_pairs)(&source, part.rows, &tile,
                                            job->scratch + thread * p->thread_scratch, row_size);
}

int np_int8_depthwise(np_job *job) {
  const struct np_int8_depthwise_params *p = job->params;
  const struct np_image_sizes *sizes = &p->image;
  const size_t blocks = np_ceil_div(sizes->channels, channels_of(p));
  const size_t outputs = sizes->out_height * sizes->out_width * sizes->channels;
  const double work =
      (double)sizes->batch * (double)outputs * (double)(p->kernel[0] * p->kernel[1]);
  return np_for_parts(job, part, sizes->batch * p->row_tiles * blocks, work < NP_SMALL_DEPTHWISE,
                      0);
}
