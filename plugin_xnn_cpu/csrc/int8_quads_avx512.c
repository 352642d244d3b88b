/* The innermost code of the layout of quads for AVX-512 with VNNI.
 *
 * vpdpbusd multiplies 64 bytes from 0 to 255 with 64 of int8 and adds them by fours to int32, all of
 * it exact. A tile of 14 windows and 32 columns has 28 registers of sums, 2 of weights, and one of
 * four elements in all of its lanes; one of 7 windows has 64 columns. Windows of a tile lie evenly
 * apart, so that three of them share a register that points to them. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>

#include "int8_code.h"

#define TARGET __attribute__((target("arch=x86-64-v4,avx512vnni")))
#define INLINE TARGET static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

#define LANES 16
#define ROWS NP_INT8_QUAD_ROWS
#define WIDE (2 * NP_INT8_QUAD_COLUMNS) /* columns of the widest tile */
#define AHEAD 1024                      /* bytes of weights that are asked for early */
#define EARLY_TILES 16                  /* at most, in which the next panel is asked for */

INLINE __m512i four_of(const uint8_t *x) {
  int32_t four;
  memcpy(&four, x, sizeof four);
  return _mm512_set1_epi32(four);
}

/* Sums to integers that are int8 but for their zero point and lower bound; larger ones are cut
 * before they are converted, which makes the least integer of what is too large. */
INLINE __m512i scaled(__m512i sums, __m512 scales, __m512 most) {
  return _mm512_cvtps_epi32(_mm512_min_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), scales), most));
}

INLINE __mmask64 mask_of(size_t columns) {
  return columns >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << columns) - 1;
}

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

/* Rows of small sums of a panel to bytes, two at a time. */
INLINE void small_to_bytes(const np_int8_panel *p, size_t first, size_t rows, const int32_t *sums,
                           size_t stride, const uint8_t *panel, size_t column, size_t columns) {
  const size_t width = np_int8_quad_width(columns), second = width - LANES;
  const float *scales = (const float *)(const void *)panel + width;
  const __m512 scale = _mm512_load_ps(scales), other = _mm512_load_ps(scales + second);
  const __m512i zero = _mm512_set1_epi16((int16_t)p->range.zero);
  const __m512i low = _mm512_set1_epi8((int8_t)p->range.low);
  const __m512i high = _mm512_set1_epi8((int8_t)p->range.high);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __mmask32 mask = (__mmask32)mask_of(columns);
  const size_t out_stride = p->out_stride;
  int8_t *out = (int8_t *)p->out + first * out_stride + column;
  for (size_t r = 0; r < rows; r += 2, sums += 2 * stride, out += 2 * out_stride) {
    const int32_t *next = sums + (r + 1 < rows ? stride : 0);
    const __m512i a = halved(_mm512_load_si512(sums), _mm512_load_si512(sums + second), scale,
                             other, zero);
    const __m512i b = halved(_mm512_load_si512(next), _mm512_load_si512(next + second), scale,
                             other, zero);
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
  } else if (small) {
    small_to_bytes(p, first, rows, sums, stride, panel, column, columns);
  } else {
    to_bytes(p, first, rows, sums, stride, panel, column, columns);
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

/* Windows from `first` to `last`, evenly apart, with one panel. */
INLINE void multiply_panel(const np_int8_panel *p, size_t first, size_t last, const uint8_t *panel,
                           size_t column, size_t columns, const panel_start *s,
                           panel_ahead *ahead) {
  const size_t width = np_int8_quad_width(columns);
  int32_t sums[ROWS * NP_INT8_QUAD_COLUMNS] __attribute__((aligned(64)));
  tile_place t = {
      .weights = panel + np_int8_quad_head(columns),
      .start = s->start,
      .sums = sums,
  };
  size_t tiles = (last - first + ROWS - 1) / ROWS;
  for (t.first = first; t.first < last; tiles--) {
    const size_t rows = (last - t.first + tiles - 1) / tiles;
    ask_ahead(ahead, &t);
    narrow_tiles[rows - 1][width / LANES - 1](p, &t);
    finish(p, t.first, rows, sums, width, panel, column, columns, s->small);
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
  const size_t line = p->line, lines = p->count / line;
  panel_start s;
  if (second > LANES && line <= ROWS / 2) {
    s.small = 1;
    memset(s.start, 0, sizeof s.start);
    if (p->kind == NP_INT8_TO_INT8) {
      start_panel(p, p->panel, NP_INT8_QUAD_COLUMNS, 0, &s);
      start_panel(p, p->panel + apart, second, NP_INT8_QUAD_COLUMNS, &s);
    }
    panel_ahead ahead = ahead_of(p, p->panel + 2 * apart, lines, 4 * WIDE);
    for (size_t first = 0; first < p->count; first += line) {
      multiply_two(p, first, line, apart, &s, &ahead);
    }
    return;
  }
  const size_t tiles = lines * ((line + ROWS - 1) / ROWS);
  for (size_t column = 0; column < p->columns; column += NP_INT8_QUAD_COLUMNS) {
    const uint8_t *panel = p->panel + (column == 0 ? 0 : apart);
    const size_t columns = column == 0 && second > 0 ? NP_INT8_QUAD_COLUMNS : p->columns - column;
    s.small = 1;
    memset(s.start, 0, sizeof s.start);
    if (p->kind == NP_INT8_TO_INT8) start_panel(p, panel, columns, 0, &s);
    panel_ahead ahead = ahead_of(p, panel + apart, tiles, 4 * NP_INT8_QUAD_COLUMNS);
    for (size_t first = 0; first < p->count; first += line) {
      multiply_panel(p, first, first + line, panel, column, columns, &s, &ahead);
    }
  }
}

TARGET static void widen(const int8_t *in, size_t count, int32_t zero, void *wide) {
  const __m512i turned = _mm512_set1_epi8((char)0x80);
  uint8_t *out = wide;
  (void)zero;
  size_t i = 0;
  for (; i + 64 <= count; i += 64) {
    _mm512_storeu_si512(out + i, _mm512_xor_si512(_mm512_loadu_si512(in + i), turned));
  }
  if (i < count) {
    const __mmask64 mask = mask_of(count - i);
    const __m512i x = _mm512_maskz_loadu_epi8(mask, in + i);
    _mm512_mask_storeu_epi8(out + i, mask, _mm512_xor_si512(x, turned));
  }
}

TARGET static float quantize(const float *row, size_t count, void *wide, int32_t *zero) {
  uint8_t *out = wide;
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
  __m512 low = _mm512_setzero_ps(), high = low;
  for (size_t i = 0; i < count; i += LANES) {
    const __mmask16 mask = (__mmask16)mask_of(count - i);
    const __m512 x = _mm512_maskz_loadu_ps(mask, row + i);
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(x), magnitude));
    low = _mm512_min_ps(low, x);
    high = _mm512_max_ps(high, x);
  }
  *zero = 0;
  if (_mm512_reduce_max_epu32(largest) >= NP_INT8_HUGE) {
    memset(out, 0, count);
    return __builtin_nanf("");
  }
  const np_int8_row_range range =
      np_int8_range_of(_mm512_reduce_min_ps(low), _mm512_reduce_max_ps(high));
  *zero = (int32_t)range.zero + 128;
  const __m512 inverse = _mm512_set1_ps(range.inverse);
  const __m512i moved = _mm512_set1_epi32(*zero);
  /* Products are at most a little more than 255 in magnitude. */
  for (size_t i = 0; i < count; i += LANES) {
    const __mmask16 mask = (__mmask16)mask_of(count - i);
    const __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, row + i), inverse);
    const __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(x), moved);
    const __m512i positive = _mm512_max_epi32(whole, _mm512_setzero_si512());
    _mm_mask_storeu_epi8(out + i, mask, _mm512_cvtusepi32_epi8(positive));
  }
  return 1.0f / range.inverse;
}

TARGET static void interleave(const int8_t *const *rows, size_t stride, size_t count,
                              size_t columns, int32_t zero, uint8_t *out) {
  const __mmask64 mask = mask_of(columns);
  const __m512i turned = _mm512_set1_epi8((char)0x80), nothing = _mm512_set1_epi8((char)zero);
  for (size_t x = 0; x < count; x++, out += NP_INT8_QUAD_PIXEL) {
    __m512i r[4];
    UNROLL for (int i = 0; i < 4; i++) {
      r[i] = nothing;
      if (rows[i] != NULL) {
        const __m512i bytes = _mm512_maskz_loadu_epi8(mask, rows[i] + x * stride);
        r[i] = _mm512_mask_xor_epi32(nothing, 0xffff, bytes, turned);
      }
    }
    const __m512i a = _mm512_unpacklo_epi8(r[0], r[1]), b = _mm512_unpackhi_epi8(r[0], r[1]);
    const __m512i c = _mm512_unpacklo_epi8(r[2], r[3]), d = _mm512_unpackhi_epi8(r[2], r[3]);
    _mm512_store_si512(out, _mm512_unpacklo_epi16(a, c));
    _mm512_store_si512(out + 64, _mm512_unpackhi_epi16(a, c));
    _mm512_store_si512(out + 128, _mm512_unpacklo_epi16(b, d));
    _mm512_store_si512(out + 192, _mm512_unpackhi_epi16(b, d));
  }
}

/* How the sums of 64 channels become int8. */
typedef struct {
  __m512i start[4];
  __m512 scales[4];
  __m512 most;
  __m512i zero, low, high;
  __mmask64 mask;
} narrowing;

/* Also gives whether no scaled sum of `terms` products is too large to be converted. */
INLINE int start_block(const np_int8_quad_block *b, size_t terms, narrowing *n) {
  const int32_t *bias = (const int32_t *)(const void *)b->head;
  const float *factors = (const float *)(const void *)(bias + NP_INT8_QUAD_CHANNELS);
  const int32_t *weight_sums = bias + 2 * NP_INT8_QUAD_CHANNELS;
  const __m512i from_zero = _mm512_set1_epi32(b->zero);
  const __m512 most_of_sums = _mm512_set1_ps((float)terms * 127.0f * 256.0f);
  int small = 1;
  UNROLL for (int v = 0; v < 4; v++) {
    const __m512i sum = _mm512_load_si512(weight_sums + LANES * v);
    const __m512i added = _mm512_load_si512(bias + LANES * v);
    n->start[v] = _mm512_sub_epi32(added, _mm512_mullo_epi32(sum, from_zero));
    n->scales[v] = _mm512_load_ps(factors + LANES * v);
    const __m512 most = _mm512_add_ps(_mm512_abs_ps(_mm512_cvtepi32_ps(added)), most_of_sums);
    small &= _mm512_cmp_ps_mask(_mm512_mul_ps(most, n->scales[v]), _mm512_set1_ps(0x1p30f),
                                _CMP_GE_OQ) == 0;
  }
  n->most = _mm512_set1_ps((float)(b->range.high - b->range.zero));
  n->zero = _mm512_set1_epi16((int16_t)b->range.zero);
  n->low = _mm512_set1_epi8((int8_t)b->range.low);
  n->high = _mm512_set1_epi8((int8_t)b->range.high);
  n->mask = mask_of(b->columns);
  return small;
}

INLINE void store_narrowed(const narrowing *n, const __m512i *sums, const int small, int8_t *out) {
  __m512i x[4];
  UNROLL for (int v = 0; v < 4; v++) {
    x[v] = small ? _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(sums[v]), n->scales[v]))
                 : scaled(sums[v], n->scales[v], n->most);
  }
  const __m512i first = _mm512_adds_epi16(_mm512_packs_epi32(x[0], x[1]), n->zero);
  const __m512i second = _mm512_adds_epi16(_mm512_packs_epi32(x[2], x[3]), n->zero);
  const __m512i bytes = _mm512_max_epi8(_mm512_packs_epi16(first, second), n->low);
  _mm512_mask_storeu_epi8(out, n->mask, _mm512_min_epi8(bytes, n->high));
}

INLINE void any_windows(const np_int8_quad_block *b, const narrowing *n, const int small) {
  const uint8_t *weights = b->head + NP_INT8_QUAD_BLOCK_HEAD;
  for (size_t i = 0; i < b->count; i++) {
    __m512i sums[4];
    UNROLL for (int v = 0; v < 4; v++) sums[v] = n->start[v];
    const uint8_t *w = weights;
    for (size_t j = 0; j < b->quads; j++) {
      const uint8_t *x = b->image + i * b->step + j * b->quad_stride;
      for (size_t k = 0; k < b->width; k++, x += b->column_stride, w += NP_INT8_QUAD_PIXEL) {
        UNROLL for (int v = 0; v < 4; v++) {
          sums[v] = _mm512_dpbusd_epi32(sums[v], _mm512_load_si512(x + 64 * v),
                                        _mm512_load_si512(w + 64 * v));
        }
      }
    }
    store_narrowed(n, sums, small, b->out + i * b->out_stride);
  }
}

/* Windows of up to 4 rows and 3 columns, whose weights stay in registers. */
INLINE void three_columns(const np_int8_quad_block *b, const narrowing *n) {
  const uint8_t *weights = b->head + NP_INT8_QUAD_BLOCK_HEAD;
  const narrowing kept = *n;
  const size_t step = b->step, column_stride = b->column_stride, out_stride = b->out_stride;
  const uint8_t *x = b->image;
  int8_t *out = b->out;
  const __m128i moved = _mm_cvtsi32_si128(b->lower ? 8 : 0);
  __m512i w[3][4];
  UNROLL for (int k = 0; k < 3; k++) {
    UNROLL for (int v = 0; v < 4; v++) {
      const __m512i upper = _mm512_load_si512(weights + k * NP_INT8_QUAD_PIXEL + 64 * v);
      w[k][v] = _mm512_sll_epi32(upper, moved);
    }
  }
  for (size_t i = 0; i < b->count; i++, x += step, out += out_stride) {
    __m512i sums[4];
    UNROLL for (int v = 0; v < 4; v++) sums[v] = kept.start[v];
    UNROLL for (int k = 0; k < 3; k++) {
      UNROLL for (int v = 0; v < 4; v++) {
        const __m512i four = _mm512_load_si512(x + k * column_stride + 64 * v);
        sums[v] = _mm512_dpbusd_epi32(sums[v], four, w[k][v]);
      }
    }
    store_narrowed(&kept, sums, 1, out);
  }
}

TARGET static void quad_depthwise(const np_int8_quad_block *b) {
  narrowing n;
  const int small = start_block(b, 4 * b->quads * b->width, &n);
  if (small && b->width == 3 && b->quads == 1) {
    three_columns(b, &n);
  } else if (!b->lower) {
    any_windows(b, &n, small);
  } else {
    /* Windows that start in the second row of a quad: their weights are moved down. */
    np_int8_quad_block moved = *b;
    uint8_t head[NP_INT8_QUAD_BLOCK_HEAD + 3 * NP_INT8_QUAD_PIXEL] __attribute__((aligned(64)));
    memcpy(head, b->head, sizeof head);
    for (size_t i = 0; i < 3 * NP_INT8_QUAD_PIXEL; i += 64) {
      uint8_t *w = head + NP_INT8_QUAD_BLOCK_HEAD + i;
      _mm512_store_si512(w, _mm512_slli_epi32(_mm512_load_si512(w), 8));
    }
    moved.head = head;
    any_windows(&moved, &n, small);
  }
}

/* Factors have more bits than a multiplication of int16 takes: the low 7 of them, and those above,
 * are multiplied one after the other. */
TARGET static void add(const struct np_int8_sum *sum, const int8_t *other, int8_t *out, size_t rows,
                       size_t columns, size_t stride) {
  const int32_t low_pair = (sum->own & 127) | (sum->other & 127) << 16;
  const int32_t high_pair = (sum->own >> 7) | (int32_t)((uint32_t)(sum->other >> 7) << 16);
  const __m512i lower = _mm512_set1_epi32(low_pair), upper = _mm512_set1_epi32(high_pair);
  const __m512i bias = _mm512_set1_epi32(sum->bias);
  const __m512i zero = _mm512_set1_epi16((int16_t)sum->zero);
  const __m512i low = _mm512_set1_epi8((int8_t)sum->low);
  const __m512i high = _mm512_set1_epi8((int8_t)sum->high);
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  const __m128i shift = _mm_cvtsi32_si128(sum->shift);
  for (size_t r = 0; r < rows; r++, out += stride, other += stride) {
    for (size_t n = 0; n < columns; n += 64) {
      const __mmask64 mask = mask_of(columns - n);
      const __m512i first = _mm512_maskz_loadu_epi8(mask, out + n);
      const __m512i second = _mm512_maskz_loadu_epi8(mask, other + n);
      __m512i halves[2];
      UNROLL for (int i = 0; i < 2; i++) {
        const __m512i a = _mm512_cvtepi8_epi16(i == 0 ? _mm512_castsi512_si256(first)
                                                      : _mm512_extracti64x4_epi64(first, 1));
        const __m512i b = _mm512_cvtepi8_epi16(i == 0 ? _mm512_castsi512_si256(second)
                                                      : _mm512_extracti64x4_epi64(second, 1));
        __m512i pairs[2] = {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)};
        UNROLL for (int k = 0; k < 2; k++) {
          const __m512i tops = _mm512_slli_epi32(_mm512_madd_epi16(pairs[k], upper), 7);
          const __m512i whole = _mm512_add_epi32(_mm512_dpwssd_epi32(bias, pairs[k], lower), tops);
          pairs[k] = _mm512_sra_epi32(whole, shift);
        }
        halves[i] = _mm512_adds_epi16(_mm512_packs_epi32(pairs[0], pairs[1]), zero);
      }
      const __m512i bytes = _mm512_packs_epi16(halves[0], halves[1]);
      const __m512i cut = _mm512_min_epi8(_mm512_max_epi8(bytes, low), high);
      _mm512_mask_storeu_epi8(out + n, mask, _mm512_permutexvar_epi64(order, cut));
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
    .widen = widen,
    .quantize = quantize,
    .interleave = interleave,
    .quad_depthwise = quad_depthwise,
    .add = add,
};

#endif
