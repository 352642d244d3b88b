/* Tiles of AMX: 8 of up to 16 rows of 64 bytes.
 *
 * An instruction multiplies a tile of A, up to 16 rows of K, with a tile of B, up to 16 K-groups of 4
 * bytes (or pairs of bfloat16) of 16 columns, and adds to a tile of 32-bit accumulators. B is packed as
 * VNNI and AVX512-BF16 read it: a K-group of 16 columns is a row of the tile. Rows may lie any number of
 * bytes apart in memory, so that panels of 32 columns are two tiles side by side.
 *
 * A block of 2 × 2 tiles has 4 of accumulators, 2 of A and 2 of B: 4 loads for 4 multiplications. On a
 * Sapphire Rapids one takes as many cycles as A has rows, 10 at least, whatever K it has; a load takes
 * 8. The shapes of the tiles are a state of the thread: who multiplies configures and releases it.
 *
 * GCC 12's intrinsics that read memory do not say so to the compiler; these do. */
#pragma once

#include <immintrin.h>

#include "runtime/kernel.h"

#define NP_AMX_ROWS 16   /* of a tile */
#define NP_AMX_GROUPS 16 /* K-groups of a tile */
#define NP_AMX_LANES 16  /* columns of a tile of B */
#define NP_AMX_GROUP 4   /* bytes of a K-group */

/* What is multiplied: rows by weights. */
#define NP_AMX_U8_S8 0
#define NP_AMX_S8_U8 1
#define NP_AMX_S8_S8 2
#define NP_AMX_BF16 3

/* The shapes of tiles: the rows of both tiles of A, and the K-groups of all of them. */
typedef struct {
  size_t rows[2]; /* 0 of the second where there is one alone */
  size_t groups;
} np_amx_shape;

/* What LDTILECFG reads. */
typedef struct {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} np_amx_config;

/* Tiles 0 to 3 are accumulators, [tile of A][tile of B]; 4 and 5 are of A, 6 and 7 of B. */
NP_INLINE void np_amx_configure(const np_amx_shape *shape) {
  np_amx_config config = {.palette = 1};
  for (int i = 0; i < 8; i++) {
    const size_t rows = np_max(1, shape->rows[i < 4 ? i / 2 : i % 2]);
    const size_t bytes = i == 4 || i == 5 ? NP_AMX_GROUP * shape->groups : 64;
    config.rows[i] = (uint8_t)(i < 6 ? rows : shape->groups);
    config.row_bytes[i] = (uint16_t)bytes;
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory");
}

/* Configure tiles unless they have this shape already; they are 0 afterwards if not. */
NP_INLINE void np_amx_reshape(np_amx_shape *now, np_amx_shape wanted) {
  if (now->rows[0] == wanted.rows[0] && now->rows[1] == wanted.rows[1] &&
      now->groups == wanted.groups) {
    return;
  }
  *now = wanted;
  np_amx_configure(now);
}

NP_INLINE void np_amx_release(void) { __asm__ volatile("tilerelease" : : : "memory"); }

#define NP_AMX_LOAD(tile, from, stride)                                             \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(stride) : "memory")
#define NP_AMX_STORE(tile, to, stride)                                              \
  __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"(stride) : "memory")
#define NP_AMX_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
#define NP_AMX_MULTIPLY(instruction, to, a, b) \
  __asm__ volatile(instruction " %%tmm" #b ", %%tmm" #a ", %%tmm" #to : :)

#define NP_AMX_DOT(kind, to, a, b)                                              \
  do {                                                                          \
    if (kind == NP_AMX_U8_S8) {                                                 \
      NP_AMX_MULTIPLY("tdpbusd", to, a, b);                                     \
    } else if (kind == NP_AMX_S8_U8) {                                          \
      NP_AMX_MULTIPLY("tdpbsud", to, a, b);                                     \
    } else if (kind == NP_AMX_S8_S8) {                                          \
      NP_AMX_MULTIPLY("tdpbssd", to, a, b);                                     \
    } else {                                                                    \
      NP_AMX_MULTIPLY("tdpbf16ps", to, a, b);                                   \
    }                                                                           \
  } while (0)

/* What a thread does while tiles are multiplied, which take most of its time and few of its
 * instructions: after each step along K it prefetches `lines` of what comes next, and runs a piece of the
 * epilogue of the block before, if any of it is left. */
typedef struct np_amx_aside {
  const uint8_t *next;
  size_t lines;
  size_t left; /* rows of the block before */
  void (*finish_some)(struct np_amx_aside *aside);
} np_amx_aside;

/* Finish what is left of the block before. */
NP_INLINE void np_amx_finish(np_amx_aside *aside) {
  while (aside->left > 0) aside->finish_some(aside);
}

/* Add to the accumulators of a block: `steps` tiles along K of up to two tiles of A, whose rows lie
 * `stride` bytes apart, times one or two of B, which lie side by side. Both continue along K. */
NP_INLINE void np_amx_accumulate(const uint8_t *const a[2], size_t stride, const uint8_t *b,
                                 size_t steps, size_t groups, np_amx_aside *aside,
                                 const int a_tiles, const int b_tiles, const int kind) {
  const size_t b_stride = (size_t)b_tiles * 64, b_step = groups * b_stride;
  const size_t a_step = groups * NP_AMX_GROUP;
  const uint8_t *a0 = a[0], *a1 = a[1];
  for (size_t k = 0; k < steps; k++, a0 += a_step, a1 += a_step, b += b_step) {
    NP_AMX_LOAD(6, b, b_stride);
    NP_AMX_LOAD(4, a0, stride);
    NP_AMX_DOT(kind, 0, 4, 6);
    if (b_tiles > 1) {
      NP_AMX_LOAD(7, b + 64, b_stride);
      NP_AMX_DOT(kind, 1, 4, 7);
    }
    if (a_tiles > 1) {
      NP_AMX_LOAD(5, a1, stride);
      NP_AMX_DOT(kind, 2, 5, 6);
      if (b_tiles > 1) NP_AMX_DOT(kind, 3, 5, 7);
    }
    for (size_t i = 0; i < aside->lines; i++, aside->next += 64) {
      _mm_prefetch((const char *)aside->next, _MM_HINT_T1);
    }
    if (aside->left > 0) aside->finish_some(aside);
  }
}

NP_INLINE void np_amx_zero(void) {
  NP_AMX_ZERO(0);
  NP_AMX_ZERO(1);
  NP_AMX_ZERO(2);
  NP_AMX_ZERO(3);
}

/* Load one row of 32-bit accumulators into all rows of a block. */
NP_INLINE void np_amx_start(const void *row, const int a_tiles, const int b_tiles) {
  const uint8_t *from = row;
  const size_t same = 0;
  NP_AMX_LOAD(0, from, same);
  if (b_tiles > 1) NP_AMX_LOAD(1, from + 64, same);
  if (a_tiles > 1) {
    NP_AMX_LOAD(2, from, same);
    if (b_tiles > 1) NP_AMX_LOAD(3, from + 64, same);
  }
}

/* Store the accumulators of a block, [rows of both tiles][16 · b_tiles] of 32 bits. */
NP_INLINE void np_amx_store(void *to, size_t first_rows, const int a_tiles, const int b_tiles) {
  const size_t stride = (size_t)b_tiles * 64;
  uint8_t *first = to, *second = first + first_rows * stride;
  NP_AMX_STORE(0, first, stride);
  if (b_tiles > 1) NP_AMX_STORE(1, first + 64, stride);
  if (a_tiles > 1) {
    NP_AMX_STORE(2, second, stride);
    if (b_tiles > 1) NP_AMX_STORE(3, second + 64, stride);
  }
}

/* K-groups of a tile that divide a run of so many evenly, in at most half as many tiles again as there
 * must be; 0 where no number does. */
NP_INLINE size_t np_amx_groups_of_tile(size_t groups) {
  const size_t least = np_ceil_div(groups, NP_AMX_GROUPS);
  for (size_t tiles = least; 2 * tiles <= 3 * least; tiles++) {
    if (tiles > 0 && groups % tiles == 0) return groups / tiles;
  }
  return 0;
}

/* Fewer rows of a tile take no less time. */
#define NP_AMX_LEAST_ROWS 10

/* Rows of the tiles of a line of so many; the last tile may have fewer. */
NP_INLINE size_t np_amx_rows_of_tile(size_t line) {
  const size_t least = np_ceil_div(line, NP_AMX_ROWS);
  for (size_t tiles = least; tiles <= 2 * least; tiles++) {
    const size_t rows = line / tiles;
    if (line % tiles == 0 && (tiles == least || rows >= NP_AMX_LEAST_ROWS)) return rows;
  }
  return np_min(line, NP_AMX_ROWS);
}

/* Rows of the tile that begins at row `first`: a tile does not go beyond the end of its line. */
NP_INLINE size_t np_amx_rows_at(size_t first, size_t count, size_t line, size_t rows) {
  if (first >= count) return 0;
  const size_t left = np_min(line - first % line, count - first);
  return np_min(rows, left);
}

/* Rows of the block before that are finished after each of so many steps: an even number, since pairs of
 * rows are requantized together. */
NP_INLINE size_t np_amx_rows_aside(size_t steps) {
  return np_ceil_div(np_ceil_div(2 * NP_AMX_ROWS, steps), 2) * 2;
}

/* Whether rows lie evenly apart from the first to the last, as those of one line do. */
NP_INLINE int np_amx_is_one_line(const int32_t *pixels, size_t count, size_t step) {
  for (size_t i = 1; i < count; i++) {
    if ((int64_t)pixels[i] - pixels[0] != (int64_t)(i * step)) return 0;
  }
  return 1;
}
