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
 * 4 * 255 then, and weights 9 * 127: int16 holds them. Sums may leave 32 bits on their way, as long
 * as 4 times the result does not: below 2^29 it is exact. For each of the 16 elements of a tile,
 * tiles and panels of weights are multiplied as rows and a matrix. */
#include "gemm/int8/panel.h"

#define SMALL_WORK 4e5

typedef struct {
  const struct np_int8_winograd_params *params;
  const np_int8_micro_kernels *code;
  const int8_t *in;
  int8_t *out;
  uint8_t *scratch;
} job;

/* Tiles from `first` on, of those of a row tile, multiplied with one panel, and finished. */
static void multiply(const job *task, np_int8_panel *panel, const uint8_t *packed, size_t first,
                     int32_t *acc, np_int8_winograd_tile *tile, int8_t *out, size_t rows) {
  const struct np_int8_winograd_params *p = task->params;
  const int16_t *tiles = panel->image;
  for (size_t i = 0; i < NP_INT8_TILE; i++) {
    panel->image = tiles + i * p->block * p->channels;
    panel->panel = packed + NP_INT8_HEAD + i * p->channels * NP_INT8_NR * sizeof(int16_t);
    panel->out = acc + i * p->block * NP_INT8_NR;
    task->code->multiply(panel);
  }
  panel->image = tiles;
  tile->head = packed;
  for (size_t i = 0; i < panel->count; i++) {
    const size_t y = (first + i) / p->tiles[1] * 2, x = (first + i) % p->tiles[1] * 2;
    tile->acc = acc + i * NP_INT8_NR;
    tile->out = out + y * tile->row_stride + x * tile->column_stride;
    tile->rows = rows - y < 2 ? rows - y : 2;
    tile->columns = p->out_width - x < 2 ? p->out_width - x : 2;
    task->code->finish(tile);
  }
}

static void part(void *context, size_t thread, size_t index) {
  const job *task = context;
  const struct np_int8_winograd_params *p = task->params;
  const size_t columns = index % p->parts * p->part_columns;
  const size_t last =
      columns + p->part_columns < p->outputs ? columns + p->part_columns : p->outputs;
  const size_t first = index / p->parts % p->row_tiles * p->row_tile; /* row of tiles */
  const size_t image = index / p->parts / p->row_tiles;
  const size_t tile_rows = first + p->row_tile < p->tiles[0] ? p->row_tile : p->tiles[0] - first;
  const size_t left = p->out_height - 2 * first;
  const size_t rows = left < 2 * tile_rows ? left : 2 * tile_rows;
  uint8_t *scratch = task->scratch + thread * p->thread_scratch;
  int16_t *wide = (int16_t *)scratch;
  int16_t *tiles = (int16_t *)(scratch + p->tiles_offset);
  int32_t *acc = (int32_t *)(scratch + p->sums_offset);
  int32_t *pixels = (int32_t *)(scratch + p->pixels_offset);

  const size_t wide_width = 2 * p->tiles[1] + 2, picks[2] = {1, 1};
  const np_int8_image source = {
      .pixels = task->in + image * p->height * p->width * p->channels,
      .height = p->height,
      .width = p->width,
      .channels = p->channels,
      .pads = p->pads,
      .picks = picks,
      .wide_width = wide_width,
      .zero = p->in_zero,
  };
  np_int8_pad_rows(task->code, &source, 2 * first, 2 * tile_rows + 2, wide);
  for (size_t i = 0; i < p->block; i++) pixels[i] = (int32_t)(i * p->channels);

  const int32_t run = 0;
  const size_t panel_size = np_int8_winograd_packed_size(NP_INT8_NR, p->channels);
  np_int8_panel panel = {
      .kind = NP_INT8_TO_INT32,
      .image = tiles,
      .pixels = pixels,
      .runs = &run,
      .run_count = 1,
      .groups = p->channels / 2,
      .columns = NP_INT8_NR,
  };
  np_int8_winograd_tile tile = {
      .stride = p->block * NP_INT8_NR,
      .row_stride = p->out_width * p->outputs,
      .column_stride = p->outputs,
      .range = {p->out_zero, p->low, p->high},
  };
  int8_t *out = task->out + (image * p->out_height + 2 * first) * tile.row_stride;
  const size_t count = tile_rows * p->tiles[1];
  for (size_t start = 0; start < count; start += p->block) {
    panel.count = start + p->block < count ? p->block : count - start;
    for (size_t i = 0; i < panel.count; i++) {
      const size_t y = (start + i) / p->tiles[1] * 2, x = (start + i) % p->tiles[1] * 2;
      task->code->transform(wide + (y * wide_width + x) * p->channels, wide_width * p->channels,
                            p->channels, p->block * p->channels, tiles + i * p->channels);
    }
    for (size_t column = columns; column < last; column += NP_INT8_NR) {
      const uint8_t *packed = (const uint8_t *)p->packed + column / NP_INT8_NR * panel_size;
      multiply(task, &panel, packed, start, acc, &tile, out + column, rows);
    }
  }
}

int np_int8_winograd(const void *params, const void *const *inputs, void *out, void *workspace,
                     np_workers *workers) {
  const struct np_int8_winograd_params *p = params;
  job task = {p, np_int8_micro_kernels_for(p->target, 0), inputs[0], out, workspace};
  const double pixels = (double)p->batch * (double)(p->out_height * p->out_width);
  const double work = pixels * (double)p->outputs * (double)p->channels * 4;
  np_parallel_for(work < SMALL_WORK ? NULL : workers, part, &task,
                  p->batch * p->row_tiles * p->parts, 0);
  return 0;
}
