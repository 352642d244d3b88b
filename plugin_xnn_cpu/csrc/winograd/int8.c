/* Convolutions of int8 by 3 x 3 with fewer multiplications, and the same accumulators.
 *
 * A tile of 2 x 2 outputs takes 16 multiplications for each channel in place of 36: 4 x 4 inputs d
 * and 3 x 3 weights g are transformed, multiplied element by element, and transformed back
 * (Winograd, F(2 x 2, 3 x 3)):
 *
 *   A [ (G g G') * (B d B') ] A', with 2 G = | 2 0 0 |, B = | 1  0 -1  0 |, A = | 1 1  1  0 |
 *                                          | 1 1 1 |      | 0  1  1  0 |      | 0 1 -1 -1 |
 *                                          | 1 -1 1 |     | 0 -1  1  0 |
 *                                          | 0 0 2 |      | 0  1  0 -1 |
 *
 * With 2 G for G all of it are integers, and the result is 4 times the sum. Inputs are at most
 * 4 * 255 then, and weights 9 * 127: int16 holds them. Accumulators may leave 32 bits on their way,
 * as long as 4 times the result does not: below 2^29 it is exact. For each of the 16 elements of a
 * tile, tiles and panels of weights are multiplied as rows and a matrix. */
#include "gemm/int8/panel.h"

/* Tiles from `first` on, of those of a row tile, multiplied with one panel, and finished. */
static void multiply(const struct np_int8_winograd_params *p, const np_int8_micro_kernels *code,
                     np_int8_panel *panel, const uint8_t *packed, size_t first, int32_t *acc,
                     np_int8_winograd_tile *tile, int8_t *out, size_t rows) {
  const int16_t *tiles = panel->image;
  for (size_t i = 0; i < NP_INT8_TILE; i++) {
    panel->image = tiles + i * p->block * p->image.channels;
    panel->panel = packed + NP_INT8_HEAD + i * p->image.channels * NP_INT8_NR * sizeof(int16_t);
    panel->out = acc + i * p->block * NP_INT8_NR;
    code->multiply(panel);
  }
  panel->image = tiles;
  tile->head = packed;
  for (size_t i = 0; i < panel->count; i++) {
    const size_t y = (first + i) / p->tiles[1] * 2, x = (first + i) % p->tiles[1] * 2;
    tile->acc = acc + i * NP_INT8_NR;
    tile->out = out + y * tile->row_stride + x * tile->column_stride;
    tile->rows = np_min(rows - y, 2);
    tile->columns = np_min(p->image.out_width - x, 2);
    code->finish(tile);
  }
}

static void part(np_job *job, size_t thread, size_t index) {
  const struct np_int8_winograd_params *p = job->params;
  const np_int8_micro_kernels *code = np_int8_micro_kernels_for(p->target, 0);
  const struct np_image_sizes *sizes = &p->image;
  /* Rows are those of tiles. */
  const np_convolution_part part = np_convolution_part_of(
      index, p->row_tile, p->row_tiles, p->tiles[0], p->part_columns, p->parts, p->outputs);
  const size_t first = 2 * part.rows.first;
  const size_t rows = np_min(sizes->out_height - first, 2 * part.rows.count);
  uint8_t *scratch = job->scratch + thread * p->thread_scratch;
  int16_t *wide = (int16_t *)scratch;
  int16_t *tiles = (int16_t *)(scratch + p->tiles_offset);
  int32_t *acc = (int32_t *)(scratch + p->acc_offset);
  int32_t *pixels = (int32_t *)(scratch + p->pixels_offset);

  const size_t wide_width = 2 * p->tiles[1] + 2, channels = sizes->channels;
  const struct np_convolution_geometry copied = {
      .image = *sizes,
      .kernel = {3, 3},
      .steps = {1, 1},
      .picks = {1, 1},
      .dilations = {1, 1},
      .pads = {p->pads[0], p->pads[1]},
      .wide_width = wide_width,
  };
  const int8_t *image =
      (const int8_t *)job->inputs[0] + part.image * sizes->height * sizes->width * channels;
  const np_padded_image source = np_int8_padded_image(code, image, &copied, p->in_zero, 0);
  np_pad_image_rows(&source, first, 2 * part.rows.count, wide);
  for (size_t i = 0; i < p->block; i++) pixels[i] = (int32_t)(i * channels);

  const int32_t run = 0;
  const size_t panel_size = np_int8_winograd_packed_size(NP_INT8_NR, channels);
  np_int8_panel panel = {
      .kind = NP_INT8_TO_INT32,
      .image = tiles,
      .pixels = pixels,
      .runs = &run,
      .run_count = 1,
      .groups = channels / 2,
      .columns = NP_INT8_NR,
  };
  np_int8_winograd_tile tile = {
      .stride = p->block * NP_INT8_NR,
      .row_stride = sizes->out_width * p->outputs,
      .column_stride = p->outputs,
      .range = {p->out_zero, p->low, p->high},
  };
  int8_t *out = (int8_t *)job->out + (part.image * sizes->out_height + first) * tile.row_stride;
  const size_t count = part.rows.count * p->tiles[1];
  for (size_t start = 0; start < count; start += p->block) {
    panel.count = np_min(p->block, count - start);
    for (size_t i = 0; i < panel.count; i++) {
      const size_t y = (start + i) / p->tiles[1] * 2, x = (start + i) % p->tiles[1] * 2;
      code->transform(wide + (y * wide_width + x) * channels, wide_width * channels, channels,
                      p->block * channels, tiles + i * channels);
    }
    for (size_t column = part.columns.first; column < part.columns.end; column += NP_INT8_NR) {
      const uint8_t *packed = (const uint8_t *)p->packed + column / NP_INT8_NR * panel_size;
      multiply(p, code, &panel, packed, start, acc, &tile, out + column, rows);
    }
  }
}

int np_int8_winograd(np_job *job) {
  const struct np_int8_winograd_params *p = job->params;
  const double pixels = (double)p->image.batch * (double)(p->image.out_height * p->image.out_width);
  const double work = pixels * (double)p->outputs * (double)p->image.channels * 4;
  return np_for_parts(job, part, p->image.batch * p->row_tiles * p->parts, work < NP_SMALL_NARROW,
                      0);
}
