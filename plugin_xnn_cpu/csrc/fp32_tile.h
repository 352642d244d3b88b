/* Tiles of the fp32 kernels for one instruction set.
 *
 * Who includes this defines LANES, the floats of a register; VECTORS, the most registers of columns
 * of a panel; SUMS, how many registers of sums a tile has, so that there are some left for a row of
 * weights and for an element in all lanes of another; MULTIPLY, the name of the function that is
 * made, and TARGET, its attribute. Then `vec` and what is done with it: load, load_some, store,
 * store_some, splat, zero, plus, multiply_add, clamped. */
#include "fp32_code.h"

#define INLINE TARGET static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define ROWS 12 /* of the largest tile, one vector wide */
#define NEAR 4096 /* bytes */
#define STEP 8 /* elements of a run that are multiplied between two looks at what is ahead */

/* Sums of a tile start as the bias, or as what is in `out` from an earlier part of the inputs. */
INLINE void start(vec sums[][VECTORS], const np_fp32_panel *p, size_t first, const int rows,
                  const int vectors) {
  const size_t last = p->columns - LANES * (size_t)(vectors - 1); /* columns of the last vector */
  const size_t offset = first * p->out_stride;
  UNROLL for (int v = 0; v < vectors; v++) {
    const int whole = v < vectors - 1;
    const vec bias = p->bias == NULL ? zero() : load(p->bias + LANES * v);
    UNROLL for (int r = 0; r < rows; r++) {
      const size_t at = offset + (size_t)r * p->out_stride + LANES * (size_t)v;
      sums[r][v] = bias;
      if (p->bias == NULL) sums[r][v] = whole ? load(p->out + at) : load_some(p->out + at, last);
      if (p->residual != NULL) {
        const float *added = p->residual + at;
        sums[r][v] = plus(sums[r][v], whole ? load(added) : load_some(added, last));
      }
    }
  }
}

INLINE void finish(vec sums[][VECTORS], const np_fp32_panel *p, size_t first, const int rows,
                   const int vectors) {
  const size_t last = p->columns - LANES * (size_t)(vectors - 1);
  float *out = p->out + first * p->out_stride;
  UNROLL for (int r = 0; r < rows; r++, out += p->out_stride) {
    UNROLL for (int v = 0; v < vectors; v++) {
      const vec x = clamped(sums[r][v], p->low, p->high);
      if (v < vectors - 1) {
        store(out + LANES * v, x);
      } else {
        store_some(out + LANES * v, x, last);
      }
    }
  }
}

INLINE void multiply(vec sums[][VECTORS], const float *weights, const float *const *x, size_t k,
                     const int rows, const int vectors) {
  vec w[VECTORS];
  UNROLL for (int v = 0; v < vectors; v++) w[v] = load(weights + LANES * v);
  UNROLL for (int r = 0; r < rows; r++) {
    const vec element = splat(x[r] + k);
    UNROLL for (int v = 0; v < vectors; v++) {
      sums[r][v] = multiply_add(element, w[v], sums[r][v]);
    }
  }
}

/* `ahead` is fetched into the second cache, `lines` of it for each STEP elements. */
INLINE const char *tile(const np_fp32_panel *p, size_t first, const char *ahead, size_t lines,
                        const int rows, const int vectors) {
  /* With few rows there are more sums than these, so that an instruction needs not wait for the
   * one before. */
  const int chains = rows * vectors >= 8 ? 1 : rows * vectors >= 4 ? 2 : 4;
  vec sums[4][ROWS][VECTORS];
  start(sums[0], p, first, rows, vectors);
  UNROLL for (int c = 1; c < chains; c++) {
    UNROLL for (int r = 0; r < rows; r++) {
      UNROLL for (int v = 0; v < vectors; v++) sums[c][r][v] = zero();
    }
  }
  const float *weights = p->weights;
  const size_t run_length = p->run_length, width = LANES * (size_t)vectors;
  for (size_t q = 0; q < p->run_count; q++) {
    const float *x[ROWS];
    UNROLL for (int r = 0; r < rows; r++) x[r] = p->image + p->pixels[first + (size_t)r] + p->runs[q];
    size_t k = 0;
    for (; k + STEP <= run_length; k += STEP, weights += STEP * width) {
      for (size_t i = 0; i < lines; i++, ahead += 64) __builtin_prefetch(ahead, 0, 2);
      UNROLL for (int i = 0; i < STEP; i++) {
        multiply(sums[i % chains], weights + (size_t)i * width, x, k + (size_t)i, rows, vectors);
      }
    }
    for (; k < run_length; k++, weights += width) multiply(sums[0], weights, x, k, rows, vectors);
  }
  UNROLL for (int c = 1; c < chains; c++) {
    UNROLL for (int r = 0; r < rows; r++) {
      UNROLL for (int v = 0; v < vectors; v++) sums[0][r][v] = plus(sums[0][r][v], sums[c][r][v]);
    }
  }
  finish(sums[0], p, first, rows, vectors);
  return ahead;
}

/* As few tiles as there can be, of about as many rows each. */
INLINE void tiles(const np_fp32_panel *p, const int vectors) {
  const int most = SUMS / vectors < ROWS ? SUMS / vectors : ROWS;
  size_t left = (p->count + (size_t)most - 1) / (size_t)most;
  /* The weights that are needed next are fetched while these are multiplied; where each is needed
   * once, those a bit ahead. */
  const char *ahead = left > 1 ? (const char *)p->ahead : (const char *)p->weights + NEAR;
  const size_t wanted = LANES * 4 * (size_t)vectors * STEP / 64;
  const size_t lines = (wanted + left - 1) / left;
  for (size_t first = 0; first < p->count; left--) {
    const size_t rows = (p->count - first + left - 1) / left;
#define NP_CASE(number)                                                       \
  case number:                                                                \
    if (number <= most) ahead = tile(p, first, ahead, lines, number, vectors); \
    break;
    switch (rows) {
      NP_CASE(1) NP_CASE(2) NP_CASE(3) NP_CASE(4) NP_CASE(5) NP_CASE(6)
      NP_CASE(7) NP_CASE(8) NP_CASE(9) NP_CASE(10) NP_CASE(11) NP_CASE(12)
    }
#undef NP_CASE
    if (p->end != NULL) {
      const size_t at = first * p->out_stride;
      p->end(p->epilogue, p->out + at, p->out_stride, p->after == NULL ? NULL : p->after + at,
             p->out_stride, rows, p->columns);
    }
    first += rows;
  }
}

TARGET void MULTIPLY(const np_fp32_panel *p) {
  switch ((p->columns + LANES - 1) / LANES) {
    case 1: tiles(p, 1); break;
    case 2: tiles(p, 2); break;
#if VECTORS > 2
    case 3: tiles(p, 3); break;
    case 4: tiles(p, 4); break;
#endif
  }
}
