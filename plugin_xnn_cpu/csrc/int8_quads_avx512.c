/* The innermost code of the layout of quads for AVX-512 with VNNI.
 *
 * A tile of 14 windows and 32 columns has 28 registers of sums, 2 of weights, and one of
 * four elements in all of its lanes; one of 7 windows has 64 columns. Windows of a tile lie evenly
 * apart, so that three of them share a register that points to them. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#include "int8_quads_avx512.h"

#define ROWS NP_INT8_QUAD_ROWS
#define WIDE (2 * NP_INT8_QUAD_COLUMNS) /* columns of the widest tile */
#define AHEAD 1024                      /* bytes of weights that are asked for early */
#define SMALL_PANEL 8192                /* bytes */
#define EARLY_TILES 16                  /* at most, in which the next panel is asked for */

/* How the sums of a panel become int8. */
typedef struct {
  int32_t start[WIDE] __attribute__((aligned(64))); /* of sums: the bias, and what zeros make of it */
  int small; /* no scaled sum is too large to be converted */
} panel_start;

INLINE void start_panel(const np_int8_panel *p, const uint8_t *panel, size_t columns, size_t at,
                        panel_start *s) {
  const size_t width = np_int8_quad_width(columns);
  const int32_t *bias = (const int32_t *)(const void *)panel;
  const float *scales = (const float *)(const void *)(bias + width);
  const int32_t *weight_sums = bias + 2 * width;
  const __m512i zero = _mm512_set1_epi32(p->zero);
  for (size_t n = 0; n < width; n += LANES) {
    const __m512i moved = _mm512_mullo_epi32(_mm512_load_si512(weight_sums + n), zero);
    _mm512_store_si512(s->start + at + n,
                       _mm512_sub_epi32(_mm512_load_si512(bias + n), moved));
    const __m512 half = _mm512_set1_ps(0.5f); /* times sums, this is below 2^31 */
    s->small &= _mm512_cmp_ps_mask(_mm512_load_ps(scales + n), half, _CMP_GE_OQ) == 0;
  }
}

/* Sums of one row in two vectors to int16, with the output's zero. Columns behind the first 16 are
 * anything where there is one vector. */
INLINE __m512i halved(__m512i first, __m512i second, __m512 scale, __m512 other, __m512i zero) {
  const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(first), scale));
  const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(second), other));
  return _mm512_adds_epi16(_mm512_packs_epi32(a, b), zero);
}

/* Where a tile is, and what comes of it. */
typedef struct {
  size_t first; /* window */
  const uint8_t *weights;
  size_t apart;         /* bytes to the next panel, of which vectors after the second are */
  const int32_t *start; /* of the sums */
  int32_t *sums;        /* [rows][LANES · vectors] */
  const uint8_t *next;  /* what is asked for from memory meanwhile */
  size_t next_step;     /* bytes for each quad */
} tile_place;

/* The sums of `rows` windows. */
INLINE void tile(const np_int8_panel *p, const tile_place *t, const int rows, const int vectors) {
  const uint8_t *weights = t->weights;
  const size_t apart = t->apart, next_step = t->next_step;
  const uint8_t *next = t->next;
  const int in_panel = vectors < 2 ? vectors : 2;
  const size_t step = p->step;
  const uint8_t *image = (const uint8_t *)p->image + p->pixels[t->first];
  __m512i sums[ROWS][4];
  UNROLL for (int r = 0; r < rows; r++) {
    UNROLL for (int v = 0; v < vectors; v++) {
      sums[r][v] = _mm512_load_si512(t->start + LANES * v);
    }
  }
  for (size_t q = 0; q < p->run_count; q++) {
    const uint8_t *x[(ROWS + 2) / 3];
    UNROLL for (int i = 0; i < (rows + 2) / 3; i++) {
      x[i] = image + p->runs[q] + (size_t)(3 * i) * step;
    }
    for (size_t k = 0; k < p->groups; k++, weights += 64 * in_panel) {
      __m512i w[4];
      UNROLL for (int v = 0; v < vectors; v++) {
        w[v] = _mm512_load_si512(weights + (v < 2 ? 0 : apart) + 64 * (v % 2));
        _mm_prefetch((const char *)weights + (v < 2 ? 0 : apart) + 64 * (v % 2) + AHEAD,
                     _MM_HINT_T0);
      }
      _mm_prefetch((const char *)next, _MM_HINT_T1);
      next += next_step;
      UNROLL for (int r = 0; r < rows; r++) {
        const __m512i four = four_of(x[r / 3] + (size_t)(r % 3) * step);
        UNROLL for (int v = 0; v < vectors; v++) {
          sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], four, w[v]);
        }
      }
      UNROLL for (int i = 0; i < (rows + 2) / 3; i++) x[i] += 4;
    }
  }
  UNROLL for (int r = 0; r < rows; r++) {
    UNROLL for (int v = 0; v < vectors; v++) {
      _mm512_store_si512(t->sums + (r * vectors + v) * LANES, sums[r][v]);
    }
  }
}

typedef void tile_code(const np_int8_panel *p, const tile_place *t);

#define TILE(rows, vectors)                                                                 \
  TARGET static void tile_##rows##_##vectors(const np_int8_panel *p, const tile_place *t) { \
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
static tile_code *const wide_tiles[ROWS / 2] = {tile_1_4, tile_2_4, tile_3_4, tile_4_4,
                                                tile_5_4, tile_6_4, tile_7_4};

/* How another tensor is added to bytes of 16 bits. Factors have more bits than a multiplication of
 * int16 takes: the low 7 of them, and those above, are multiplied one after the other, and the
 * former's product has lost as many bits by then. */
typedef struct {
  __m512i lower, upper; /* pairs of factors */
  __m512i bias;
  __m128i shift; /* that is left */
  __m512i least, most; /* of what is added to */
} summing;

INLINE summing summing_of(const np_int8_panel *p) {
  const struct np_int8_sum *sum = p->sum;
  const int32_t low_pair = (sum->own & 127) | (sum->other & 127) << 16;
  const int32_t high_pair = (sum->own >> 7) | (int32_t)((uint32_t)(sum->other >> 7) << 16);
  return (summing){
      .lower = _mm512_set1_epi32(low_pair),
      .upper = _mm512_set1_epi32(high_pair),
      .bias = _mm512_set1_epi32(sum->bias),
      .shift = _mm_cvtsi32_si128(sum->shift - 7),
      .least = _mm512_set1_epi16((int16_t)p->range.low),
      .most = _mm512_set1_epi16((int16_t)p->range.high),
  };
}

/* 32 columns of a row, as `halved` gives them, and the bytes that are added. */
INLINE __m512i with_other(const summing *s, __m512i own, const int8_t *other, __mmask32 mask) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_maskz_loadu_epi8(mask, other);
  const __m512i b = _mm512_cvtepi8_epi16(_mm256_permutevar8x32_epi32(bytes, order));
  const __m512i a = _mm512_min_epi16(_mm512_max_epi16(own, s->least), s->most);
  __m512i pairs[2] = {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)};
  UNROLL for (int i = 0; i < 2; i++) {
    const __m512i low = _mm512_dpwssd_epi32(s->bias, pairs[i], s->lower);
    const __m512i whole = _mm512_dpwssd_epi32(_mm512_srai_epi32(low, 7), pairs[i], s->upper);
    pairs[i] = _mm512_sra_epi32(whole, s->shift);
  }
  return _mm512_packs_epi32(pairs[0], pairs[1]);
}

/* Rows of small sums of a panel to bytes, two at a time. */
INLINE void small_to_bytes(const np_int8_panel *p, size_t first, size_t rows, const int32_t *sums,
                           size_t stride, const uint8_t *panel, size_t column, size_t columns,
                           const int adds) {
  const size_t width = np_int8_quad_width(columns), second = width - LANES;
  const float *scales = (const float *)(const void *)panel + width;
  const __m512 scale = _mm512_load_ps(scales), other = _mm512_load_ps(scales + second);
  const summing s = adds ? summing_of(p) : (summing){.shift = _mm_setzero_si128()};
  const __m512i zero = _mm512_set1_epi16((int16_t)p->range.zero);
  const __m512i sum_zero = _mm512_set1_epi16((int16_t)(adds ? p->sum->zero : 0));
  const __m512i low = _mm512_set1_epi8((int8_t)(adds ? p->sum->low : p->range.low));
  const __m512i high = _mm512_set1_epi8((int8_t)(adds ? p->sum->high : p->range.high));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __mmask32 mask = (__mmask32)mask_of(columns);
  const size_t out_stride = p->out_stride;
  int8_t *out = (int8_t *)p->out + first * out_stride + column;
  const int8_t *added = adds ? p->other + first * out_stride + column : NULL;
  for (size_t r = 0; r < rows; r += 2, sums += 2 * stride, out += 2 * out_stride) {
    const int32_t *next = sums + (r + 1 < rows ? stride : 0);
    __m512i a = halved(_mm512_load_si512(sums), _mm512_load_si512(sums + second), scale, other,
                       zero);
    __m512i b = halved(_mm512_load_si512(next), _mm512_load_si512(next + second), scale, other,
                       zero);
    if (adds) {
      const int8_t *below = added + (next != sums ? out_stride : 0);
      a = _mm512_adds_epi16(with_other(&s, a, added, mask), sum_zero);
      b = _mm512_adds_epi16(with_other(&s, b, below, mask), sum_zero);
      added += 2 * out_stride;
    }
    const __m512i cut = _mm512_min_epi8(_mm512_max_epi8(_mm512_packs_epi16(a, b), low), high);
    const __m512i both = _mm512_permutexvar_epi32(order, cut);
    _mm256_mask_storeu_epi8(out, mask, _mm512_castsi512_si256(both));
    if (next != sums) {
      _mm256_mask_storeu_epi8(out + out_stride, mask, _mm512_extracti64x4_epi64(both, 1));
    }
  }
}

/* Rows of sums of a panel to bytes; larger ones are cut before they are converted, which makes the
 * least integer of what is too large. */
INLINE void to_bytes(const np_int8_panel *p, size_t first, size_t rows, const int32_t *sums,
                     size_t stride, const uint8_t *panel, size_t column, size_t columns) {
  const size_t width = np_int8_quad_width(columns);
  const float *scales = (const float *)(const void *)panel + width;
  const __m512 most = _mm512_set1_ps((float)(p->range.high - p->range.zero));
  const __m512i zero = _mm512_set1_epi32(p->range.zero), low = _mm512_set1_epi32(p->range.low);
  int8_t *out = (int8_t *)p->out + first * p->out_stride + column;
  for (size_t r = 0; r < rows; r++, sums += stride, out += p->out_stride) {
    for (size_t n = 0; n < width; n += LANES) {
      const __m512i x = scaled(_mm512_load_si512(sums + n), _mm512_load_ps(scales + n), most);
      /* What is least of all would be added up to something else. */
      const __m512i cut = _mm512_max_epi32(x, _mm512_set1_epi32(-1024));
      const __m512i moved = _mm512_max_epi32(_mm512_add_epi32(cut, zero), low);
      const __mmask16 mask = (__mmask16)(n >= columns ? 0 : mask_of(columns - n));
      _mm_mask_storeu_epi8(out + n, mask, _mm512_cvtsepi32_epi8(moved));
    }
  }
}

INLINE void to_floats(const np_int8_panel *p, size_t first, size_t rows, const int32_t *sums,
                      size_t stride, const uint8_t *panel, size_t column, size_t columns) {
  const size_t width = np_int8_quad_width(columns);
  const float *bias = (const float *)(const void *)panel, *factors = bias + width;
  const int32_t *weight_sums = (const int32_t *)(const void *)(factors + width);
  const __m512 low = _mm512_set1_ps(p->low), high = _mm512_set1_ps(p->high);
  float *out = (float *)p->out + first * p->out_stride + column;
  for (size_t r = 0; r < rows; r++, sums += stride, out += p->out_stride) {
    const __m512i zero = _mm512_set1_epi32(p->row_zeros[first + r]);
    const __m512 row_scale = _mm512_set1_ps(p->row_scales[first + r]);
    for (size_t n = 0; n < width; n += LANES) {
      const __m512i moved = _mm512_mullo_epi32(_mm512_load_si512(weight_sums + n), zero);
      const __m512i sum = _mm512_sub_epi32(_mm512_load_si512(sums + n), moved);
      __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), row_scale);
      x = _mm512_fmadd_ps(x, _mm512_load_ps(factors + n), _mm512_load_ps(bias + n));
      x = _mm512_min_ps(high, _mm512_max_ps(low, x)); /* in this order NaN stays */
      const __mmask16 mask = (__mmask16)(n >= columns ? 0 : mask_of(columns - n));
      _mm512_mask_storeu_ps(out + n, mask, x);
    }
  }
}

INLINE void finish(const np_int8_panel *p, size_t first, size_t rows, const int32_t *sums,
                   size_t stride, const uint8_t *panel, size_t column, size_t columns, int small) {
  if (p->kind == NP_INT8_TO_FLOAT) {
    to_floats(p, first, rows, sums, stride, panel, column, columns);
  } else if (small && p->sum != NULL) {
    small_to_bytes(p, first, rows, sums, stride, panel, column, columns, 1);
  } else if (small) {
    small_to_bytes(p, first, rows, sums, stride, panel, column, columns, 0);
  } else {
    to_bytes(p, first, rows, sums, stride, panel, column, columns);
    if (p->sum != NULL) {
      const size_t place = first * p->out_stride + column;
      np_int8_quads_add_avx512(p->sum, p->other + place, (int8_t *)p->out + place, rows, columns,
                               p->out_stride);
    }
  }
}

/* All panels lie one behind the other. While the last tiles are multiplied with one, the next is
 * asked for from memory: a part of it in each of them. */
typedef struct {
  const uint8_t *next;
  size_t step;  /* bytes for each quad */
  size_t part;  /* bytes for each tile */
  size_t tiles; /* that are left */
  size_t early; /* of them, those that ask */
} panel_ahead;

INLINE panel_ahead ahead_of(const np_int8_panel *p, const uint8_t *end, size_t tiles, size_t quad) {
  const size_t early = tiles < EARLY_TILES ? tiles : EARLY_TILES;
  const size_t step = (quad + early - 1) / early;
  return (panel_ahead){end, step, step * p->run_count * p->groups, tiles, early};
}

INLINE void ask_ahead(panel_ahead *ahead, tile_place *t) {
  const int asks = ahead->tiles <= ahead->early;
  t->next = ahead->next;
  t->next_step = asks ? ahead->step : 0;
  ahead->next += asks ? ahead->part : 0;
  ahead->tiles--;
}

/* A panel of weights, and where its columns are. */
typedef struct {
  const uint8_t *panel;
  const int32_t *start;
  size_t column;
  size_t columns;
} panel_place;

/* Windows from `first` to `last`, evenly apart, with one panel, or with two in turns. */
INLINE void multiply_line(const np_int8_panel *p, size_t first, size_t last,
                          const panel_place *places, size_t count, int small,
                          panel_ahead *ahead) {
  int32_t sums[ROWS * NP_INT8_QUAD_COLUMNS] __attribute__((aligned(64)));
  tile_place t = {.sums = sums};
  size_t tiles = (last - first + ROWS - 1) / ROWS;
  for (t.first = first; t.first < last; tiles--) {
    const size_t rows = (last - t.first + tiles - 1) / tiles;
    for (size_t i = 0; i < count; i++) {
      const panel_place *place = &places[i];
      const size_t width = np_int8_quad_width(place->columns);
      t.weights = place->panel + np_int8_quad_head(place->columns);
      t.start = place->start;
      ask_ahead(ahead, &t);
      narrow_tiles[rows - 1][width / LANES - 1](p, &t);
      finish(p, t.first, rows, sums, width, place->panel, place->column, place->columns, small);
    }
    t.first += rows;
  }
}

/* Few windows, with two panels at a time. */
INLINE void multiply_two(const np_int8_panel *p, size_t first, size_t rows, size_t apart,
                         const panel_start *s, panel_ahead *ahead) {
  const size_t second = p->columns - NP_INT8_QUAD_COLUMNS;
  int32_t sums[ROWS / 2 * WIDE] __attribute__((aligned(64)));
  tile_place t = {
      .first = first,
      .weights = p->panel + np_int8_quad_head(NP_INT8_QUAD_COLUMNS),
      .apart = apart,
      .start = s->start,
      .sums = sums,
  };
  ask_ahead(ahead, &t);
  wide_tiles[rows - 1](p, &t);
  finish(p, first, rows, sums, WIDE, p->panel, 0, NP_INT8_QUAD_COLUMNS, s->small);
  finish(p, first, rows, sums + NP_INT8_QUAD_COLUMNS, WIDE, p->panel + apart, NP_INT8_QUAD_COLUMNS,
         second, s->small);
}

TARGET static void multiply(const np_int8_panel *p) {
  const size_t apart =
      np_int8_quad_panel_size(NP_INT8_QUAD_COLUMNS, p->run_count * p->groups);
  const size_t second = p->columns > NP_INT8_QUAD_COLUMNS ? p->columns - NP_INT8_QUAD_COLUMNS : 0;
  const size_t line = p->line, lines = p->count / line, panels = second > 0 ? 2 : 1;
  panel_start s = {.small = 1};
  const panel_place places[2] = {
      {p->panel, s.start, 0, p->columns - second},
      {p->panel + apart, s.start + NP_INT8_QUAD_COLUMNS, NP_INT8_QUAD_COLUMNS, second},
  };
  if (p->kind == NP_INT8_TO_INT8) {
    for (size_t i = 0; i < panels; i++) {
      start_panel(p, places[i].panel, places[i].columns, places[i].column, &s);
    }
  }
  if (second > LANES && line <= ROWS / 2) {
    panel_ahead ahead = ahead_of(p, p->panel + 2 * apart, lines, 4 * WIDE);
    for (size_t first = 0; first < p->count; first += line) {
      multiply_two(p, first, line, apart, &s, &ahead);
    }
    return;
  }
  const size_t tiles = lines * ((line + ROWS - 1) / ROWS);
  /* Panels that stay in the first cache together are gone over once. */
  const size_t together = apart <= SMALL_PANEL ? panels : 1;
  for (size_t i = 0; i < panels; i += together) {
    panel_ahead ahead = ahead_of(p, places[i].panel + together * apart, together * tiles,
                                 together * 4 * NP_INT8_QUAD_COLUMNS);
    for (size_t first = 0; first < p->count; first += line) {
      multiply_line(p, first, first + line, &places[i], together, s.small, &ahead);
    }
  }
}

const np_int8_code np_int8_quads_avx512 = {
    .element = 1,
    .group = 4,
    .columns = NP_INT8_QUAD_COLUMNS,
    .most = 2 * NP_INT8_QUAD_COLUMNS,
    .panel_size = np_int8_quad_panel_size,
    .packed_size = np_int8_quads_packed_size,
    .multiply = multiply,
    .widen = np_int8_quads_widen_avx512,
    .quantize = np_int8_quads_quantize_avx512,
    .interleave = np_int8_quads_interleave_avx512,
    .quad_depthwise = np_int8_quads_depthwise_avx512,
};

#endif
