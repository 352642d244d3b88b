/* Many rows times a matrix of up to 4 bits, both as bfloat16, by tiles of AMX.
 *
 * Rows that may be int8 in blocks may be bfloat16 too: an element is off by 2^-9 of itself, and so is a
 * weight times its scale, together by less than half a step of int8 of the largest element of any
 * block. Float accumulators then stay in tiles, where those of int8 must be stored, scaled and
 * added for each block. A part of a panel is dequantized in L1 before, for all rows. */
#include "gemv/nbits_common.h"
#include "simd/amx.h"

#define PAIR 2          /* elements of K that lie side by side in a tile of B */
#define TILE_PAIRS 16   /* of a tile: K = 32 */
#define TILE_K (PAIR * TILE_PAIRS)
#define BLOCK_ROWS (2 * NP_AMX_ROWS)

/* Pairs of bfloat16, rounded to nearest, halves away from zero: the instruction that rounds two vectors
 * does not interleave them, which takes one more that shuffles. */
NP_INLINE __m512i bf16_pairs(vec even, vec odd) {
  const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32((int32_t)0xffff0000);
  const __m512i low = _mm512_srli_epi32(_mm512_add_epi32((__m512i)even, half), 16);
  const __m512i high = _mm512_add_epi32((__m512i)odd, half);
  const int either = 0xec; /* high & upper | low */
  return _mm512_ternarylogic_epi32(high, low, upper, either);
}

/* Inputs `start` to `end` of a panel, from the start of a word on: [pairs][COLUMNS][2], with zeros up to
 * whole tiles. */
NP_INLINE void dequantize_pairs(const struct np_nbits_matrix *m, const uint8_t *panel, size_t start,
                                size_t end, uint16_t *to, const int bits, const int common) {
  const size_t together = 32 / (size_t)bits;
  const size_t last = np_ceil_div(end - start, TILE_K) * TILE_K + start;
  vec table = zero();
  for (int i = 0; i < LANES; i++) table[i] = (float)(i & ((1 << bits) - 1));
  if (common) table -= broadcast(m->zero);
  for (size_t k = start; k < end;) {
    const size_t number = k / m->block, within = k % m->block;
    const np_nbits_view b = np_nbits_view_of(m, np_nbits_block_of(m, panel, number));
    const size_t ends = np_min((number + 1) * m->block, end);
    const uint8_t *words = b.words + within / together * COLUMNS * 4;
    vec scales[VECTORS], zeros[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
      scales[v] = scales_of(m, &b, v);
      zeros[v] = common ? zero() : zeros_of(m, &b, v);
    }
    for (; k < ends; k += together, words += COLUMNS * 4) {
      prefetch_words(words);
      UNROLL for (int v = 0; v < VECTORS; v++) {
        const __m512i w = _mm512_loadu_si512(words + v * LANES * 4);
        UNROLL for (int i = 0; i < 32 / bits; i += PAIR) {
          vec pair[PAIR];
          UNROLL for (int j = 0; j < PAIR; j++) {
            const int at = i + j, shift = at % 4 * 8 + at / 4 * bits;
            const __m512i index = _mm512_srli_epi32(w, (unsigned)shift);
            pair[j] = (vec)_mm512_permutexvar_ps(index, (__m512)table);
            if (!common) pair[j] -= zeros[v];
            pair[j] *= scales[v];
          }
          _mm512_store_si512(to + (size_t)i * COLUMNS + v * LANES * PAIR,
                             bf16_pairs(pair[0], pair[1]));
        }
      }
      to += together * COLUMNS;
    }
  }
  if (last > end) memset(to, 0, (last - end) * COLUMNS * sizeof *to);
}

/* Rows `first` and `second`, tiles of them, times a part: added to the results. */
NP_INLINE void multiply_block(const uint16_t *rows, size_t width, size_t first, size_t second,
                              const uint16_t *weights, size_t tiles, float *results,
                              const int a_tiles) {
  const size_t stride = COLUMNS * sizeof(float), row_bytes = width * sizeof *rows;
  const uint16_t *a0 = rows + first * width, *a1 = rows + second * width;
  float *c0 = results + first * COLUMNS, *c1 = results + second * COLUMNS;
  NP_AMX_LOAD(0, c0, stride);
  NP_AMX_LOAD(1, c0 + LANES, stride);
  if (a_tiles > 1) {
    NP_AMX_LOAD(2, c1, stride);
    NP_AMX_LOAD(3, c1 + LANES, stride);
  }
  for (size_t k = 0; k < tiles; k++) {
    NP_AMX_LOAD(6, weights, stride);
    NP_AMX_LOAD(4, a0, row_bytes);
    NP_AMX_DOT(NP_AMX_BF16, 0, 4, 6);
    NP_AMX_LOAD(7, weights + LANES * PAIR, stride);
    NP_AMX_DOT(NP_AMX_BF16, 1, 4, 7);
    if (a_tiles > 1) {
      NP_AMX_LOAD(5, a1, row_bytes);
      NP_AMX_DOT(NP_AMX_BF16, 2, 5, 6);
      NP_AMX_DOT(NP_AMX_BF16, 3, 5, 7);
    }
    a0 += TILE_K;
    a1 += TILE_K;
    weights += TILE_K * COLUMNS;
  }
  NP_AMX_STORE(0, c0, stride);
  NP_AMX_STORE(1, c0 + LANES, stride);
  if (a_tiles > 1) {
    NP_AMX_STORE(2, c1, stride);
    NP_AMX_STORE(3, c1 + LANES, stride);
  }
}

/* All rows times a part. Tiles have 16 rows; the last rows, or all where there are fewer, are a tile of
 * their own with as many. */
NP_INLINE void multiply_part(const uint16_t *rows, size_t width, size_t count,
                             const uint16_t *weights, size_t tiles, float *results,
                             np_amx_shape *shape) {
  size_t r = 0;
  if (count >= BLOCK_ROWS) {
    np_amx_reshape(shape, (np_amx_shape){{NP_AMX_ROWS, NP_AMX_ROWS}, TILE_PAIRS});
  }
  for (; r + BLOCK_ROWS <= count; r += BLOCK_ROWS) {
    multiply_block(rows, width, r, r + NP_AMX_ROWS, weights, tiles, results, 2);
  }
  if (r + NP_AMX_ROWS < count) {
    const size_t rest = count - r - NP_AMX_ROWS;
    np_amx_reshape(shape, (np_amx_shape){{NP_AMX_ROWS, rest}, TILE_PAIRS});
    multiply_block(rows, width, r, r + NP_AMX_ROWS, weights, tiles, results, 2);
  } else if (r < count) {
    np_amx_reshape(shape, (np_amx_shape){{count - r, count - r}, TILE_PAIRS});
    multiply_block(rows, width, r, r, weights, tiles, results, 1);
  }
}

void NP_OF_ISA(np_nbits_bf16_many)(const np_nbits_job *job, size_t panel, size_t row, size_t rows,
                                   uint8_t *scratch) {
  const struct np_nbits_params *p = job->params;
  const struct np_nbits_matrix *m = &p->matrix;
  const uint8_t *from = (const uint8_t *)p->packed + panel * np_nbits_panel_size(m);
  const int common = m->zeros == NP_NBITS_ZEROS_COMMON;
  const size_t width = np_nbits_bf16_width(m);
  const uint16_t *x = (const uint16_t *)(const void *)job->rows.q + row * width;
  uint16_t *weights = (uint16_t *)(void *)scratch;
  float *results = (float *)(void *)(scratch + np_nbits_piece_size(m));
  start_rows(job, panel, row, rows, results);
  const size_t inputs = np_nbits_blocks(m) * m->block;
  np_amx_shape shape = {{0, 0}, 0};
  for (size_t start = 0; start < inputs; start += NP_NBITS_K_BLOCK) {
    const size_t end = np_min(start + NP_NBITS_K_BLOCK, inputs);
    if (m->bits == 2 && common) dequantize_pairs(m, from, start, end, weights, 2, 1);
    else if (m->bits == 2) dequantize_pairs(m, from, start, end, weights, 2, 0);
    else if (common) dequantize_pairs(m, from, start, end, weights, 4, 1);
    else dequantize_pairs(m, from, start, end, weights, 4, 0);
    multiply_part(x + start, width, rows, weights, np_ceil_div(end - start, TILE_K), results,
                  &shape);
  }
  np_amx_release();
  store_rows(job, panel, row, rows, results);
}

/* All elements are NaN where one is not finite. */
void NP_OF_ISA(np_nbits_bf16_round)(const float *x, size_t inputs, size_t width, uint16_t *to) {
  const __m512 most = _mm512_set1_ps(0x1.fep127f), least = _mm512_set1_ps(-0x1.fep127f);
  __m512 unfit = _mm512_setzero_ps();
  for (size_t k = 0; k < width; k += LANES) {
    const size_t left = k < inputs ? inputs - k : 0;
    const __mmask16 some = left < LANES ? (__mmask16)((1u << left) - 1) : 0xffff;
    const __m512 given = _mm512_maskz_loadu_ps(some, x + k);
    unfit = _mm512_fmadd_ps(given, _mm512_setzero_ps(), unfit);
    const __m512 finite = _mm512_max_ps(_mm512_min_ps(given, most), least);
    _mm256_storeu_si256((__m256i *)(void *)(to + k), (__m256i)_mm512_cvtneps_pbh(finite));
  }
  if (_mm512_reduce_add_ps(unfit) == 0) return;
  for (size_t k = 0; k < inputs; k++) to[k] = 0x7fc0;
}
