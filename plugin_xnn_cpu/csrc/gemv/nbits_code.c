/* Rows of float32 times a matrix of few bits, or of float8, for one instruction set.
 *
 * For few rows weights become floats in registers: with AVX-512 a permutation looks the lowest bits
 * of each lane up in a table of 16 floats, which have the zero point subtracted where it is common, so
 * that a shift, a permutation and an FMA multiply 16 weights. A float8 becomes the float16 with its bits further left, which the processor converts:
 * E4M3FN so has a 256th of its value, which accumulators of a block are multiplied by at its end.
 * For many rows a part of a panel is upcast in L1 and multiplied with all of them.
 *
 * Either way the weights of a piece of K, up to the end of a block or of NP_NBITS_K_BLOCK, are
 * multiplied in the order of K, in one accumulator, which is then scaled and added to those of the
 * pieces before: a row has the same bits whatever the number of rows. */
#include "gemv/nbits_few_code.h"

/* Tiles of many rows: two registers of columns. */
#define TILE_VECTORS 2
#define TILE_COLUMNS (TILE_VECTORS * LANES)
#define TILE_ROWS (LANES >= 8 ? 6 : 4)
#define STEP 16 /* of K, without a branch: blocks are as short */

/* Where weight `at` of a word lies, in the order of K: see nbits_panel.h. */
NP_INLINE int shift_of(const int at, const int bits) { return at % 4 * 8 + at / 4 * bits; }

/* Values of the lowest bits of an index, less the common zero point. */
NP_INLINE vec table_of(const struct np_nbits_matrix *m, const int bits, const int common) {
  vec table = zero();
  if (bits > 8) return table; /* float8 is not looked up */
  for (int i = 0; i < LANES; i++) table[i] = (float)(i & ((1 << bits) - 1));
  return table - broadcast(common ? m->zero : 0);
}

/* Weight `at` of each word as a float, less its zero point. */
NP_INLINE vec decoded(vec table, ivec words, const int at, vec zeros, const int bits,
                      const int common) {
#if defined(__AVX512F__) && LANES == 16
  if (bits < 8) {
    const __m512i index = _mm512_srli_epi32((__m512i)words, (unsigned)shift_of(at, bits));
    const vec w = (vec)_mm512_permutexvar_ps(index, (__m512)table);
    if (common) return w;
    return w - zeros;
  }
#endif
  (void)table, (void)common;
  return floats((ivec)(words >> shift_of(at, bits)) & ((1 << bits) - 1)) - zeros;
}

/* LANES consecutive float8 as floats, E4M3FN less NP_NBITS_E4M3FN_FACTOR. Conversion from float16
 * heeds subnormal numbers even where the processor takes those of float32 for 0. */
NP_INLINE vec float8(const uint8_t *bytes, const int bits) {
#if defined(__AVX512F__) && LANES == 16
  const __m128i x = _mm_loadu_si128((const void *)bytes);
  __m256i halves;
  if (bits == E4M3FN) {
    halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(x), 7);
    halves = _mm256_and_si256(halves, _mm256_set1_epi16((int16_t)0xbfff));
  } else {
    halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(x), 8);
  }
  return (vec)_mm512_cvtph_ps(halves);
#elif defined(__F16C__) && LANES == 8
  const __m128i x = _mm_loadl_epi64((const void *)bytes);
  __m128i halves;
  if (bits == E4M3FN) {
    halves = _mm_slli_epi16(_mm_cvtepi8_epi16(x), 7);
    halves = _mm_and_si128(halves, _mm_set1_epi16((int16_t)0xbfff));
  } else {
    halves = _mm_slli_epi16(_mm_cvtepu8_epi16(x), 8);
  }
  return (vec)_mm256_cvtph_ps(halves);
#else
  const int shift = bits == E4M3FN ? 20 : 21, least = 1 << 23;
  ivec x = {0};
  for (int i = 0; i < LANES; i++) x[i] = bytes[i];
  const ivec rest = (x & 127) << shift, sign = (ivec)(x << 24) & INT32_MIN;
  /* Exponents of float32 are biased by 112 more than those of float16. */
  ivec normal = rest + (112 << 23);
  if (bits == E5M2) normal = (ivec)choose(rest >= 31 << 23, (vec)(rest | 0x7f800000), (vec)normal);
  const vec subnormal = floats((ivec)(rest >> shift)) * (bits == E4M3FN ? 0x1p-17f : 0x1p-16f);
  return (vec)((ivec)choose(rest < least, subnormal, (vec)normal) | sign);
#endif
}

/* Weight `at` of a row of words, or rows of bytes, of vector `v`: as it is multiplied with. */
NP_INLINE vec weight_of(const uint8_t *words, int v, vec table, const int at, vec zeros,
                        const int bits, const int common) {
  if (bits > 8) return float8(words + at * COLUMNS + v * LANES, bits);
  const ivec w = *(const ivec *)(words + v * LANES * 4);
  return decoded(table, w, at, zeros, bits, common);
}

/* The latency of an FMA is about four cycles, and two begin in each. */
NP_INLINE int at_once(const int rows) {
  const int wanted = 8 / (rows * VECTORS);
  return wanted >= STREAMS ? STREAMS : wanted >= 2 ? 2 : 1;
}

/* The end of the piece of K that starts at `k`. */
NP_INLINE size_t piece_end(const struct np_nbits_matrix *m, size_t k) {
  const size_t block = (k / m->block + 1) * m->block;
  const size_t part = (k / NP_NBITS_K_BLOCK + 1) * NP_NBITS_K_BLOCK;
  const size_t end = block < part ? block : part;
  return end < m->inputs ? end : m->inputs;
}

/* Accumulators `to`, and those of a piece of K times their scale. */
NP_INLINE vec scaled(vec inner, vec scale, vec to, const int e4m3fn) {
  if (e4m3fn) inner *= NP_NBITS_E4M3FN_FACTOR;
  return multiply_add(inner, scale, to);
}

NP_INLINE void add_blocks(const np_nbits_job *job, const uint8_t *const *from, size_t number,
                          few_acc *acc, const int count, const int rows, const int bits,
                          const int common) {
  const struct np_nbits_matrix *m = &job->params->matrix;
  const int together = bits > 8 ? 4 : 32 / bits;
  const vec table = table_of(m, bits, common);
  np_nbits_view b[STREAMS];
  vec zeros[STREAMS][VECTORS];
  UNROLL for (int s = 0; s < count; s++) {
    b[s] = np_nbits_view_of(m, from[s]);
    UNROLL for (int v = 0; v < VECTORS; v++) {
      zeros[s][v] = common ? broadcast(m->zero) : zeros_of(m, &b[s], v);
    }
    prefetch_numbers(m, from[s]);
  }
  const float *x[NP_NBITS_GEMV_ROWS];
  UNROLL for (int r = 0; r < rows; r++) x[r] = job->in + row_of(job, r) * m->inputs;
  const size_t start = number * m->block;
  const size_t last = start + m->block < m->inputs ? start + m->block : m->inputs;
  size_t words = 0; /* bytes from the block's first */
  for (size_t k = start; k < last;) {
    const size_t end = piece_end(m, k);
    vec inner[STREAMS][NP_NBITS_GEMV_ROWS][VECTORS];
    UNROLL for (int s = 0; s < count; s++) {
      UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < VECTORS; v++) inner[s][r][v] = zero();
      }
    }
    for (; k + (size_t)together <= end; k += (size_t)together, words += COLUMNS * 4) {
      UNROLL for (int s = 0; s < count; s++) prefetch_words(b[s].words + words);
      UNROLL for (int i = 0; i < together; i++) {
        UNROLL for (int s = 0; s < count; s++) {
          UNROLL for (int v = 0; v < VECTORS; v++) {
            const vec weight = weight_of(b[s].words + words, v, table, i, zeros[s][v], bits, common);
            UNROLL for (int r = 0; r < rows; r++) {
              const vec given = broadcast(x[r][k + (size_t)i]);
              inner[s][r][v] = multiply_add(given, weight, inner[s][r][v]);
            }
          }
        }
      }
    }
    /* K ends within a word. */
    for (int i = 0; k < end; k++, i++) {
      UNROLL for (int s = 0; s < count; s++) {
        UNROLL for (int v = 0; v < VECTORS; v++) {
          vec weight;
          if (bits > 8) {
            weight = float8(b[s].words + words + i * COLUMNS + v * LANES, bits);
          } else {
            const ivec w = *(const ivec *)(b[s].words + words + v * LANES * 4);
            weight = floats((ivec)(w >> shift_of(i, bits)) & ((1 << bits) - 1)) - zeros[s][v];
          }
          UNROLL for (int r = 0; r < rows; r++) {
            inner[s][r][v] = multiply_add(broadcast(x[r][k]), weight, inner[s][r][v]);
          }
        }
      }
    }
    UNROLL for (int s = 0; s < count; s++) {
      UNROLL for (int v = 0; v < VECTORS; v++) {
        const vec scale = scales_of(m, &b[s], v);
        UNROLL for (int r = 0; r < rows; r++) {
          acc[s][r][v] = scaled(inner[s][r][v], scale, acc[s][r][v], bits == E4M3FN);
        }
      }
    }
  }
}

NP_NBITS_FEW_CODE

#define FEW_FLOAT8(rows, kind)                                                          \
  static void few_##rows##_##kind(const np_nbits_job *job, size_t first, size_t last) { \
    few_panels(job, first, last, rows, kind, 1);                                        \
  }
FEW_FLOAT8(1, E4M3FN)
FEW_FLOAT8(2, E4M3FN)
FEW_FLOAT8(4, E4M3FN)
FEW_FLOAT8(1, E5M2)
FEW_FLOAT8(2, E5M2)
FEW_FLOAT8(4, E5M2)

void NP_OF_ISA(np_nbits_few)(const np_nbits_job *job, size_t first, size_t last) {
  static np_nbits_few *const float8_codes[2][3] = {
      {few_1_E4M3FN, few_2_E4M3FN, few_4_E4M3FN},
      {few_1_E5M2, few_2_E5M2, few_4_E5M2},
  };
  const struct np_nbits_params *p = job->params;
  if (p->matrix.format == NP_NBITS_INTEGERS) few(job, first, last);
  else float8_codes[p->matrix.format == NP_NBITS_E5M2][few_index(p)](job, first, last);
}

/* Upcast inputs `start` to `end` of a panel, from the start of a word on, less their zero points: a
 * row of columns for each, in pieces of TILE_COLUMNS, `piece` floats apart. The last word is upcast
 * whole. */
NP_INLINE void upcast(const struct np_nbits_matrix *m, const uint8_t *panel, size_t start,
                      size_t end, float *wide, size_t piece, const int bits) {
  const size_t together = bits > 8 ? 4 : 32 / (size_t)bits;
  const vec table = table_of(m, bits, 0);
  for (size_t k = start; k < end;) {
    const size_t number = k / m->block, within = k % m->block;
    const np_nbits_view b = np_nbits_view_of(m, np_nbits_block_of(m, panel, number));
    const size_t last = (number + 1) * m->block < end ? (number + 1) * m->block : end;
    const uint8_t *words = b.words + within / together * COLUMNS * 4;
    vec zeros[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
      zeros[v] = m->zeros == NP_NBITS_ZEROS_COMMON ? broadcast(m->zero) : zeros_of(m, &b, v);
    }
    for (; k < last; k += together, words += COLUMNS * 4) {
      UNROLL for (int v = 0; v < VECTORS; v++) {
        float *to = wide + (size_t)(v / TILE_VECTORS) * piece + (k - start) * TILE_COLUMNS +
                    (size_t)(v % TILE_VECTORS) * LANES;
        UNROLL for (int i = 0; i < (bits > 8 ? 4 : 32 / bits); i++) {
          store(to + i * TILE_COLUMNS, weight_of(words, v, table, i, zeros[v], bits, 0));
        }
      }
    }
  }
}

NP_INLINE void multiply(vec acc[][TILE_VECTORS], const float *weights, const float *const *x,
                        size_t k, const int rows) {
  vec w[TILE_VECTORS];
  UNROLL for (int v = 0; v < TILE_VECTORS; v++) w[v] = load(weights + v * LANES);
  UNROLL for (int r = 0; r < rows; r++) {
    const vec given = broadcast(x[r][k]);
    UNROLL for (int v = 0; v < TILE_VECTORS; v++) acc[r][v] = multiply_add(given, w[v], acc[r][v]);
  }
}

/* Rows of a tile, inputs `k` to `end` of them, times as many upcast weights of TILE_COLUMNS columns
 * from vector `first` on, added to `to`, in rows of whole panels. */
NP_INLINE void tile(const struct np_nbits_matrix *m, const uint8_t *panel, const float *in, size_t k,
                    size_t end, const float *wide, int first, float *to, const int rows) {
  vec acc[TILE_ROWS][TILE_VECTORS];
  const float *x[TILE_ROWS];
  UNROLL for (int r = 0; r < rows; r++) {
    x[r] = in + (size_t)r * m->inputs;
    UNROLL for (int v = 0; v < TILE_VECTORS; v++) acc[r][v] = load(to + r * COLUMNS + v * LANES);
  }
  while (k < end) {
    const size_t last = piece_end(m, k);
    const np_nbits_view b = np_nbits_view_of(m, np_nbits_block_of(m, panel, k / m->block));
    vec inner[TILE_ROWS][TILE_VECTORS];
    UNROLL for (int r = 0; r < rows; r++) {
      UNROLL for (int v = 0; v < TILE_VECTORS; v++) inner[r][v] = zero();
    }
    for (; k + STEP <= last; k += STEP, wide += STEP * TILE_COLUMNS) {
      UNROLL for (int i = 0; i < STEP; i++) {
        multiply(inner, wide + i * TILE_COLUMNS, x, k + (size_t)i, rows);
      }
    }
    for (; k < last; k++, wide += TILE_COLUMNS) multiply(inner, wide, x, k, rows);
    UNROLL for (int v = 0; v < TILE_VECTORS; v++) {
      const vec scale = scales_of(m, &b, first + v);
      UNROLL for (int r = 0; r < rows; r++) {
        acc[r][v] = scaled(inner[r][v], scale, acc[r][v], m->format == NP_NBITS_E4M3FN);
      }
    }
  }
  UNROLL for (int r = 0; r < rows; r++) {
    UNROLL for (int v = 0; v < TILE_VECTORS; v++) store(to + r * COLUMNS + v * LANES, acc[r][v]);
  }
}

void NP_OF_ISA(np_nbits_many)(const np_nbits_job *job, size_t panel, size_t row, size_t rows,
                              uint8_t *scratch) {
  const struct np_nbits_params *p = job->params;
  const struct np_nbits_matrix *m = &p->matrix;
  const uint8_t *from = (const uint8_t *)p->packed + panel * np_nbits_panel_size(m);
  const size_t piece = NP_NBITS_K_BLOCK * TILE_COLUMNS;
  float *wide = (float *)scratch, *results = wide + NP_NBITS_K_BLOCK * COLUMNS;
  start_rows(job, panel, row, rows, results);
  for (size_t start = 0; start < m->inputs; start += NP_NBITS_K_BLOCK) {
    const size_t left = m->inputs - start;
    const size_t count = left < NP_NBITS_K_BLOCK ? left : NP_NBITS_K_BLOCK;
    if (m->format == NP_NBITS_E4M3FN) {
      upcast(m, from, start, start + count, wide, piece, E4M3FN);
    } else if (m->format == NP_NBITS_E5M2) {
      upcast(m, from, start, start + count, wide, piece, E5M2);
    } else if (m->bits == 2) upcast(m, from, start, start + count, wide, piece, 2);
    else if (m->bits == 4) upcast(m, from, start, start + count, wide, piece, 4);
    else upcast(m, from, start, start + count, wide, piece, 8);
    for (size_t column = 0; column < COLUMNS; column += TILE_COLUMNS) {
      const float *weights = wide + column / TILE_COLUMNS * piece;
      const float *x = job->in + row * m->inputs;
      float *to = results + column;
      size_t r = 0;
#define TILES(ROWS)                                                                        \
  for (; r + ROWS <= rows; r += ROWS) {                                                    \
    tile(m, from, x + r * m->inputs, start, start + count, weights,                        \
         (int)(column / LANES), to + r * COLUMNS, ROWS);                                   \
  }
      TILES(TILE_ROWS)
#if TILE_ROWS > 4
      TILES(4)
#endif
      TILES(2)
      TILES(1)
    }
  }
  store_rows(job, panel, row, rows, results);
}
