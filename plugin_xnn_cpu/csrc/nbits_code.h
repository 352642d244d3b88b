/* A panel of a matrix of few bits, for one instruction set.
 *
 * Who includes this defines LANES, the floats of a register; ROWS, so many rows of a tile of
 * NP_NBITS_COLUMNS whose sums the registers hold; PANEL, the function's name; and TARGET, its
 * attribute. */
#if defined(__GNUC__) && !defined(__clang__)
/* Vectors are passed between functions that become one: there is no calling convention to change. */
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#include <string.h>

#include "nbits.h"

#define VECTORS (NP_NBITS_COLUMNS / LANES)

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint8_t bvec __attribute__((vector_size(LANES), aligned(1), may_alias));

NP_INLINE ivec widened(const uint8_t *bytes) {
  return __builtin_convertvector(*(const bvec *)bytes, ivec);
}

NP_INLINE vec floats(ivec x) { return __builtin_convertvector(x, vec); }

NP_INLINE vec clamped(vec x, float low, float high) {
  const ivec less = x < low, more = x > high;
  x = (vec)((less & (ivec)(low - (vec){0})) | (~less & (ivec)x));
  return (vec)((more & (ivec)(high - (vec){0})) | (~more & (ivec)x));
}

NP_INLINE void store(const vec *sums, float *out, size_t columns, float low, float high) {
  float whole[NP_NBITS_COLUMNS];
  for (int v = 0; v < VECTORS; v++) *(vec *)(whole + v * LANES) = clamped(sums[v], low, high);
  memcpy(out, whole, columns * sizeof(float));
}

/* `rows` rows, a constant where this is called: weights become floats in registers, and a block's
 * sums are scaled at its end. */
NP_INLINE void few(const np_nbits_job *job, const uint8_t *panel, size_t column, const int rows,
                   const int bits) {
  const struct np_nbits_params *p = job->params;
  const size_t blocks = np_nbits_blocks(p->inputs, p->block);
  vec sums[NP_NBITS_FEW_ROWS][VECTORS];
  for (int m = 0; m < rows; m++) {
    for (int v = 0; v < VECTORS; v++) sums[m][v] = *(const vec *)(panel + 4 * v * LANES);
  }
  const uint8_t *from = panel + NP_NBITS_COLUMNS * sizeof(float);
  for (size_t b = 0; b < blocks; b++) {
    const float *scales = (const float *)from;
    const uint8_t *bytes = from + 2 * NP_NBITS_COLUMNS * sizeof(float);
    const size_t end = (b + 1) * p->block < p->inputs ? (b + 1) * p->block : p->inputs;
    vec inner[NP_NBITS_FEW_ROWS][VECTORS], zeros[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
      zeros[v] = *(const vec *)(scales + NP_NBITS_COLUMNS + v * LANES);
      for (int m = 0; m < rows; m++) inner[m][v] = (vec){0};
    }
    size_t k = b * p->block;
    if (bits == 8) {
      for (; k < end; k++, bytes += NP_NBITS_COLUMNS) {
        for (int v = 0; v < VECTORS; v++) {
          const vec w = floats(widened(bytes + v * LANES)) - zeros[v];
          for (int m = 0; m < rows; m++) inner[m][v] += job->in[(size_t)m * p->inputs + k] * w;
        }
      }
    } else {
      for (; k + 1 < end; k += 2, bytes += NP_NBITS_COLUMNS) {
        for (int v = 0; v < VECTORS; v++) {
          const ivec both = widened(bytes + v * LANES);
          const vec low = floats(both & 15) - zeros[v], high = floats(both >> 4) - zeros[v];
          for (int m = 0; m < rows; m++) {
            const float *x = job->in + (size_t)m * p->inputs + k;
            inner[m][v] += x[0] * low;
            inner[m][v] += x[1] * high;
          }
        }
      }
      if (k < end) {
        for (int v = 0; v < VECTORS; v++) {
          const vec low = floats(widened(bytes + v * LANES) & 15) - zeros[v];
          for (int m = 0; m < rows; m++) inner[m][v] += job->in[(size_t)m * p->inputs + k] * low;
        }
      }
    }
    for (int m = 0; m < rows; m++) {
      for (int v = 0; v < VECTORS; v++) {
        sums[m][v] += inner[m][v] * *(const vec *)(scales + v * LANES);
      }
    }
    from += np_nbits_block_size(p->block, p->bits);
  }
  const size_t left = p->outputs - column;
  const size_t columns = left < NP_NBITS_COLUMNS ? left : NP_NBITS_COLUMNS;
  for (int m = 0; m < rows; m++) {
    store(sums[m], job->out + (size_t)m * p->outputs + column, columns, p->low, p->high);
  }
}

/* Inputs from `start` to `end` of a panel as floats, a row of columns for each. */
NP_INLINE void widen(const struct np_nbits_params *p, const uint8_t *panel, size_t start,
                     size_t end, float *wide) {
  for (size_t k = start; k < end; k++, wide += NP_NBITS_COLUMNS) {
    const uint8_t *from = panel + NP_NBITS_COLUMNS * sizeof(float) +
                          k / p->block * np_nbits_block_size(p->block, p->bits);
    const float *scales = (const float *)from;
    const uint8_t *bytes = from + 2 * NP_NBITS_COLUMNS * sizeof(float) +
                           k % p->block * p->bits / 8 * NP_NBITS_COLUMNS;
    const int shift = p->bits == 4 && k % 2 == 1 ? 4 : 0;
    const int mask = p->bits == 4 ? 15 : 255;
    for (int v = 0; v < VECTORS; v++) {
      const vec w = floats((widened(bytes + v * LANES) >> shift) & mask);
      const vec zero = *(const vec *)(scales + NP_NBITS_COLUMNS + v * LANES);
      *(vec *)(wide + v * LANES) = (w - zero) * *(const vec *)(scales + v * LANES);
    }
  }
}

/* A tile: sums go on from `to`, in rows of whole panels. */
NP_INLINE void tile(const float *in, size_t stride, size_t inputs, const float *wide, float *to,
                    const int rows) {
  vec sums[ROWS][VECTORS];
  for (int m = 0; m < rows; m++) {
    for (int v = 0; v < VECTORS; v++) {
      sums[m][v] = *(const vec *)(to + m * NP_NBITS_COLUMNS + v * LANES);
    }
  }
  for (size_t k = 0; k < inputs; k++, wide += NP_NBITS_COLUMNS) {
    vec w[VECTORS];
    for (int v = 0; v < VECTORS; v++) w[v] = *(const vec *)(wide + v * LANES);
    for (int m = 0; m < rows; m++) {
      const float x = in[(size_t)m * stride + k];
      for (int v = 0; v < VECTORS; v++) sums[m][v] += x * w[v];
    }
  }
  for (int m = 0; m < rows; m++) {
    for (int v = 0; v < VECTORS; v++) {
      *(vec *)(to + m * NP_NBITS_COLUMNS + v * LANES) = sums[m][v];
    }
  }
}

NP_INLINE void many(const np_nbits_job *job, const uint8_t *panel, size_t column, float *scratch) {
  const struct np_nbits_params *p = job->params;
  float *wide = scratch;
  float *results = scratch + NP_NBITS_CHUNK * NP_NBITS_COLUMNS;
  for (size_t m = 0; m < p->rows; m++) {
    memcpy(results + m * NP_NBITS_COLUMNS, panel, NP_NBITS_COLUMNS * sizeof(float));
  }
  for (size_t start = 0; start < p->inputs; start += NP_NBITS_CHUNK) {
    const size_t left = p->inputs - start;
    const size_t count = left < NP_NBITS_CHUNK ? left : NP_NBITS_CHUNK;
    widen(p, panel, start, start + count, wide);
    size_t m = 0;
    for (; m + ROWS <= p->rows; m += ROWS) {
      tile(job->in + m * p->inputs + start, p->inputs, count, wide, results + m * NP_NBITS_COLUMNS,
           ROWS);
    }
    for (; m < p->rows; m++) {
      tile(job->in + m * p->inputs + start, p->inputs, count, wide, results + m * NP_NBITS_COLUMNS,
           1);
    }
  }
  const size_t left = p->outputs - column;
  const size_t columns = left < NP_NBITS_COLUMNS ? left : NP_NBITS_COLUMNS;
  for (size_t m = 0; m < p->rows; m++) {
    const vec *sums = (const vec *)(results + m * NP_NBITS_COLUMNS);
    store(sums, job->out + m * p->outputs + column, columns, p->low, p->high);
  }
}

#define FEW(ROW_COUNT)                                      \
  case ROW_COUNT:                                           \
    if (p->bits == 4) few(job, from, column, ROW_COUNT, 4); \
    else few(job, from, column, ROW_COUNT, 8);              \
    return;

TARGET void PANEL(const np_nbits_job *job, size_t panel, float *scratch) {
  const struct np_nbits_params *p = job->params;
  const uint8_t *from =
      (const uint8_t *)p->packed + panel * np_nbits_panel_size(p->inputs, p->block, p->bits);
  const size_t column = panel * NP_NBITS_COLUMNS;
  switch (p->rows) {
    FEW(1)
    FEW(2)
    FEW(3)
    FEW(4)
    default:
      many(job, from, column, scratch);
  }
}
