/* Many rows of int8 times an unpacked block of a panel, by tiles of AMX; gemv/nbits_int8_code.c includes
 * this. Accumulators of a block are exact, and scaled and added as elsewhere: the same bits. */
#include "simd/amx.h"

#define BLOCK_ROWS (2 * NP_AMX_ROWS)

/* Fewer rows are computed by VNNI. */
#define MIN_AMX_ROWS 8

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

/* Scale the accumulators of rows and add them to the results, as `tile` does. */
NP_INLINE void add_scaled(const tile_view *t, const int32_t *acc, size_t first, size_t rows,
                          const int common) {
  const vec scale[2] = {load(t->scales), load(t->scales + LANES)};
  const vec moved[2] = {load(t->moved), load(t->moved + LANES)};
  float *to = t->to + first * COLUMNS;
  for (size_t r = first; r < first + rows; r++, to += COLUMNS, acc += COLUMNS) {
    const float row_scale = t->row_scales[r * t->blocks];
    UNROLL for (int v = 0; v < 2; v++) {
      const ivec whole = *(const ivec *)(acc + v * LANES);
      vec x = load(to + v * LANES);
      x = multiply_add(floats(whole) * scale[v], broadcast(row_scale), x);
      if (!common) {
        const float less = -row_scale * (float)t->row_sums[r * t->blocks];
        x = multiply_add(moved[v], broadcast(less), x);
      }
      store(to + v * LANES, x);
    }
  }
}

NP_INLINE void amx_block(const tile_view *t, size_t first, size_t second, size_t groups,
                         int32_t *acc, const int a_tiles, const int kind) {
  const uint8_t *x = (const uint8_t *)t->x, *next = t->weights;
  const uint8_t *a[2] = {x + first * t->width, x + second * t->width};
  np_amx_zero();
  np_amx_accumulate(a, t->width, t->weights, t->groups / groups, groups, &next, 0, a_tiles, 2, kind);
  np_amx_store(acc, NP_AMX_ROWS, a_tiles, 2);
}

/* Tiles have 16 rows, or all where there are fewer; the last ones repeat rows of those before them. */
NP_INLINE void amx_tiles(const tile_view *t, size_t rows, size_t groups, const int common,
                         const int kind) {
  int32_t acc[BLOCK_ROWS * COLUMNS] __attribute__((aligned(64)));
  size_t first = 0;
  for (; first + NP_AMX_ROWS < rows; first += BLOCK_ROWS) {
    const size_t second = np_min(first + NP_AMX_ROWS, rows - NP_AMX_ROWS);
    const size_t end = second + NP_AMX_ROWS, repeated = first + NP_AMX_ROWS - second;
    amx_block(t, first, second, groups, acc, 2, kind);
    add_scaled(t, acc, first, NP_AMX_ROWS, common);
    add_scaled(t, acc + (NP_AMX_ROWS + repeated) * COLUMNS, second + repeated,
               end - second - repeated, common);
  }
  if (first >= rows) return;
  const size_t at = rows < NP_AMX_ROWS ? 0 : rows - NP_AMX_ROWS, repeated = first - at;
  amx_block(t, at, at, groups, acc, 1, kind);
  add_scaled(t, acc + repeated * COLUMNS, first, rows - first, common);
}

/* Configure tiles for so many rows, and return the K-groups of one; 0 where VNNI multiplies. */
NP_INLINE size_t amx_begin(const struct np_nbits_matrix *m, size_t rows) {
  const size_t groups = np_amx_groups_of_tile(m->block / 4);
  if (rows < MIN_AMX_ROWS || groups == 0 || amx_offset(m) < 0) return 0;
  const size_t each = np_min(rows, NP_AMX_ROWS);
  const np_amx_shape shape = {{each, each}, groups};
  np_amx_configure(&shape);
  return groups;
}

NP_INLINE void amx_multiply(const struct np_nbits_matrix *m, const tile_view *t, uint8_t *weights,
                            size_t rows, size_t groups, const int common) {
  const int32_t offset = amx_offset(m);
  if (offset == 0) {
    amx_tiles(t, rows, groups, common, NP_AMX_S8_U8);
    return;
  }
  subtract_from_weights(weights, m->block * COLUMNS, offset);
  amx_tiles(t, rows, groups, common, NP_AMX_S8_S8);
}
