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
                         const int a_tiles, const int kind) {
  const uint8_t *x = (const uint8_t *)t->x;
  const uint8_t *a[2] = {x + first * t->width, x + second * t->width};
  np_amx_aside aside = {.left = 0};
  np_amx_zero();
  np_amx_accumulate(a, t->width, t->weights, t->groups / groups, groups, &aside, a_tiles, 2, kind);
}

/* A tile of accumulators that is stored, and which of its rows are new. */
typedef struct {
  const int32_t *acc;
  size_t first;
  size_t rows;
} stored_tile;

/* Tiles have 16 rows, or all where there are fewer; the last ones repeat rows of those before them. While
 * a block is multiplied the one before is scaled. */
NP_INLINE void amx_tiles(const tile_view *t, size_t rows, size_t groups, const int common,
                         const int kind) {
  int32_t acc[2][BLOCK_ROWS * COLUMNS] __attribute__((aligned(64)));
  stored_tile before[2] = {{NULL, 0, 0}, {NULL, 0, 0}};
  int current = 0;
  for (size_t done = 0; done < rows; current ^= 1) {
    const size_t last = rows < NP_AMX_ROWS ? 0 : rows - NP_AMX_ROWS;
    const size_t first = np_min(done, last), second = np_min(first + NP_AMX_ROWS, last);
    const int both = done + NP_AMX_ROWS < rows;
    if (both) {
      amx_block(t, first, second, groups, 2, kind);
    } else {
      amx_block(t, first, first, groups, 1, kind);
    }
    for (int i = 0; i < 2; i++) {
      if (before[i].rows > 0) add_scaled(t, before[i].acc, before[i].first, before[i].rows, common);
    }
    if (both) {
      np_amx_store(acc[current], NP_AMX_ROWS, 2, 2);
    } else {
      np_amx_store(acc[current], NP_AMX_ROWS, 1, 2);
    }
    for (int i = 0; i < 2; i++) {
      const size_t start = i == 0 ? first : second, end = np_min(start + NP_AMX_ROWS, rows);
      const size_t kept = i == 0 || both ? end - done : 0;
      const int32_t *from = acc[current] + i * NP_AMX_ROWS * COLUMNS;
      before[i] = (stored_tile){from + (done - start) * COLUMNS, done, kept};
      done += kept;
    }
  }
  for (int i = 0; i < 2; i++) {
    if (before[i].rows > 0) add_scaled(t, before[i].acc, before[i].first, before[i].rows, common);
  }
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
