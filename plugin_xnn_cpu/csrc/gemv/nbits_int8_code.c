/* Rows quantized to int8, in blocks, times a matrix of few bits, for one instruction set.
 *
 * A shift and a mask unpack four consecutive weights of a column to unsigned bytes, which are multiplied
 * with four of the row: with VNNI by one instruction, else by maddubs, which adds pairs that fit
 * 16 bits up to 4 bits; of 8 bits each half is multiplied alone. ARM's dot product takes signed bytes,
 * as those of up to 4 bits, and each half of 8, are. Accumulators of a block are exact, and
 * scaled at its end by both scales. What zero points contribute is a multiple of the sum of the
 * row's block: accumulators start from it where they are common. */
#include "gemv/nbits_few_code.h"

#if defined(__AVX512VNNI__) && LANES == 16
#define HAS_VNNI 1
#else
#define HAS_VNNI 0
#endif

#if defined(__ARM_FEATURE_DOTPROD) && LANES == 4
#define HAS_NEON_DOT 1
#include <arm_neon.h>
#else
#define HAS_NEON_DOT 0
#endif

#define TILE_VECTORS 2
/* Of the highest tile; ARM has 32 registers. */
#define TILE_ROWS (LANES == 16 ? 12 : HAS_NEON_DOT ? 8 : LANES == 8 ? 4 : 2)

/* Bytes of the lowest bits, once words were shifted. */
NP_INLINE ivec masked(ivec words, const int bits) {
  if (bits == 8) return words;
  return words & (bits == 4 ? 0x0f0f0f0f : 0x03030303);
}

NP_INLINE ivec group_of(ivec words, const int group, const int bits) {
  /* Bits that come from the neighbouring byte are masked. */
  return masked((ivec)(words >> (group * bits)), bits);
}

NP_INLINE ivec four_of(const int8_t *x) {
  int32_t four;
  memcpy(&four, x, sizeof four);
  return four - (ivec){0};
}

/* Partial accumulators: of 32 bits, or pairs of 16 with maddubs but no VNNI; these take
 * `MOST_GROUPS` groups of weights of up to 4 bits: 8 · 2 · 15 · 127 < 2^15. */
#define MOST_GROUPS 8

typedef struct {
  ivec low;  /* of 16 bits without VNNI */
  ivec high; /* of the upper halves of 8 bits, without VNNI */
} partial;

NP_INLINE void dot(partial *p, ivec weights, ivec four, const int bits) {
#if HAS_VNNI
  (void)bits;
  p->low = (ivec)_mm512_dpbusd_epi32((__m512i)p->low, (__m512i)weights, (__m512i)four);
#elif defined(__AVX512BW__) && LANES == 16
  const ivec mask = 0x0f0f0f0f - (ivec){0};
  ivec low = weights;
  if (bits == 8) low &= mask;
  p->low = (ivec)_mm512_add_epi16((__m512i)p->low,
                                  _mm512_maddubs_epi16((__m512i)low, (__m512i)four));
  if (bits == 8) {
    const ivec high = (ivec)(weights >> 4) & mask;
    p->high = (ivec)_mm512_add_epi16((__m512i)p->high,
                                     _mm512_maddubs_epi16((__m512i)high, (__m512i)four));
  }
#elif defined(__AVX2__) && LANES == 8
  const ivec mask = 0x0f0f0f0f - (ivec){0};
  ivec low = weights;
  if (bits == 8) low &= mask;
  p->low = (ivec)_mm256_add_epi16((__m256i)p->low,
                                  _mm256_maddubs_epi16((__m256i)low, (__m256i)four));
  if (bits == 8) {
    const ivec high = (ivec)(weights >> 4) & mask;
    p->high = (ivec)_mm256_add_epi16((__m256i)p->high,
                                     _mm256_maddubs_epi16((__m256i)high, (__m256i)four));
  }
#elif HAS_NEON_DOT
  const ivec mask = 0x0f0f0f0f - (ivec){0};
  ivec low = weights;
  if (bits == 8) low &= mask;
  p->low = (ivec)vdotq_s32((int32x4_t)p->low, (int8x16_t)low, (int8x16_t)four);
  if (bits == 8) {
    const ivec high = (ivec)(weights >> 4) & mask;
    p->high = (ivec)vdotq_s32((int32x4_t)p->high, (int8x16_t)high, (int8x16_t)four);
  }
#else
  (void)bits;
  UNROLL for (int j = 0; j < 4; j++) {
    const ivec x = (ivec)(four << (24 - 8 * j)) >> 24;
    p->low += ((ivec)(weights >> (8 * j)) & 255) * x;
  }
#endif
}

/* Accumulators of 16 bits added to those of 32. */
NP_INLINE ivec add_partial(partial p, ivec sum, const int bits) {
#if HAS_VNNI
  (void)bits;
  return p.low + sum;
#elif defined(__AVX512BW__) && LANES == 16
  sum += (ivec)_mm512_madd_epi16((__m512i)p.low, _mm512_set1_epi16(1));
  if (bits == 8) sum += (ivec)_mm512_madd_epi16((__m512i)p.high, _mm512_set1_epi16(16));
  return sum;
#elif defined(__AVX2__) && LANES == 8
  sum += (ivec)_mm256_madd_epi16((__m256i)p.low, _mm256_set1_epi16(1));
  if (bits == 8) sum += (ivec)_mm256_madd_epi16((__m256i)p.high, _mm256_set1_epi16(16));
  return sum;
#else
  if (HAS_NEON_DOT && bits == 8) sum += p.high * 16;
  return p.low + sum;
#endif
}

/* What accumulators of a block start from. */
NP_INLINE int32_t start_of(const struct np_nbits_matrix *m, int32_t sum, const int common) {
  return common ? -(int32_t)m->zero * sum : 0;
}

NP_INLINE int at_once(const int rows) {
  (void)rows;
  return 1; /* integers have chains within a block, since their order does not matter */
}

NP_INLINE void add_blocks(const np_nbits_job *job, const uint8_t *const *panels, size_t number,
                          few_acc *accumulators, const int count, const int rows, const int bits,
                          const int common) {
  (void)count;
  const uint8_t *from = panels[0];
  vec(*acc)[VECTORS] = accumulators[0];
  const struct np_nbits_matrix *m = &job->params->matrix;
  const np_nbits_view b = np_nbits_view_of(m, from);
  const size_t width = np_nbits_blocks(m) * m->block;
  const size_t numbers = number * np_nbits_row_stride(job->params->rows);
  const int groups = 8 / bits; /* of a word */
  const int words_together = MOST_GROUPS / groups;
  const int8_t *x[NP_NBITS_GEMV_ROWS];
  ivec acc32[NP_NBITS_GEMV_ROWS][VECTORS];
  UNROLL for (int r = 0; r < rows; r++) {
    const size_t row = row_of(job, r);
    const int32_t start = start_of(m, job->rows.row_sums[numbers + row], common);
    UNROLL for (int v = 0; v < VECTORS; v++) acc32[r][v] = start - (ivec){0};
    x[r] = job->rows.q + row * width + number * m->block;
  }
  prefetch_numbers(m, from);
  const uint8_t *words = b.words;
  size_t k = 0;
  /* Accumulators enough that a dot product needs not wait for the one before. */
  const int chains = rows * VECTORS <= 2 ? 4 : rows * VECTORS <= 4 ? 2 : 1;
  size_t left = m->block / (size_t)(4 * groups); /* words */
  while (left > 0) {
    const int count = left < (size_t)words_together ? (int)left : words_together;
    partial p[4][NP_NBITS_GEMV_ROWS][VECTORS];
    UNROLL for (int c = 0; c < chains; c++) {
      UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < VECTORS; v++) p[c][r][v] = (partial){{0}, {0}};
      }
    }
    for (int i = 0; i < count; i++, words += COLUMNS * 4, k += 4 * (size_t)groups) {
      prefetch_words(words);
      UNROLL for (int v = 0; v < VECTORS; v++) {
        const ivec w = *(const ivec *)(words + v * LANES * 4);
        UNROLL for (int g = 0; g < groups; g++) {
          const ivec weights = group_of(w, g, bits);
          UNROLL for (int r = 0; r < rows; r++) {
            dot(&p[g % chains][r][v], weights, four_of(x[r] + k + 4 * g), bits);
          }
        }
      }
    }
    UNROLL for (int r = 0; r < rows; r++) {
      UNROLL for (int v = 0; v < VECTORS; v++) {
        UNROLL for (int c = 0; c < chains; c++) {
          acc32[r][v] = add_partial(p[c][r][v], acc32[r][v], bits);
        }
      }
    }
    left -= (size_t)count;
  }
  UNROLL for (int v = 0; v < VECTORS; v++) {
    const vec scale = scales_of(m, &b, v);
    vec moved = zero();
    if (!common) moved = zeros_of(m, &b, v) * scale;
    UNROLL for (int r = 0; r < rows; r++) {
      const size_t at = numbers + row_of(job, r);
      const float row_scale = job->rows.scales[at];
      acc[r][v] = multiply_add(floats(acc32[r][v]) * scale, broadcast(row_scale), acc[r][v]);
      if (!common) {
        const float less = -row_scale * (float)job->rows.row_sums[at];
        acc[r][v] = multiply_add(moved, broadcast(less), acc[r][v]);
      }
    }
  }
}

NP_NBITS_FEW_CODE

void NP_OF_ISA(np_nbits_int8_few)(const np_nbits_job *job, size_t first, size_t last) {
  few(job, first, last);
}

/* Unpack the weights of `words` rows of words as bytes: [K-groups][columns][4], in pieces of
 * TILE_VECTORS vectors, `piece` bytes apart. */
NP_INLINE void unpack(const uint8_t *from, size_t words, uint8_t *to, size_t piece,
                      const int bits) {
  for (size_t i = 0; i < words; i++, from += COLUMNS * 4) {
    prefetch_words(from);
    UNROLL for (int v = 0; v < VECTORS; v++) {
      const ivec w = *(const ivec *)(from + v * LANES * 4);
      uint8_t *at = to + (size_t)(v / TILE_VECTORS) * piece + (size_t)(v % TILE_VECTORS) * LANES * 4;
      UNROLL for (int g = 0; g < 8 / bits; g++) {
        *(ivec *)(at + (size_t)g * TILE_VECTORS * LANES * 4) = group_of(w, g, bits);
      }
    }
    to += (size_t)(8 / bits) * TILE_VECTORS * LANES * 4;
  }
}

/* What a tile is multiplied with: a block of a panel, unpacked. */
typedef struct {
  const uint8_t *weights;
  const int8_t *x;        /* of the first row */
  const int32_t *row_sums; /* of the rows, and their scales */
  const float *row_scales;
  const float *less;   /* both multiplied, negative */
  const float *scales; /* of columns */
  const float *moved;  /* zero points times scales */
  size_t width;   /* of a row */
  size_t groups;
  float *to; /* accumulators */
} tile_view;

NP_INLINE void tile(const struct np_nbits_matrix *m, const tile_view *t, const int rows,
                    const int common, const int wide) {
  ivec acc32[TILE_ROWS][TILE_VECTORS];
  UNROLL for (int r = 0; r < rows; r++) {
    const int32_t start = start_of(m, t->row_sums[r], common);
    UNROLL for (int v = 0; v < TILE_VECTORS; v++) acc32[r][v] = start - (ivec){0};
  }
  const uint8_t *weights = t->weights;
  const int8_t *x = t->x;
  for (size_t g = 0; g < t->groups;) {
#if HAS_VNNI
    const size_t end = t->groups;
    UNROLL for (int once = 0; once < 1; once++) {
#else
    const size_t end = g + MOST_GROUPS < t->groups ? g + MOST_GROUPS : t->groups;
    {
#endif
      partial p[TILE_ROWS][TILE_VECTORS];
      UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < TILE_VECTORS; v++) p[r][v] = (partial){{0}, {0}};
#if HAS_VNNI
        UNROLL for (int v = 0; v < TILE_VECTORS; v++) p[r][v].low = acc32[r][v];
#endif
      }
      for (; g < end; g++, x += 4, weights += TILE_VECTORS * LANES * 4) {
        ivec w[TILE_VECTORS];
        UNROLL for (int v = 0; v < TILE_VECTORS; v++) {
          w[v] = *(const ivec *)(weights + v * LANES * 4);
        }
        UNROLL for (int r = 0; r < rows; r++) {
          const ivec four = four_of(x + (size_t)r * t->width);
          UNROLL for (int v = 0; v < TILE_VECTORS; v++) dot(&p[r][v], w[v], four, wide ? 8 : 4);
        }
      }
      UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < TILE_VECTORS; v++) {
#if HAS_VNNI
          acc32[r][v] = p[r][v].low;
#else
          acc32[r][v] = add_partial(p[r][v], acc32[r][v], wide ? 8 : 4);
#endif
        }
      }
    }
  }
  UNROLL for (int v = 0; v < TILE_VECTORS; v++) {
    const vec scale = load(t->scales + v * LANES), moved = load(t->moved + v * LANES);
    UNROLL for (int r = 0; r < rows; r++) {
      float *to = t->to + (size_t)r * COLUMNS + v * LANES;
      const float row_scale = t->row_scales[r];
      vec acc = load(to);
      acc = multiply_add(floats(acc32[r][v]) * scale, broadcast(row_scale), acc);
      if (!common) acc = multiply_add(moved, broadcast(t->less[r]), acc);
      store(to, acc);
    }
  }
}

NP_INLINE void tiles(const struct np_nbits_matrix *m, tile_view t, size_t rows, const int common,
                     const int wide) {
  size_t r = 0;
#define TILES(ROWS)                       \
  for (; r + ROWS <= rows; r += ROWS) {   \
    tile(m, &t, ROWS, common, wide);      \
    t.x += ROWS * t.width;                \
    t.row_sums += ROWS;                   \
    t.row_scales += ROWS;                 \
    t.less += ROWS;                       \
    t.to += ROWS * COLUMNS;               \
  }
  TILES(TILE_ROWS)
#if TILE_ROWS > 8
  TILES(8)
  TILES(4)
#endif
  TILES(2)
  TILES(1)
}

#if defined(__AMX_INT8__) && LANES == 16
#define HAS_AMX 1
#include "gemv/nbits_amx_code.h"
#else
#define HAS_AMX 0
#endif

void NP_OF_ISA(np_nbits_int8_many)(const np_nbits_job *job, size_t panel, size_t row, size_t rows,
                                   uint8_t *scratch) {
  const struct np_nbits_params *p = job->params;
  const struct np_nbits_matrix *m = &p->matrix;
  const uint8_t *from = (const uint8_t *)p->packed + panel * np_nbits_panel_size(m);
  const size_t blocks = np_nbits_blocks(m), width = blocks * m->block;
  const size_t groups = m->block / 4, piece = groups * TILE_VECTORS * LANES * 4;
  const size_t words = m->block * (size_t)m->bits / 32;
  const int common = m->zeros == NP_NBITS_ZEROS_COMMON;
  float *results = (float *)scratch, *less = results + np_nbits_row_stride(rows) * COLUMNS;
  uint8_t *weights = (uint8_t *)(less + np_nbits_row_stride(rows));
  start_rows(job, panel, row, rows, results);
#if HAS_AMX
  const size_t tile_groups = amx_groups(m, rows);
  if (tile_groups > 0) {
    amx_many(job, from, row, rows, tile_groups, results, weights);
    store_rows(job, panel, row, rows, results);
    return;
  }
#endif
  for (size_t number = 0; number < blocks; number++) {
    const np_nbits_view b = np_nbits_view_of(m, np_nbits_block_of(m, from, number));
    float scales[COLUMNS], moved[COLUMNS];
    for (int v = 0; v < VECTORS; v++) {
      const vec scale = scales_of(m, &b, v);
      store(scales + v * LANES, scale);
      store(moved + v * LANES, zero());
      if (!common) store(moved + v * LANES, zeros_of(m, &b, v) * scale);
    }
    if (m->bits == 2) unpack(b.words, words, weights, piece, 2);
    else if (m->bits == 4) unpack(b.words, words, weights, piece, 4);
    else unpack(b.words, words, weights, piece, 8);
    const size_t at = number * np_nbits_row_stride(p->rows) + row;
    for (size_t r = 0; !common && r < rows; r += LANES) {
      const vec wide = floats(*(const ivec *)(job->rows.row_sums + at + r));
      store(less + r, -load(job->rows.scales + at + r) * wide);
    }
    for (size_t column = 0; column < COLUMNS; column += TILE_VECTORS * LANES) {
      const tile_view t = {
          .weights = weights + column / (TILE_VECTORS * LANES) * piece,
          .x = job->rows.q + row * width + number * m->block,
          .row_sums = job->rows.row_sums + at,
          .row_scales = job->rows.scales + at,
          .less = less,
          .scales = scales + column,
          .moved = moved + column,
          .width = width,
          .groups = groups,
          .to = results + column,
      };
      if (common && m->bits < 8) tiles(m, t, rows, 1, 0);
      else if (m->bits < 8) tiles(m, t, rows, 0, 0);
      else if (common) tiles(m, t, rows, 1, 1);
      else tiles(m, t, rows, 0, 1);
    }
  }
  store_rows(job, panel, row, rows, results);
}

#include "gemv/nbits_quantize_code.h"
