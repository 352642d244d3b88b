/* A panel of a matrix of few bits, for one instruction set. */
#include "gemv/nbits_panel.h"
#include "simd/f32.h"

#define ROWS (LANES == 16 ? 8 : LANES == 8 ? 2 : 1) /* of a tile, whose accumulators fit registers */
#define VECTORS (NP_NBITS_COLUMNS / LANES)

NP_INLINE vec floats(ivec x) { return __builtin_convertvector(x, vec); }

/* Number `at` of each word of a register. */
NP_INLINE vec taken(ivec words, size_t at, const int bits) {
  return floats((ivec)(words >> (int)(at * bits)) & (bits == 4 ? 15 : 255));
}

NP_INLINE void store_row(const vec *acc, float *out, size_t columns, float low, float high) {
  float whole[NP_NBITS_COLUMNS];
  for (int v = 0; v < VECTORS; v++) store(whole + v * LANES, clamp(acc[v], low, high));
  memcpy(out, whole, columns * sizeof(float));
}

/* One input of `rows` rows times its weights, which are number `at` of the words. */
NP_INLINE void step(const float *x, size_t stride, const int32_t *words, size_t at,
                    const vec *zeros, vec (*inner)[VECTORS], const int rows, const int bits) {
  for (int v = 0; v < VECTORS; v++) {
    const vec w = taken(*(const ivec *)(words + v * LANES), at, bits) - zeros[v];
    for (int m = 0; m < rows; m++) inner[m][v] += x[(size_t)m * stride] * w;
  }
}

/* `rows` rows, a constant where this is called: weights become floats in registers, and a block's
 * accumulators are scaled at its end. */
NP_INLINE void few(const np_nbits_job *job, const uint8_t *panel, size_t column, const int rows,
                   const int bits) {
  const struct np_nbits_params *p = job->params;
  const size_t blocks = np_nbits_blocks(p->inputs, p->block);
  vec acc[NP_NBITS_GEMV_ROWS][VECTORS];
  for (int m = 0; m < rows; m++) {
    for (int v = 0; v < VECTORS; v++) acc[m][v] = load((const float *)panel + v * LANES);
  }
  const uint8_t *from = panel + NP_NBITS_COLUMNS * sizeof(float);
  for (size_t b = 0; b < blocks; b++) {
    const float *scales = (const float *)from;
    const int32_t *words = (const int32_t *)(scales + 2 * NP_NBITS_COLUMNS);
    const size_t end = (b + 1) * p->block < p->inputs ? (b + 1) * p->block : p->inputs;
    vec inner[NP_NBITS_GEMV_ROWS][VECTORS], zeros[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
      zeros[v] = load(scales + NP_NBITS_COLUMNS + v * LANES);
      for (int m = 0; m < rows; m++) inner[m][v] = (vec){0};
    }
    const size_t together = 32 / bits;
    for (size_t k = b * p->block; k < end; k += together, words += NP_NBITS_COLUMNS) {
      const float *x = job->in + k;
      const size_t count = end - k < together ? end - k : together;
      if (count == together) {
        for (size_t i = 0; i < together; i++)
          step(x + i, p->inputs, words, i, zeros, inner, rows, bits);
      } else {
        for (size_t i = 0; i < count; i++)
          step(x + i, p->inputs, words, i, zeros, inner, rows, bits);
      }
    }
    for (int m = 0; m < rows; m++) {
      for (int v = 0; v < VECTORS; v++) {
        acc[m][v] += inner[m][v] * load(scales + v * LANES);
      }
    }
    from += np_nbits_block_size(p->block, p->bits);
  }
  const size_t left = p->outputs - column;
  const size_t columns = left < NP_NBITS_COLUMNS ? left : NP_NBITS_COLUMNS;
  for (int m = 0; m < rows; m++) {
    store_row(acc[m], job->out + (size_t)m * p->outputs + column, columns, p->low, p->high);
  }
}

/* Inputs from `start` to `end` of a panel as floats, a row of columns for each. */
NP_INLINE void upcast(const struct np_nbits_params *p, const uint8_t *panel, size_t start,
                      size_t end, float *wide, const int bits) {
  for (size_t k = start; k < end; k++, wide += NP_NBITS_COLUMNS) {
    const uint8_t *from = panel + NP_NBITS_COLUMNS * sizeof(float) +
                          k / p->block * np_nbits_block_size(p->block, p->bits);
    const float *scales = (const float *)from;
    const size_t together = 32 / bits, inside = k % p->block;
    const int32_t *words =
        (const int32_t *)(scales + (2 + inside / together) * NP_NBITS_COLUMNS);
    for (int v = 0; v < VECTORS; v++) {
      const vec w = taken(*(const ivec *)(words + v * LANES), inside % together, bits);
      const vec zero = load(scales + NP_NBITS_COLUMNS + v * LANES);
      store(wide + v * LANES, (w - zero) * load(scales + v * LANES));
    }
  }
}

/* A tile: accumulators go on from `to`, in rows of whole panels. */
NP_INLINE void tile(const float *in, size_t stride, size_t inputs, const float *wide, float *to,
                    const int rows) {
  vec acc[ROWS][VECTORS];
  for (int m = 0; m < rows; m++) {
    for (int v = 0; v < VECTORS; v++) {
      acc[m][v] = load(to + m * NP_NBITS_COLUMNS + v * LANES);
    }
  }
  for (size_t k = 0; k < inputs; k++, wide += NP_NBITS_COLUMNS) {
    vec w[VECTORS];
    for (int v = 0; v < VECTORS; v++) w[v] = load(wide + v * LANES);
    for (int m = 0; m < rows; m++) {
      const float x = in[(size_t)m * stride + k];
      for (int v = 0; v < VECTORS; v++) acc[m][v] += x * w[v];
    }
  }
  for (int m = 0; m < rows; m++) {
    for (int v = 0; v < VECTORS; v++) {
      store(to + m * NP_NBITS_COLUMNS + v * LANES, acc[m][v]);
    }
  }
}

NP_INLINE void many(const np_nbits_job *job, const uint8_t *panel, size_t column, float *scratch) {
  const struct np_nbits_params *p = job->params;
  float *wide = scratch;
  float *results = scratch + NP_NBITS_K_BLOCK * NP_NBITS_COLUMNS;
  for (size_t m = 0; m < p->rows; m++) {
    memcpy(results + m * NP_NBITS_COLUMNS, panel, NP_NBITS_COLUMNS * sizeof(float));
  }
  for (size_t start = 0; start < p->inputs; start += NP_NBITS_K_BLOCK) {
    const size_t left = p->inputs - start;
    const size_t count = left < NP_NBITS_K_BLOCK ? left : NP_NBITS_K_BLOCK;
    if (p->bits == 4)
      upcast(p, panel, start, start + count, wide, 4);
    else
      upcast(p, panel, start, start + count, wide, 8);
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
    const vec *acc = (const vec *)(results + m * NP_NBITS_COLUMNS);
    store_row(acc, job->out + m * p->outputs + column, columns, p->low, p->high);
  }
}

#define FEW(ROW_COUNT)                                      \
  case ROW_COUNT:                                           \
    if (p->bits == 4) few(job, from, column, ROW_COUNT, 4); \
    else few(job, from, column, ROW_COUNT, 8);              \
    return;

void NP_OF_ISA(np_nbits_panel)(const np_nbits_job *job, size_t panel, float *scratch) {
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
