/* The micro-kernels of the bf16 GEMM, for one instruction set. AVX512-BF16 multiplies pairs of
 * bfloat16; elsewhere they are upcast in registers. All else follows from three primitives:
 * elements are rounded, put into all lanes, and pairs are multiplied and accumulated. */
#include "gemm/bf16/panel.h"
#include "simd/f32.h"

/* A tile of so many output pixels times registers, whose accumulators the registers hold. */
#define VECTORS 2
#define ROWS (LANES == 16 ? 12 : LANES == 8 ? 6 : 4)

typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

NP_INLINE words rounded(words bits) {
  const words magnitude = bits & 0x7fffffffu;
  const words even = bits + (0x7fffu + ((bits >> 16) & 1u));
  const words quiet = bits | 0x400000u;
  const words is_nan = (words)(magnitude > 0x7f800000u);
  const words is_small = (words)(magnitude < 0x00800000u);
  const words number = (even & ~is_small) | (bits & 0x80000000u & is_small);
  return ((quiet & is_nan) | (number & ~is_nan)) & 0xffff0000u;
}

NP_INLINE words first_words(const float *in, size_t count) {
  words bits = {0};
  memcpy(&bits, in, count * sizeof *in);
  return bits;
}

#ifdef __AVX512BF16__
typedef uint16_t element;

NP_INLINE void round_all(const float *in, size_t count, element *out) {
  for (; count >= 2 * LANES; count -= 2 * LANES, in += 2 * LANES, out += 2 * LANES) {
    const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(in + LANES), _mm512_loadu_ps(in));
    memcpy(out, &both, sizeof both);
  }
  for (; count > 0; count -= count < LANES ? count : LANES, in += LANES, out += LANES) {
    const size_t here = count < LANES ? count : LANES;
    const __m512 numbers = _mm512_maskz_loadu_ps((__mmask16)((1u << here) - 1u), in);
    const __m256bh some = _mm512_cvtneps_pbh(numbers);
    memcpy(out, &some, here * sizeof *out);
  }
}

NP_INLINE vec accumulate(vec sum, words pair, words weights) {
  return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)pair);
}

/* Accumulate elements 2k and 2k + 1, or of element 2k alone where there is no other. */
NP_INLINE void add(vec acc[ROWS][VECTORS], const element *const *x, size_t k, const uint32_t *weights,
                const int rows, const int vectors, const int alone) {
  words w[VECTORS];
  UNROLL for (int v = 0; v < vectors; v++) w[v] = *(const words *)(weights + v * LANES);
  UNROLL for (int r = 0; r < rows; r++) {
    uint32_t pair = 0;
    memcpy(&pair, x[r] + 2 * k, alone ? sizeof(element) : sizeof pair);
    const words all = pair - (words){0};
    UNROLL for (int v = 0; v < vectors; v++) acc[r][v] = accumulate(acc[r][v], all, w[v]);
  }
}
#else
typedef float element;

NP_INLINE void round_all(const float *in, size_t count, element *out) {
  for (; count >= LANES; count -= LANES, in += LANES, out += LANES) {
    *(words *)out = rounded(*(const words *)in);
  }
  const words rest = rounded(first_words(in, count));
  memcpy(out, &rest, count * sizeof *out);
}

NP_INLINE void add(vec acc[ROWS][VECTORS], const element *const *x, size_t k, const uint32_t *weights,
                const int rows, const int vectors, const int alone) {
  vec w[VECTORS];
  if (!alone) {
    UNROLL for (int v = 0; v < vectors; v++) {
      w[v] = (vec)(*(const words *)(weights + v * LANES) & 0xffff0000u);
    }
    UNROLL for (int r = 0; r < rows; r++) {
      const vec all = x[r][2 * k + 1] - (vec){0};
      UNROLL for (int v = 0; v < vectors; v++) acc[r][v] = multiply_add(all, w[v], acc[r][v]);
    }
  }
  UNROLL for (int v = 0; v < vectors; v++) {
    w[v] = (vec)(*(const words *)(weights + v * LANES) << 16);
  }
  UNROLL for (int r = 0; r < rows; r++) {
    const vec all = x[r][2 * k] - (vec){0};
    UNROLL for (int v = 0; v < vectors; v++) acc[r][v] = multiply_add(all, w[v], acc[r][v]);
  }
}
#endif

/* Output pixels first to first + rows, columns of the panel from `column` on. */
NP_INLINE void tile(const np_bf16_panel *p, size_t first, size_t column, const size_t width,
                 const int rows, const int vectors) {
  const uint32_t *weights = p->panel + column;
  vec acc[ROWS][VECTORS];
  UNROLL for (int r = 0; r < rows; r++) {
    UNROLL for (int v = 0; v < vectors; v++) acc[r][v] = *(const vec *)(weights + v * LANES);
  }
  weights += width;
  const size_t pairs = p->run_length / 2;
  for (size_t q = 0; q < p->run_count; q++) {
    const element *x[ROWS];
    UNROLL for (int r = 0; r < rows; r++) {
      x[r] = (const element *)p->image + p->pixels[first + (size_t)r] + p->runs[q];
    }
    for (size_t k = 0; k < pairs; k++, weights += width) add(acc, x, k, weights, rows, vectors, 0);
    if (p->run_length % 2 != 0) {
      add(acc, x, pairs, weights, rows, vectors, 1);
      weights += width;
    }
  }
  float *out = p->out + first * p->out_stride + column;
  const size_t left = p->columns - column;
  if (p->residual != NULL) {
    const float *added = p->residual + first * p->out_stride + column;
    const size_t size =
        (left < (size_t)vectors * LANES ? left : (size_t)vectors * LANES) * sizeof *out;
    UNROLL for (int r = 0; r < rows; r++) {
      vec others[VECTORS] = {0};
      memcpy(others, added + (size_t)r * p->out_stride, size);
      UNROLL for (int v = 0; v < vectors; v++) acc[r][v] += others[v];
    }
  }
  if (left >= (size_t)vectors * LANES) {
    UNROLL for (int r = 0; r < rows; r++) {
      UNROLL for (int v = 0; v < vectors; v++) {
        *(vec *)(out + (size_t)r * p->out_stride + v * LANES) = clamp(acc[r][v], p->low, p->high);
      }
    }
    return;
  }
  /* An index that is not a constant would keep all accumulators in memory, in the loop above
   * too. */
  UNROLL for (int r = 0; r < rows; r++) {
    vec done[VECTORS];
    UNROLL for (int v = 0; v < vectors; v++) done[v] = clamp(acc[r][v], p->low, p->high);
    memcpy(out + (size_t)r * p->out_stride, done, left * sizeof *out);
  }
}

/* While the accumulators of the tile lie in the L1 cache. */
NP_INLINE void end_tile(const np_bf16_panel *p, size_t first, size_t rows, size_t column,
                     size_t width) {
  const size_t place = first * p->out_stride + column, left = p->columns - column;
  p->end(p->epilogue, p->out + place, p->out_stride,
         p->after == NULL ? NULL : p->after + place, p->out_stride, rows,
         left < width ? left : width);
}

#define TILE_OF(n)                                                \
  case n:                                                         \
    if (n <= ROWS) tile(p, first, column, width, n, vectors);     \
    break;

/* As few tiles as there can be, of about as many rows each. */
NP_INLINE void tiles(const np_bf16_panel *p, size_t column, const size_t width, const int vectors) {
  size_t left = (p->count + ROWS - 1) / ROWS;
  for (size_t first = 0; first < p->count; left--) {
    const size_t rows = (p->count - first + left - 1) / left;
    switch (rows) { NP_CASES_OF_12(TILE_OF) }
    if (p->end != NULL) end_tile(p, first, rows, column, (size_t)vectors * LANES);
    first += rows;
  }
}

static void multiply(const np_bf16_panel *p) {
  if (p->columns > 16) {
    for (size_t column = 0; column < p->columns; column += VECTORS * LANES) {
      tiles(p, column, NP_BF16_COLUMNS, VECTORS);
    }
    return;
  }
#if VECTORS * LANES > 16
  tiles(p, 0, 16, 16 / LANES);
#else
  for (size_t column = 0; column < p->columns; column += VECTORS * LANES) {
    tiles(p, column, 16, VECTORS);
  }
#endif
}

static void round_elements(const void *in, size_t count, int32_t zero, void *out) {
  round_all(in, count, out);
}

const np_bf16_code NP_OF_ISA(np_bf16) = {multiply, round_elements, sizeof(element),
                                        NP_BF16_COLUMNS};
