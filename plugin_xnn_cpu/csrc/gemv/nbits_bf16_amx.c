/* Many rows times a matrix of up to 4 bits, both as bfloat16, by tiles of AMX.
 *
 * Rows that may be int8 in blocks may be bfloat16 too: an element is off by 2^-9 of itself, and so is a
 * weight times its scale, together by less than half a step of int8 of the largest element of any
 * block. Float accumulators then stay in tiles, where those of int8 must be stored, scaled and
 * added for each block.
 *
 * A piece of a panel is dequantized in L1 for all rows of a row tile. While they are multiplied by tiles,
 * whose instructions are few and take long, the next piece is dequantized, a row of words after each
 * step along K, and the epilogue of the block before is applied, some rows at a time. */
#include "gemv/nbits_common.h"
#include "simd/amx.h"

#define PAIR 2          /* elements of K that lie side by side in a tile of B */
#define TILE_PAIRS 16   /* of a tile: K = 32 */
#define TILE_K (PAIR * TILE_PAIRS)
#define BLOCK_ROWS NP_NBITS_BF16_ROWS

/* Pairs of bfloat16, rounded to nearest, halves away from zero: the instruction that rounds two vectors
 * does not interleave them, which takes one more that shuffles. */
NP_INLINE __m512i bf16_pairs(vec even, vec odd) {
  const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32((int32_t)0xffff0000);
  const __m512i low = _mm512_srli_epi32(_mm512_add_epi32((__m512i)even, half), 16);
  const __m512i high = _mm512_add_epi32((__m512i)odd, half);
  const int either = 0xec; /* high & upper | low */
  return _mm512_ternarylogic_epi32(high, low, upper, either);
}

/* A piece of a panel that is dequantized row of words by row of words: [pairs][COLUMNS][2], with zeros
 * up to whole tiles. */
typedef struct {
  vec scales[VECTORS] __attribute__((aligned(64))); /* of the block */
  vec moved[VECTORS]; /* its zero points times them, negative */
  vec table; /* the floats that few bits stand for */
  const struct np_nbits_matrix *m;
  const uint8_t *panel;
  const uint8_t *words;
  uint16_t *to;
  size_t k;         /* the next input, at the start of a word */
  size_t block_end; /* behind the last one of the current block, or of the piece */
  size_t end;
} unpacking;

NP_INLINE void begin_piece(unpacking *u, const uint8_t *panel, size_t start, size_t end,
                           uint16_t *to) {
  const size_t last = start + np_ceil_div(end - start, TILE_K) * TILE_K;
  if (last > end) memset(to + (end - start) * COLUMNS, 0, (last - end) * COLUMNS * sizeof *to);
  u->panel = panel;
  u->k = u->block_end = start;
  u->end = end;
  u->to = to;
}

NP_INLINE void begin_block(unpacking *u, const int bits, const int common) {
  const struct np_nbits_matrix *m = u->m;
  const size_t number = u->k / m->block, within = u->k % m->block;
  const np_nbits_view b = np_nbits_view_of(m, np_nbits_block_of(m, u->panel, number));
  u->block_end = np_min((number + 1) * m->block, u->end);
  u->words = b.words + within / (32 / (size_t)bits) * COLUMNS * 4;
  for (int v = 0; v < VECTORS; v++) {
    u->scales[v] = scales_of(m, &b, v);
    if (!common) u->moved[v] = -zeros_of(m, &b, v) * u->scales[v];
  }
}

/* The next row of words of the piece, which has one. */
NP_INLINE void dequantize_words(unpacking *u, const int bits, const int common) {
  const size_t together = 32 / (size_t)bits;
  if (u->k >= u->block_end) begin_block(u, bits, common);
  prefetch_words(u->words);
  UNROLL for (int v = 0; v < VECTORS; v++) {
    const __m512i w = _mm512_loadu_si512(u->words + v * LANES * 4);
    UNROLL for (int i = 0; i < 32 / bits; i += PAIR) {
      vec pair[PAIR];
      UNROLL for (int j = 0; j < PAIR; j++) {
        const int at = i + j, shift = at % 4 * 8 + at / 4 * bits;
        const __m512i index = _mm512_srli_epi32(w, (unsigned)shift);
        const vec x = (vec)_mm512_permutexvar_ps(index, (__m512)u->table);
        if (common) pair[j] = x * u->scales[v];
        else pair[j] = multiply_add(x, u->scales[v], u->moved[v]);
      }
      _mm512_store_si512(u->to + (size_t)i * COLUMNS + v * LANES * PAIR,
                         bf16_pairs(pair[0], pair[1]));
    }
  }
  u->k += together;
  u->words += COLUMNS * 4;
  u->to += together * COLUMNS;
}

/* Accumulators of a block that are stored, and what of them is not finished. */
typedef struct {
  const float *acc; /* [rows][COLUMNS] */
  size_t column;
  size_t row;
  size_t left;
} pending;

/* What is done between steps along K. */
typedef struct {
  unpacking next;
  size_t words; /* rows of words at a time */
  pending before;
  size_t rows; /* that are finished at a time */
  const np_nbits_job *job;
  float *acc[2]; /* of a block, and of the one before */
  int current;
} aside;

NP_INLINE void finish_rows(aside *a, size_t most) {
  const struct np_nbits_params *p = a->job->params;
  pending *b = &a->before;
  const size_t rows = np_min(most, b->left), outputs = p->matrix.outputs;
  for (size_t r = 0; r < rows; r++, b->row++, b->acc += COLUMNS) {
    for (size_t v = 0; v < VECTORS && b->column + v * LANES < outputs; v++) {
      const size_t column = b->column + v * LANES, at = b->row * outputs + column;
      const size_t count = columns_left(&p->matrix, column);
      vec x = load(b->acc + v * LANES);
      if (a->job->before != NULL) x += load_some(a->job->before + at, count);
      store_result(a->job, at, x, count);
    }
  }
  b->left -= rows;
}

NP_INLINE void do_some(aside *a, const int bits, const int common) {
  for (size_t i = 0; i < a->words && a->next.k < a->next.end; i++) {
    dequantize_words(&a->next, bits, common);
  }
  if (a->before.left > 0) finish_rows(a, a->rows);
}

/* A piece of a panel, which all rows are multiplied with. */
typedef struct {
  const uint16_t *rows; /* from its first input on */
  size_t width;
  size_t count;
  const uint16_t *weights;
  size_t tiles;      /* along K */
  float *results;    /* of the pieces before; [count][COLUMNS] */
  const float *bias; /* of the first piece, or NULL */
  int is_last;
  size_t column;
  size_t row; /* number of the first one */
} piece;

#define EACH_ACCUMULATOR(DO, first, second, stride, a_tiles) \
  do {                                                       \
    DO(0, first, stride);                                    \
    DO(1, first + LANES, stride);                            \
    if (a_tiles > 1) {                                       \
      DO(2, second, stride);                                 \
      DO(3, second + LANES, stride);                         \
    }                                                        \
  } while (0)

/* Rows from `first` on, a tile or two of `rows` together, times a piece. */
NP_INLINE void multiply_block(const piece *p, size_t first, size_t rows, aside *a, const int a_tiles,
                              const int bits, const int common) {
  const size_t stride = COLUMNS * sizeof(float), row_bytes = p->width * sizeof *p->rows;
  const size_t second = a_tiles > 1 ? first + NP_AMX_ROWS : first;
  const uint16_t *a0 = p->rows + first * p->width, *a1 = p->rows + second * p->width;
  const uint16_t *weights = p->weights;
  float *c0 = p->results + first * COLUMNS, *c1 = p->results + second * COLUMNS;
  if (p->bias != NULL) {
    EACH_ACCUMULATOR(NP_AMX_LOAD, p->bias, p->bias, (size_t)0, a_tiles);
  } else {
    EACH_ACCUMULATOR(NP_AMX_LOAD, c0, c1, stride, a_tiles);
  }
  for (size_t k = 0; k < p->tiles; k++) {
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
    do_some(a, bits, common);
  }
  if (p->is_last) {
    if (a->before.left > 0) finish_rows(a, BLOCK_ROWS);
    c0 = a->acc[a->current ^= 1];
    c1 = a_tiles > 1 ? c0 + NP_AMX_ROWS * COLUMNS : c0;
    a->before = (pending){c0, p->column, p->row + first, rows};
  }
  EACH_ACCUMULATOR(NP_AMX_STORE, c0, c1, stride, a_tiles);
}

/* All rows times a piece. Tiles have 16 rows; the last rows, or all where there are fewer, are a tile
 * of their own with as many. */
NP_INLINE void multiply_piece(const piece *p, np_amx_shape *shape, aside *a, const int bits,
                              const int common) {
  for (size_t r = 0; r < p->count; r += BLOCK_ROWS) {
    const size_t rows = np_min(BLOCK_ROWS, p->count - r);
    if (rows > NP_AMX_ROWS) {
      np_amx_reshape(shape, (np_amx_shape){{NP_AMX_ROWS, rows - NP_AMX_ROWS}, TILE_PAIRS});
      multiply_block(p, r, rows, a, 2, bits, common);
    } else {
      np_amx_reshape(shape, (np_amx_shape){{rows, rows}, TILE_PAIRS});
      multiply_block(p, r, rows, a, 1, bits, common);
    }
  }
}

/* How K is divided: evenly, into whole tiles. */
typedef struct {
  size_t inputs;
  size_t size;
} pieces;

/* Begin to dequantize the piece from input `start` on. */
NP_INLINE void begin(aside *a, const pieces *all, const uint8_t *panel, size_t start, uint16_t *to) {
  begin_piece(&a->next, panel, start, np_min(start + all->size, all->inputs), to);
}

/* Panels `first` to `last` times rows: all pieces of one, then those of the next. */
NP_INLINE void multiply_panels(const np_nbits_job *job, size_t first, size_t last, size_t row,
                               size_t rows, uint8_t *scratch, const int bits, const int common) {
  const struct np_nbits_params *p = job->params;
  const struct np_nbits_matrix *m = &p->matrix;
  const size_t width = np_nbits_bf16_width(m), panel_size = np_nbits_panel_size(m);
  const size_t panel_words = width / TILE_K, count = np_ceil_div(width, NP_NBITS_BF16_K);
  const pieces all = {np_nbits_blocks(m) * m->block, np_ceil_div(panel_words, count) * TILE_K};
  const uint8_t *panel = (const uint8_t *)p->packed + first * panel_size;
  uint16_t *weights[2] = {(uint16_t *)(void *)scratch, NULL};
  weights[1] = weights[0] + NP_NBITS_BF16_K * COLUMNS;
  aside a = {.next = {.m = m}, .job = job};
  a.acc[0] = (float *)(void *)(weights[1] + NP_NBITS_BF16_K * COLUMNS);
  a.acc[1] = a.acc[0] + BLOCK_ROWS * COLUMNS;
  for (int i = 0; i < LANES; i++) a.next.table[i] = (float)(i & ((1 << bits) - 1));
  if (common) a.next.table -= broadcast(m->zero);
  piece here = {
      .width = width, .count = rows, .results = a.acc[1] + BLOCK_ROWS * COLUMNS, .row = row};
  np_amx_shape shape = {{0, 0}, 0};
  int now = 0;
  begin(&a, &all, panel, 0, weights[now]);
  while (a.next.k < a.next.end) dequantize_words(&a.next, bits, common);
  for (size_t number = first; number < last; number++, panel += panel_size) {
    here.column = number * COLUMNS;
    for (size_t start = 0; start < all.inputs; start += all.size, now ^= 1) {
      const size_t end = np_min(start + all.size, all.inputs);
      here.rows = (const uint16_t *)(const void *)job->rows.q + row * width + start;
      here.weights = weights[now];
      here.tiles = np_ceil_div(end - start, TILE_K);
      here.bias = start == 0 ? (const float *)(const void *)panel : NULL;
      here.is_last = end == all.inputs;
      if (!here.is_last) begin(&a, &all, panel, end, weights[now ^ 1]);
      else if (number + 1 < last) begin(&a, &all, panel + panel_size, 0, weights[now ^ 1]);
      const size_t steps = np_ceil_div(rows, BLOCK_ROWS) * here.tiles;
      a.words = np_ceil_div((a.next.end - a.next.k) * (size_t)bits / 32, steps);
      a.rows = np_ceil_div(BLOCK_ROWS, here.tiles);
      multiply_piece(&here, &shape, &a, bits, common);
      while (a.next.k < a.next.end) dequantize_words(&a.next, bits, common);
    }
  }
  np_amx_release();
  finish_rows(&a, BLOCK_ROWS);
}

void NP_OF_ISA(np_nbits_bf16_many)(const np_nbits_job *job, size_t first, size_t last, size_t row,
                                   size_t rows, uint8_t *scratch) {
  const struct np_nbits_matrix *m = &job->params->matrix;
  const int common = m->zeros == NP_NBITS_ZEROS_COMMON;
  if (m->bits == 2 && common) multiply_panels(job, first, last, row, rows, scratch, 2, 1);
  else if (m->bits == 2) multiply_panels(job, first, last, row, rows, scratch, 2, 0);
  else if (common) multiply_panels(job, first, last, row, rows, scratch, 4, 1);
  else multiply_panels(job, first, last, row, rows, scratch, 4, 0);
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
