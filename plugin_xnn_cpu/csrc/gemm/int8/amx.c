/* The micro-kernels of the 4-way interleaved layout for AMX: tiles multiply what VNNI multiplies, u8 by
 * s8, so that panels, rows and epilogues are those of VNNI, and so is each bit of the results.
 *
 * A block has two tiles of rows and a panel of 32 columns. While it is multiplied the block before is
 * finished. */
#include "gemm/int8/vnni_finish_code.h"
#include "simd/amx.h"

#define MIN_ROWS 4           /* with fewer, VNNI is as fast */
#define MAX_PANELS 32        /* at a time, for which tiles are configured once */
#define BLOCK_ROWS (2 * NP_AMX_ROWS)

/* A block whose accumulators are stored, and what of it is not finished. */
typedef struct {
  np_amx_aside aside;
  const np_int8_panel *p;
  panel_place at;
  const int32_t *acc;
  size_t first;
  size_t each; /* rows that are finished at a time */
  int small;
} pending;

/* How the rows are divided into tiles. */
typedef struct {
  size_t line;   /* rows that lie evenly apart */
  size_t rows;   /* of a tile */
  size_t groups; /* K-groups of a tile */
} row_plan;

NP_INLINE void subtract_zeros(const np_int8_panel *p, size_t first, size_t rows, size_t width,
                              const int32_t *zeros, int32_t *acc) {
  for (size_t r = 0; r < rows; r++) {
    const __m512i given = _mm512_set1_epi32(p->row_sums[first + r]);
    for (size_t n = 0; n < width; n += LANES, acc += LANES) {
      const __m512i moved = _mm512_mullo_epi32(given, _mm512_loadu_si512(zeros + n));
      _mm512_store_si512(acc, _mm512_sub_epi32(_mm512_load_si512(acc), moved));
    }
  }
}

static void finish_some(np_amx_aside *aside) {
  pending *b = (pending *)aside;
  const size_t rows = np_min(b->each, aside->left);
  const size_t width = np_int8_vnni_panel_width(b->at.columns);
  finish(b->p, b->first, rows, b->acc, width, b->at.panel, b->at.column, b->at.columns, b->small);
  aside->left -= rows;
  b->first += rows;
  b->acc += rows * width;
}

NP_INLINE void multiply_block(const np_int8_panel *p, const row_plan *plan, const panel_place *at,
                              size_t first, size_t rows, np_amx_aside *aside, int32_t *acc,
                              const int a_tiles, const int b_tiles) {
  const uint8_t *weights = at->panel + np_int8_vnni_head_size(at->columns);
  const size_t steps = p->groups / plan->groups, second = a_tiles > 1 ? first + rows : first;
  if (p->kind == NP_INT8_TO_INT8) {
    np_amx_start(at->start, a_tiles, b_tiles);
  } else {
    np_amx_zero();
  }
  for (size_t q = 0; q < p->run_count; q++) {
    const uint8_t *run = (const uint8_t *)p->image + p->runs[q];
    const uint8_t *a[2] = {run + p->pixels[first], run + p->pixels[second]};
    np_amx_accumulate(a, p->step, weights, steps, plan->groups, aside, a_tiles, b_tiles,
                      NP_AMX_U8_S8);
    weights += p->groups * 64 * (size_t)b_tiles;
  }
  np_amx_store(acc, rows, a_tiles, b_tiles);
}

/* Accumulators of a block, and of the one before. */
typedef struct {
  int32_t acc[2][BLOCK_ROWS * NP_INT8_VNNI_NR] __attribute__((aligned(64)));
  int current;
} block_memory;

NP_INLINE void multiply_panel(const np_int8_panel *p, const row_plan *plan, const panel_place *at,
                              np_amx_shape *shape, pending *before, block_memory *memory, int small,
                              const int b_tiles) {
  const size_t width = (size_t)b_tiles * LANES;
  for (size_t first = 0; first < p->count;) {
    const size_t rows = np_amx_rows_at(first, p->count, plan->line, plan->rows);
    const size_t more = np_amx_rows_at(first + rows, p->count, plan->line, plan->rows);
    int32_t *acc = memory->acc[memory->current ^= 1];
    np_amx_reshape(shape, (np_amx_shape){{rows, more}, plan->groups});
    if (more > 0) {
      multiply_block(p, plan, at, first, rows, &before->aside, acc, 2, b_tiles);
    } else {
      multiply_block(p, plan, at, first, rows, &before->aside, acc, 1, b_tiles);
    }
    np_amx_finish(&before->aside);
    if (p->row_sums != NULL) {
      subtract_zeros(p, first, rows + more, width, p->weight_zeros + at->column, acc);
    }
    before->at = *at;
    before->acc = acc;
    before->first = first;
    before->aside.left = rows + more;
    before->small = small;
    first += rows + more;
  }
}

/* The panels by VNNI, as many at a time as it takes. */
static void multiply_by_vnni(const np_int8_panel *p, size_t panel_size) {
  const size_t element = p->kind == NP_INT8_TO_INT8 ? 1 : sizeof(float);
  np_int8_panel some = *p;
  for (size_t column = 0; column < p->columns; column += some.columns) {
    some.columns = np_min(p->columns - column, np_int8_vnni_avx512.most);
    some.panel = p->panel + column / NP_INT8_VNNI_NR * panel_size;
    some.out = (uint8_t *)p->out + column * element;
    if (p->other != NULL) some.other = p->other + column;
    if (p->weight_zeros != NULL) some.weight_zeros = p->weight_zeros + column;
    np_int8_vnni_avx512.multiply(&some);
  }
}

static void multiply(const np_int8_panel *p) {
  const size_t size = np_int8_panel_size(4, NP_INT8_VNNI_NR, p->run_count * p->groups);
  const size_t groups = np_amx_groups_of_tile(p->groups);
  if (p->count < MIN_ROWS || groups == 0) {
    multiply_by_vnni(p, size);
    return;
  }
  row_plan plan = {.groups = groups};
  plan.line = np_amx_is_one_line(p->pixels, p->count, p->step) ? p->count : p->line;
  plan.rows = np_amx_rows_of_tile(plan.line);
  const size_t blocks = np_ceil_div(p->count, 2 * plan.rows);
  const size_t steps = p->run_count * (p->groups / groups);
  np_amx_shape shape = {{0, 0}, 0};
  block_memory memory;
  memory.current = 0;
  pending before = {
      .aside = {.lines = np_ceil_div(size / 64, blocks * steps), .finish_some = finish_some},
      .p = p,
      .each = np_amx_rows_aside(steps),
  };
  panel_start start = {.small = 1};
  for (size_t column = 0; column < p->columns; column += NP_INT8_VNNI_NR) {
    const size_t columns = np_min(p->columns - column, NP_INT8_VNNI_NR);
    const uint8_t *panel = p->panel + column / NP_INT8_VNNI_NR * size;
    const panel_place at = {panel, start.start, column, columns};
    before.aside.next = panel + size;
    start.small = 1;
    if (p->kind == NP_INT8_TO_INT8) start_panel(p, panel, columns, 0, &start);
    if (columns > LANES) {
      multiply_panel(p, &plan, &at, &shape, &before, &memory, start.small, 2);
    } else {
      multiply_panel(p, &plan, &at, &shape, &before, &memory, start.small, 1);
    }
  }
  np_amx_release();
  np_amx_finish(&before.aside);
}

const np_int8_micro_kernels np_int8_avx512amx = {
    .element = 1,
    .group = 4,
    .columns = NP_INT8_VNNI_NR,
    .most = MAX_PANELS * NP_INT8_VNNI_NR,
    .multiply = multiply,
    .upcast = np_int8_vnni_offset_avx512,
    .quantize = np_int8_vnni_quantize_avx512,
    .interleave = np_int8_vnni_interleave_avx512,
    .depthwise = np_int8_vnni_depthwise_avx512,
    .row = np_int8_vnni_gemv_avx512,
};
