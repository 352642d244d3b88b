/* The micro-kernels of the 4-way interleaved layout for AVX-512 with VNNI.
 *
 * A tile of 14 output pixels and 32 columns has 28 accumulators, 2 registers of weights, and one of
 * four elements in all of its lanes; one of 64 columns has 6 output pixels, or 7, with which a
 * register is lacking. Output pixels of a tile lie evenly apart, so that three of them share a
 * register that points to them. */
#include "gemm/int8/vnni_avx512.h"
#include "gemm/int8/vnni_finish_code.h"

#define ROWS NP_INT8_VNNI_MR
#define WIDE_ROWS (ROWS / 2)            /* that it has at most */
#define K_UNROLL 8                         /* that are multiplied between two steps of pointers */
#define GATHERED 4                      /* tiles whose accumulators are brought to bytes together */
#define PREFETCH_TILES 16                  /* at most, in which the next panel is prefetched */

/* Where a tile is, and what comes of it. */
typedef struct {
  size_t first; /* output pixel */
  const uint8_t *weights;
  size_t panel_stride;   /* bytes to the next panel, of which vectors after the second are */
  const int32_t *start;  /* of the accumulators */
  const int32_t *zeros;  /* points of the columns' weights; see np_int8_panel */
  int32_t *acc;          /* [rows][LANES · vectors] */
  const uint8_t *next;   /* what is prefetched meanwhile */
  size_t prefetch_lines; /* lines of it for each K_UNROLL K-groups */
} tile_place;

/* One K-group of `rows` output pixels: that which lies `number` K-groups of 4
 * behind where x and the rest point. */
NP_INLINE void multiply_group(__m512i acc[ROWS][4], const uint8_t *const *x, size_t step,
                           const uint8_t *weights, size_t panel_stride, const int rows,
                           const int vectors, const int number) {
  const int in_panel = vectors < 2 ? vectors : 2;
  __m512i w[4];
  UNROLL for (int v = 0; v < vectors; v++) {
    w[v] =
        _mm512_load_si512(weights + (v < 2 ? 0 : panel_stride) + 64 * (number * in_panel + v % 2));
  }
  UNROLL for (int r = 0; r < rows; r++) {
    const __m512i four = four_of(x[r / 3] + (size_t)(r % 3) * step + 4 * number);
    UNROLL for (int v = 0; v < vectors; v++) {
      acc[r][v] = _mm512_dpbusd_epi32(acc[r][v], four, w[v]);
    }
  }
}

/* `count` K-groups of 4, after which x and the rest point behind them. */
NP_INLINE void multiply_groups(__m512i acc[ROWS][4], const uint8_t **x, size_t step,
                            const uint8_t **weights, size_t panel_stride, const int rows,
                            const int vectors, const int count) {
  UNROLL for (int u = 0; u < count; u++) {
    multiply_group(acc, x, step, *weights, panel_stride, rows, vectors, u);
  }
  UNROLL for (int i = 0; i < (rows + 2) / 3; i++) x[i] += 4 * count;
  *weights += count * 64 * (vectors < 2 ? vectors : 2);
}

/* The accumulators of `rows` output pixels. K_UNROLL K-groups are multiplied between two steps
 * of the pointers: the units that multiply also add to pointers. */
NP_INLINE void tile(const np_int8_panel *p, const tile_place *t, const int rows,
                    const int vectors) {
  const uint8_t *weights = t->weights, *next = t->next;
  const size_t panel_stride = t->panel_stride, prefetch_lines = t->prefetch_lines;
  const size_t step = p->step;
  const uint8_t *image = (const uint8_t *)p->image + p->pixels[t->first];
  __m512i acc[ROWS][4];
  UNROLL for (int r = 0; r < rows; r++) {
    UNROLL for (int v = 0; v < vectors; v++) {
      acc[r][v] = _mm512_load_si512(t->start + LANES * v);
    }
  }
  for (size_t q = 0; q < p->run_count; q++) {
    const uint8_t *x[(ROWS + 2) / 3];
    UNROLL for (int i = 0; i < (rows + 2) / 3; i++) {
      x[i] = image + p->runs[q] + (size_t)(3 * i) * step;
    }
    size_t left = p->groups;
    for (; left >= K_UNROLL; left -= K_UNROLL) {
      for (size_t i = 0; i < prefetch_lines; i++, next += 64) {
        _mm_prefetch((const char *)next, _MM_HINT_T1);
      }
      multiply_groups(acc, x, step, &weights, panel_stride, rows, vectors, K_UNROLL);
    }
    if (left >= K_UNROLL / 2) {
      multiply_groups(acc, x, step, &weights, panel_stride, rows, vectors, K_UNROLL / 2);
      left -= K_UNROLL / 2;
    }
    for (; left > 0; left--) {
      multiply_groups(acc, x, step, &weights, panel_stride, rows, vectors, 1);
    }
  }
  if (p->row_sums != NULL) {
    UNROLL for (int r = 0; r < rows; r++) {
      const __m512i given = _mm512_set1_epi32(p->row_sums[t->first + (size_t)r]);
      UNROLL for (int v = 0; v < vectors; v++) {
        const __m512i zeros = _mm512_loadu_si512(t->zeros + LANES * v);
        acc[r][v] = _mm512_sub_epi32(acc[r][v], _mm512_mullo_epi32(given, zeros));
      }
    }
  }
  UNROLL for (int r = 0; r < rows; r++) {
    UNROLL for (int v = 0; v < vectors; v++) {
      _mm512_store_si512(t->acc + (r * vectors + v) * LANES, acc[r][v]);
    }
  }
}

typedef void tile_code(const np_int8_panel *p, const tile_place *t);

#define TILE(rows, vectors)                                                                 \
  static void tile_##rows##_##vectors(const np_int8_panel *p, const tile_place *t) { \
    tile(p, t, rows, vectors);                                                              \
  }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2)
TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6) TILES(7)
TILES(8) TILES(9) TILES(10) TILES(11) TILES(12) TILES(13) TILES(14)
TILE(1, 4) TILE(2, 4) TILE(3, 4) TILE(4, 4) TILE(5, 4) TILE(6, 4) TILE(7, 4)

static tile_code *const narrow_tiles[ROWS][2] = {
    {tile_1_1, tile_1_2},   {tile_2_1, tile_2_2},   {tile_3_1, tile_3_2},   {tile_4_1, tile_4_2},
    {tile_5_1, tile_5_2},   {tile_6_1, tile_6_2},   {tile_7_1, tile_7_2},   {tile_8_1, tile_8_2},
    {tile_9_1, tile_9_2},   {tile_10_1, tile_10_2}, {tile_11_1, tile_11_2}, {tile_12_1, tile_12_2},
    {tile_13_1, tile_13_2}, {tile_14_1, tile_14_2},
};
static tile_code *const wide_tiles[WIDE_ROWS] = {tile_1_4, tile_2_4, tile_3_4, tile_4_4,
                                                tile_5_4, tile_6_4, tile_7_4};

/* All panels lie one behind the other. While the last tiles are multiplied with one, the next is
 * prefetched: a part of it in each of them. What is prefetched takes the time of a load, so
 * that nothing is prefetched twice. */
typedef struct {
  const uint8_t *next;
  size_t prefetch_lines; /* lines for each K_UNROLL K-groups of a tile */
  size_t part;           /* bytes for each tile */
  size_t tiles;          /* that are left */
  size_t early;          /* of them, those that ask */
} prefetch_plan;

NP_INLINE prefetch_plan prefetch_plan_of(const np_int8_panel *p, const uint8_t *end, size_t tiles,
                                      size_t size) {
  const size_t early = tiles < PREFETCH_TILES ? tiles : PREFETCH_TILES;
  const size_t times = p->run_count * (p->groups / K_UNROLL), lines = early * times;
  const size_t prefetch_lines = lines == 0 ? 0 : (size / 64 + lines - 1) / lines;
  return (prefetch_plan){end, prefetch_lines, 64 * prefetch_lines * times, tiles, early};
}

NP_INLINE void place_prefetch(prefetch_plan *prefetch, tile_place *t) {
  const int prefetch_lines = prefetch->tiles <= prefetch->early;
  t->next = prefetch->next;
  t->prefetch_lines = prefetch_lines ? prefetch->prefetch_lines : 0;
  prefetch->next += prefetch_lines ? prefetch->part : 0;
  prefetch->tiles--;
}

/* Lines of float32 that come of a tile are prefetched before it is multiplied: there are so many
 * that they leave the L2 cache, and a line has to be read before it can be written. */
NP_INLINE void prefetch_out(const np_int8_panel *p, size_t first, size_t rows, size_t column,
                         size_t columns) {
  const float *out = (const float *)p->out + first * p->out_stride + column;
  for (size_t r = 0; r < rows; r++, out += p->out_stride) {
    for (size_t n = 0; n < columns; n += LANES) _m_prefetchw((void *)(uintptr_t)(out + n));
  }
}

/* The most output pixels of a tile of 64 columns. Seven need a register more than there is, which
 * costs more than they save; they are taken where they divide the output pixels, as in many
 * images. */
NP_INLINE size_t max_rows(size_t line) { return line % WIDE_ROWS == 0 ? WIDE_ROWS : 6; }

/* All output pixels, with one panel, or with two at a time. Accumulators of several tiles become
 * bytes together. */
NP_INLINE void multiply_rows(const np_int8_panel *p, const panel_place *places, const int panels,
                          size_t panel_stride, int small) {
  const size_t highest = panels == 2 ? max_rows(p->line) : ROWS;
  const size_t width = panels == 2 ? WIDE : np_int8_vnni_panel_width(places->columns);
  const size_t line = p->line, in_line = (line + highest - 1) / highest;
  int32_t acc[GATHERED * ROWS * NP_INT8_VNNI_NR] __attribute__((aligned(64)));
  tile_place t = {
      .weights = places->panel + np_int8_vnni_head_size(places->columns),
      .panel_stride = panel_stride,
      .start = places->start,
      .zeros = p->weight_zeros == NULL ? NULL : p->weight_zeros + places->column,
  };
  prefetch_plan prefetch =
      prefetch_plan_of(p, places->panel + (size_t)panels * panel_stride, p->count / line * in_line,
                       (size_t)panels * panel_stride);
  size_t first = 0; /* of the output pixels whose accumulators are gathered */
  for (size_t end = line; end <= p->count; end += line) {
    for (size_t left = in_line; left > 0; left--) {
      const size_t rows = (end - t.first + left - 1) / left;
      t.acc = acc + (t.first - first) * width;
      place_prefetch(&prefetch, &t);
      if (p->kind == NP_INT8_TO_FLOAT) {
        prefetch_out(p, t.first, rows, places->column, panels == 2 ? p->columns : width);
      }
      if (panels == 2) {
        wide_tiles[rows - 1](p, &t);
      } else {
        narrow_tiles[rows - 1][width / LANES - 1](p, &t);
      }
      t.first += rows;
      if (t.first < p->count && t.first - first <= (GATHERED - 1) * highest) continue;
      for (int i = 0; i < panels; i++) {
        const panel_place *place = &places[i];
        finish(p, first, t.first - first, acc + i * NP_INT8_VNNI_NR, width, place->panel,
               place->column, place->columns, small);
      }
      first = t.first;
    }
  }
}

static void multiply(const np_int8_panel *p) {
  const size_t panel_stride = np_int8_panel_size(4, NP_INT8_VNNI_NR, p->run_count * p->groups);
  const size_t second = p->columns > NP_INT8_VNNI_NR ? p->columns - NP_INT8_VNNI_NR : 0;
  const int panels = second > 0 ? 2 : 1;
  panel_start s = {.small = 1};
  const panel_place places[2] = {
      {p->panel, s.start, 0, p->columns - second},
      {p->panel + panel_stride, s.start + NP_INT8_VNNI_NR, NP_INT8_VNNI_NR, second},
  };
  if (p->kind == NP_INT8_TO_INT8) {
    for (int i = 0; i < panels; i++) {
      start_panel(p, places[i].panel, places[i].columns, places[i].column, &s);
    }
  }
  if (second > LANES) {
    multiply_rows(p, places, 2, panel_stride, s.small);
    return;
  }
  for (int i = 0; i < panels; i++) multiply_rows(p, &places[i], 1, panel_stride, s.small);
}

const np_int8_micro_kernels np_int8_vnni_avx512 = {
    .element = 1,
    .group = 4,
    .columns = NP_INT8_VNNI_NR,
    .most = 2 * NP_INT8_VNNI_NR,
    .multiply = multiply,
    .upcast = np_int8_vnni_offset_avx512,
    .quantize = np_int8_vnni_quantize_avx512,
    .interleave = np_int8_vnni_interleave_avx512,
    .depthwise = np_int8_vnni_depthwise_avx512,
    .row = np_int8_vnni_gemv_avx512,
};
