/* The micro-kernels of the bf16 GEMM for AMX. Panels are those of AVX512-BF16, whose pairs of 16 columns
 * are rows of a tile; a block has two tiles of rows and a panel of 32 columns.
 *
 * An instruction adds up to 32 elements of each, the even ones and the odd ones apart, before it adds to
 * the accumulator: results differ from those of other codes by the order of additions. Subnormal numbers
 * count as 0, as there. */
#include "gemm/bf16/panel.h"
#include "simd/amx.h"
#include "simd/f32.h"

#define MIN_ROWS 4      /* with fewer, AVX512-BF16 is as fast */
#define MAX_PANELS 32   /* at a time, for which tiles are configured once */
#define BLOCK_ROWS (2 * NP_AMX_ROWS)

/* How the rows of all panels are divided into tiles. */
typedef struct {
  size_t step;   /* between rows that lie evenly apart, in elements */
  size_t groups; /* pairs of a tile */
} plan;

/* A block whose accumulators are stored, and what of it is not finished. */
typedef struct {
  np_amx_aside aside;
  np_bf16_panel p;
  const float *acc;
  size_t first;
  size_t each; /* rows that are finished at a time */
} pending;

/* Accumulators of a block, and of the one before. */
typedef struct {
  float acc[2][BLOCK_ROWS * NP_BF16_COLUMNS] __attribute__((aligned(64)));
  int current;
} block_memory;

/* Rows from `first` on that lie evenly apart, at most those of a tile. */
NP_INLINE size_t rows_of_tile(const np_bf16_panel *p, size_t first, size_t step) {
  const size_t most = np_min(NP_AMX_ROWS, p->count - first);
  const int32_t *at = p->pixels + first;
  size_t rows = np_min(1, most);
  while (rows < most && (int64_t)at[rows] - at[0] == (int64_t)(rows * step)) rows++;
  return rows;
}

NP_INLINE void multiply_block(const np_bf16_panel *p, const plan *t, size_t first, size_t rows,
                              np_amx_aside *aside, float *acc, const int a_tiles,
                              const int b_tiles) {
  const size_t pairs = p->run_length / 2, second = a_tiles > 1 ? first + rows : first;
  const uint8_t *weights = (const uint8_t *)p->panel;
  np_amx_start(weights, a_tiles, b_tiles);
  weights += 64 * b_tiles;
  for (size_t q = 0; q < p->run_count; q++) {
    const uint16_t *run = (const uint16_t *)p->image + p->runs[q];
    const uint8_t *a[2] = {(const uint8_t *)(run + p->pixels[first]),
                           (const uint8_t *)(run + p->pixels[second])};
    np_amx_accumulate(a, t->step * sizeof *run, weights, pairs / t->groups, t->groups, aside,
                      a_tiles, b_tiles, NP_AMX_BF16);
    weights += pairs * 64 * (size_t)b_tiles;
  }
  np_amx_store(acc, rows, a_tiles, b_tiles);
}

/* Accumulators with the residual, clamped, to the output; then the rest of the epilogue. */
NP_INLINE void finish(const np_bf16_panel *p, size_t first, size_t rows, const float *acc,
                      size_t width) {
  float *out = p->out + first * p->out_stride;
  const float *residual = p->residual == NULL ? NULL : p->residual + first * p->out_stride;
  for (size_t r = 0; r < rows; r++, out += p->out_stride) {
    for (size_t n = 0; n < width && n < p->columns; n += LANES, acc += LANES) {
      const size_t left = np_min(LANES, p->columns - n);
      vec x = load(acc);
      if (residual != NULL) x += load_some(residual + r * p->out_stride + n, left);
      store_some(out + n, clamp(x, p->low, p->high), left);
    }
  }
  if (p->end != NULL) {
    const size_t place = first * p->out_stride;
    p->end(p->epilogue, p->out + place, p->out_stride, p->after == NULL ? NULL : p->after + place,
           p->out_stride, rows, np_min(width, p->columns));
  }
}

static void finish_some(np_amx_aside *aside) {
  pending *b = (pending *)aside;
  const size_t rows = np_min(b->each, aside->left), width = np_bf16_panel_width(b->p.columns);
  finish(&b->p, b->first, rows, b->acc, width);
  aside->left -= rows;
  b->first += rows;
  b->acc += rows * width;
}

NP_INLINE void multiply_panel(const np_bf16_panel *p, const plan *t, np_amx_shape *shape,
                              pending *before, block_memory *memory, const int b_tiles) {
  for (size_t first = 0; first < p->count;) {
    const size_t rows = rows_of_tile(p, first, t->step);
    const size_t more = rows_of_tile(p, first + rows, t->step);
    float *acc = memory->acc[memory->current ^= 1];
    np_amx_reshape(shape, (np_amx_shape){{rows, more}, t->groups});
    if (more > 0) {
      multiply_block(p, t, first, rows, &before->aside, acc, 2, b_tiles);
    } else {
      multiply_block(p, t, first, rows, &before->aside, acc, 1, b_tiles);
    }
    np_amx_finish(&before->aside);
    before->p = *p;
    before->acc = acc;
    before->first = first;
    before->aside.left = rows + more;
    first += rows + more;
  }
}

/* Panel by panel: those of `p` from `column` on. */
NP_INLINE np_bf16_panel panel_at(const np_bf16_panel *p, size_t column, size_t size) {
  np_bf16_panel one = *p;
  one.columns = np_min(p->columns - column, NP_BF16_COLUMNS);
  one.panel = p->panel + column / NP_BF16_COLUMNS * size;
  one.out = p->out + column;
  if (p->residual != NULL) one.residual = p->residual + column;
  if (p->after != NULL) one.after = p->after + column;
  return one;
}

static void multiply(const np_bf16_panel *p) {
  const size_t pairs = np_ceil_div(p->run_length, 2), all = p->run_count * pairs;
  const size_t size = np_bf16_panel_size(NP_BF16_COLUMNS, all);
  plan t = {.groups = p->run_length % 2 == 0 ? np_amx_groups_of_tile(pairs) : 0};
  const int tiles = p->count >= MIN_ROWS && t.groups > 0;
  if (tiles) {
    /* The second distance is of a line where the first one leads to the next line. */
    const size_t other = (size_t)(p->pixels[2] - p->pixels[1]);
    t.step = np_min((size_t)(p->pixels[1] - p->pixels[0]), other);
  }
  const size_t steps = tiles ? all / t.groups : 1, blocks = np_ceil_div(p->count, BLOCK_ROWS);
  block_memory memory;
  memory.current = 0;
  pending before = {
      .aside = {.lines = np_ceil_div(size / 16, blocks * steps), .finish_some = finish_some},
      .each = np_amx_rows_aside(steps),
  };
  np_amx_shape shape = {{0, 0}, 0};
  for (size_t column = 0; column < p->columns; column += NP_BF16_COLUMNS) {
    const np_bf16_panel one = panel_at(p, column, size);
    before.aside.next = (const uint8_t *)(one.panel + size);
    if (!tiles) {
      np_bf16_avx512bf16.multiply(&one);
    } else if (one.columns > 16) {
      multiply_panel(&one, &t, &shape, &before, &memory, 2);
    } else {
      multiply_panel(&one, &t, &shape, &before, &memory, 1);
    }
  }
  if (tiles) np_amx_release();
  np_amx_finish(&before.aside);
}

static void round_elements(const void *in, size_t count, int32_t zero, void *out) {
  np_bf16_avx512bf16.round(in, count, zero, out);
}

const np_bf16_code np_bf16_avx512amx = {multiply, round_elements, sizeof(uint16_t),
                                        MAX_PANELS * NP_BF16_COLUMNS};
