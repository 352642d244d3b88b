/* Many rows of int8 times a panel, by tiles of AMX; gemv/nbits_int8_code.c includes this.
 *
 * A tile has 16 rows and 16 columns. Its float accumulators stay in registers while blocks of K are
 * multiplied one after the other: an instruction or a few of AMX for each block, whose accumulators
 * are stored to L1, scaled and added. They are exact, and what is done with them is done as elsewhere:
 * the same bits. A piece of K is unpacked before for all rows, as much as L1 has room for. */
#include "simd/amx.h"

/* Fewer rows are computed by VNNI, whose highest tile has 12: with 8 rows it takes 0.7 to 0.8 of the
 * time. */
#define MIN_AMX_ROWS 13

/* What is subtracted from unpacked weights so that a common zero point is 0, or -1 where the result is
 * no int8. */
NP_INLINE int32_t amx_offset(const struct np_nbits_matrix *m) {
  if (m->zeros != NP_NBITS_ZEROS_COMMON) return 0;
  const int32_t zero_point = (int32_t)m->zero;
  const int fits = m->bits == 8 ? zero_point == 128 : zero_point >= 0 && zero_point <= 16;
  return zero_point == 0 ? 0 : fits ? zero_point : -1;
}

NP_INLINE void subtract_from_weights(uint8_t *weights, size_t bytes, int32_t offset) {
  const __m512i each = _mm512_set1_epi8((char)offset);
  for (size_t i = 0; i < bytes; i += 64) {
    _mm512_storeu_si512(weights + i, _mm512_sub_epi8(_mm512_loadu_si512(weights + i), each));
  }
}

/* Consecutive blocks of a panel, unpacked. */
typedef struct {
  float *scales;    /* [blocks][2][COLUMNS]: scales, and zero points times scales */
  uint8_t *weights; /* [blocks][K-groups][COLUMNS][4] */
  size_t first;
  size_t blocks;
  size_t groups; /* of a tile */
  size_t steps;  /* tiles of a block */
} amx_piece;

NP_INLINE void unpack_piece(const struct np_nbits_matrix *m, const uint8_t *panel,
                            const amx_piece *p, int32_t offset, const int bits) {
  const size_t bytes = m->block * COLUMNS;
  for (size_t i = 0; i < p->blocks; i++) {
    const np_nbits_view b = np_nbits_view_of(m, np_nbits_block_of(m, panel, p->first + i));
    float *scales = p->scales + i * 2 * COLUMNS;
    for (int v = 0; v < VECTORS; v++) {
      const vec scale = scales_of(m, &b, v);
      store(scales + v * LANES, scale);
      if (m->zeros != NP_NBITS_ZEROS_COMMON) {
        store(scales + COLUMNS + v * LANES, zeros_of(m, &b, v) * scale);
      }
    }
    uint8_t *weights = p->weights + i * bytes;
    unpack(b.words, m->block * (size_t)bits / 32, weights, 0, bits);
    if (offset > 0) subtract_from_weights(weights, bytes, offset);
  }
}

/* What 16 rows and 16 columns of a piece are multiplied from. */
typedef struct {
  const int8_t *x; /* the rows, `width` apart */
  size_t width;
  const uint8_t *weights;
  const float *scales;
  const float *row_scales; /* of the first block; those of the next lie `stride` behind */
  const int32_t *row_sums;
  size_t stride;
} amx_operands;

/* Multiply the next block: its accumulators are tile 0 or 1. */
NP_INLINE void amx_multiply(const amx_piece *p, amx_operands *o, const int tile, const int kind) {
  const size_t weights_stride = COLUMNS * 4;
  if (tile == 0) NP_AMX_ZERO(0);
  else NP_AMX_ZERO(1);
  for (size_t k = 0; k < p->steps; k++) {
    NP_AMX_LOAD(4, o->x, o->width);
    NP_AMX_LOAD(6, o->weights, weights_stride);
    if (tile == 0) NP_AMX_DOT(kind, 0, 4, 6);
    else NP_AMX_DOT(kind, 1, 4, 6);
    o->x += p->groups * NP_AMX_GROUP;
    o->weights += p->groups * weights_stride;
  }
}

/* Scale the accumulators of the next block and add them. */
NP_INLINE void amx_add(amx_operands *o, const int32_t *acc32, vec *acc, const int common) {
  const vec scale = load(o->scales);
  UNROLL for (int r = 0; r < NP_AMX_ROWS; r++) {
    const ivec whole = *(const ivec *)(acc32 + r * LANES);
    acc[r] = multiply_add(floats(whole) * scale, broadcast(o->row_scales[r]), acc[r]);
  }
  if (!common) {
    float less[NP_AMX_ROWS] __attribute__((aligned(64)));
    store(less, -load(o->row_scales) * floats(*(const ivec *)o->row_sums));
    const vec moved = load(o->scales + COLUMNS);
    UNROLL for (int r = 0; r < NP_AMX_ROWS; r++) {
      acc[r] = multiply_add(moved, broadcast(less[r]), acc[r]);
    }
  }
  o->scales += 2 * COLUMNS;
  o->row_scales += o->stride;
  o->row_sums += o->stride;
}

/* 16 rows from `row` on times 16 columns of a piece: to `to`, rows of COLUMNS, from the row `from` of
 * them on. While a block is multiplied, the accumulators of the one before are stored, and those of
 * the one before that are added: nothing waits for what was begun last. */
NP_INLINE void amx_tile(const np_nbits_job *job, const amx_piece *p, size_t row, size_t column,
                        float *to, size_t from, const int common, const int kind) {
  const struct np_nbits_matrix *m = &job->params->matrix;
  const size_t width = np_nbits_blocks(m) * m->block, blocks = p->blocks;
  const size_t stride = np_nbits_row_stride(job->params->rows);
  amx_operands o = {
      .x = job->rows.q + row * width + p->first * m->block,
      .width = width,
      .weights = p->weights + column * 4,
      .scales = p->scales + column,
      .row_scales = job->rows.scales + p->first * stride + row,
      .row_sums = job->rows.row_sums + p->first * stride + row,
      .stride = stride,
  };
  int32_t acc32[2][NP_AMX_ROWS * LANES] __attribute__((aligned(64)));
  vec acc[NP_AMX_ROWS];
  UNROLL for (int r = 0; r < NP_AMX_ROWS; r++) acc[r] = load(to + r * COLUMNS);
  for (size_t b = 0; b < blocks + 2; b += 2) {
    if (b < blocks) amx_multiply(p, &o, 0, kind);
    if (b > 0 && b <= blocks) NP_AMX_STORE(1, acc32[1], (size_t)64);
    if (b > 1) amx_add(&o, acc32[0], acc, common);
    if (b + 1 < blocks) amx_multiply(p, &o, 1, kind);
    if (b < blocks) NP_AMX_STORE(0, acc32[0], (size_t)64);
    if (b > 0 && b <= blocks) amx_add(&o, acc32[1], acc, common);
  }
  UNROLL for (int r = 0; r < NP_AMX_ROWS; r++) {
    if ((size_t)r >= from) store(to + r * COLUMNS, acc[r]);
  }
}

/* Tiles have 16 rows, or all where there are fewer; the last one repeats rows of the one before it, whose
 * results are left as they are. */
NP_INLINE void amx_rows(const np_nbits_job *job, const amx_piece *p, size_t row, size_t rows,
                        float *results, const int common, const int kind) {
  for (size_t done = 0; done < rows; done += NP_AMX_ROWS) {
    const size_t last = rows < NP_AMX_ROWS ? 0 : rows - NP_AMX_ROWS;
    const size_t first = np_min(done, last);
    for (size_t column = 0; column < COLUMNS; column += LANES) {
      amx_tile(job, p, row + first, column, results + first * COLUMNS + column,
               done - first, common, kind);
    }
  }
}

/* K-groups of a tile, or 0 where VNNI multiplies. */
NP_INLINE size_t amx_groups(const struct np_nbits_matrix *m, size_t rows) {
  if (rows < MIN_AMX_ROWS || amx_offset(m) < 0) return 0;
  return np_amx_groups_of_tile(m->block / 4);
}

/* A panel times rows, whose accumulators were begun; `room` is for a piece. */
NP_INLINE void amx_many(const np_nbits_job *job, const uint8_t *panel, size_t row, size_t rows,
                        size_t groups, float *results, uint8_t *room) {
  const struct np_nbits_matrix *m = &job->params->matrix;
  const size_t blocks = np_nbits_blocks(m), numbers = 2 * COLUMNS * sizeof(float);
  const size_t most = np_nbits_piece_size(m) / (m->block * COLUMNS + numbers);
  const size_t each = np_ceil_div(blocks, np_ceil_div(blocks, most));
  const int32_t offset = amx_offset(m);
  const int common = m->zeros == NP_NBITS_ZEROS_COMMON;
  const size_t tile_rows = np_min(rows, NP_AMX_ROWS);
  const np_amx_shape shape = {{tile_rows, tile_rows}, groups};
  np_amx_configure(&shape);
  amx_piece p = {
      .scales = (float *)(void *)room,
      .weights = room + each * numbers,
      .groups = groups,
      .steps = m->block / 4 / groups,
  };
  for (; p.first < blocks; p.first += each) {
    p.blocks = np_min(each, blocks - p.first);
    if (m->bits == 2) unpack_piece(m, panel, &p, offset, 2);
    else if (m->bits == 4) unpack_piece(m, panel, &p, offset, 4);
    else unpack_piece(m, panel, &p, offset, 8);
    if (offset > 0) amx_rows(job, &p, row, rows, results, 1, NP_AMX_S8_S8);
    else if (common) amx_rows(job, &p, row, rows, results, 1, NP_AMX_S8_U8);
    else amx_rows(job, &p, row, rows, results, 0, NP_AMX_S8_U8);
  }
  np_amx_release();
}
