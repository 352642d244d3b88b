/* The float32 GEMM micro-kernels for one instruction set.
 *
 * With AVX2 a tile of 6 output pixels and 16 columns has 12 accumulators, 2 registers of weights,
 * and one of an element in all of its lanes: enough to hide the latency of an FMA. With AVX-512
 * tiles are wide rather than high, 8 output pixels by 48 columns or 6 by 64: such a one loads 11 or
 * 10 registers for 24 FMAs, one of 12 by 32 loads 14. Where two threads share the loads of a core
 * that is what limits. */
#include "gemm/fp32/panel.h"
#include "simd/f32.h"

#define VECTORS (LANES == 16 ? 4 : 2) /* most registers of columns of a panel */
#define ROWS 12 /* of the largest tile, one vector wide */
#define NEAR 4096 /* bytes */
#define STEP 8 /* elements of a run that are multiplied between two looks at what is ahead */

/* Accumulators of a tile start as the bias, or as what is in `out` from an earlier part of the
 * inputs. */
NP_INLINE void start(vec acc[][VECTORS], const np_fp32_panel *p, size_t first, const int rows,
                  const int vectors) {
  const size_t last = p->columns - LANES * (size_t)(vectors - 1); /* columns of the last vector */
  const size_t offset = first * p->out_stride;
  UNROLL for (int v = 0; v < vectors; v++) {
    const int whole = v < vectors - 1;
    const vec bias = p->bias == NULL ? zero() : load(p->bias + LANES * v);
    UNROLL for (int r = 0; r < rows; r++) {
      const size_t at = offset + (size_t)r * p->out_stride + LANES * (size_t)v;
      acc[r][v] = bias;
      if (p->bias == NULL) acc[r][v] = whole ? load(p->out + at) : load_some(p->out + at, last);
      if (p->residual != NULL) {
        const float *added = p->residual + at;
        acc[r][v] += whole ? load(added) : load_some(added, last);
      }
    }
  }
}

NP_INLINE void finish(vec acc[][VECTORS], const np_fp32_panel *p, size_t first, const int rows,
                   const int vectors) {
  const size_t last = p->columns - LANES * (size_t)(vectors - 1);
  float *out = p->out + first * p->out_stride;
  UNROLL for (int r = 0; r < rows; r++, out += p->out_stride) {
    UNROLL for (int v = 0; v < vectors; v++) {
      const vec x = clamp(acc[r][v], p->low, p->high);
      if (v < vectors - 1) {
        store(out + LANES * v, x);
      } else {
        store_some(out + LANES * v, x, last);
      }
    }
  }
}

NP_INLINE void multiply(vec acc[][VECTORS], const float *weights, const float *const *x, size_t k,
                     const int rows, const int vectors) {
  vec w[VECTORS];
  UNROLL for (int v = 0; v < vectors; v++) w[v] = load(weights + LANES * v);
  UNROLL for (int r = 0; r < rows; r++) {
    const vec element = broadcast(x[r][k]);
    UNROLL for (int v = 0; v < vectors; v++) { acc[r][v] = multiply_add(element, w[v], acc[r][v]); }
  }
}

/* The same where there is a bias, no residual, and every column of the panel. */
NP_INLINE void start_whole(vec acc[][VECTORS], const np_fp32_panel *p, const int rows,
                        const int vectors) {
  UNROLL for (int v = 0; v < vectors; v++) {
    const vec bias = load(p->bias + LANES * v);
    UNROLL for (int r = 0; r < rows; r++) acc[r][v] = bias;
  }
}

NP_INLINE void finish_whole(vec acc[][VECTORS], const np_fp32_panel *p, size_t first, const int rows,
                         const int vectors) {
  float *out = p->out + first * p->out_stride;
  UNROLL for (int r = 0; r < rows; r++, out += p->out_stride) {
    UNROLL for (int v = 0; v < vectors; v++) {
      store(out + LANES * v, clamp(acc[r][v], p->low, p->high));
    }
  }
}

/* Whether a panel's rows are evenly apart and nothing is left out: such tiles do less beside
 * multiplying, which counts where there are few inputs. */
NP_INLINE int is_whole(const np_fp32_panel *p) {
  return p->row_stride > 0 && p->bias != NULL && p->residual == NULL && p->columns % LANES == 0;
}

/* `prefetch` is fetched into the L2 cache, `lines` of it for each STEP elements. */
NP_INLINE const char *tile(const np_fp32_panel *p, size_t first, const char *prefetch, size_t lines,
                        const int rows, const int vectors, const int whole) {
  /* One accumulator for each output, and K in order, whatever the number of rows: so the bits of a
   * row do not depend on the rows beside it. Few rows wait for the latency of an FMA, while GEMV,
   * which has the same order, hides it by more streams. */
  vec acc[ROWS][VECTORS];
  if (whole) {
    start_whole(acc, p, rows, vectors);
  } else {
    start(acc, p, first, rows, vectors);
  }
  const float *weights = p->weights;
  const size_t run_length = p->run_length, width = LANES * (size_t)vectors;
  const size_t runs = whole ? 1 : p->run_count;
  for (size_t q = 0; q < runs; q++) {
    const float *x[ROWS];
    UNROLL for (int r = 0; r < rows; r++) {
      const size_t row = first + (size_t)r;
      x[r] = p->image +
             (whole ? row * p->row_stride : np_fp32_pixel_offset(p, row) + (size_t)p->runs[q]);
    }
    size_t k = 0;
    for (; k + STEP <= run_length; k += STEP, weights += STEP * width) {
      for (size_t i = 0; i < lines; i++, prefetch += 64) __builtin_prefetch(prefetch, 0, 2);
      UNROLL for (int i = 0; i < STEP; i++) {
        multiply(acc, weights + (size_t)i * width, x, k + (size_t)i, rows, vectors);
      }
    }
    for (; k < run_length; k++, weights += width) multiply(acc, weights, x, k, rows, vectors);
  }
  if (whole) {
    finish_whole(acc, p, first, rows, vectors);
  } else {
    finish(acc, p, first, rows, vectors);
  }
  return prefetch;
}

/* As few tiles as there can be, of about as many rows each. */
NP_INLINE void tiles(const np_fp32_panel *p, const int vectors, const int whole) {
  const int most = ACCUMULATORS / vectors < ROWS ? ACCUMULATORS / vectors : ROWS;
  const size_t count = (p->count + (size_t)most - 1) / (size_t)most;
  if (count == 0) return;
  const size_t least = p->count / count, higher = p->count % count; /* so many have a row more */
  /* The weights that are needed next are fetched while these are multiplied; where each is needed
   * once, those a bit ahead. */
  const char *prefetch = count > 1 ? (const char *)p->prefetch : (const char *)p->weights + NEAR;
  const size_t wanted = LANES * 4 * (size_t)vectors * STEP / 64;
  const size_t lines = (wanted + count - 1) / count;
  size_t first = 0;
  for (size_t i = 0; i < count; i++) {
    const size_t rows = least + (i < higher);
#define NP_CASE(number)                                                              \
  case number:                                                                       \
    if (number <= most) prefetch = tile(p, first, prefetch, lines, number, vectors, whole); \
    break;
    switch (rows) { NP_CASES_OF_12(NP_CASE) }
#undef NP_CASE
    if (p->end != NULL) {
      const size_t at = first * p->out_stride;
      p->end(p->epilogue, p->out + at, p->out_stride, p->after == NULL ? NULL : p->after + at,
             p->out_stride, rows, p->columns);
    }
    first += rows;
  }
}

/* Code for whole tiles where panels are as wide as they mostly are. */
#define NP_TILES(vectors)                           \
  case vectors:                                     \
    if (vectors >= VECTORS - 1 && is_whole(p)) {    \
      tiles(p, vectors, 1);                         \
    } else {                                        \
      tiles(p, vectors, 0);                         \
    }                                               \
    break;

void NP_OF_ISA(np_fp32_multiply)(const np_fp32_panel *p) {
  switch ((p->columns + LANES - 1) / LANES) {
    NP_TILES(1)
    NP_TILES(2)
#if LANES == 16
    NP_TILES(3)
    NP_TILES(4)
#endif
  }
}
