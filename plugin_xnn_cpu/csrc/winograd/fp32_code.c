/* The transformations of Winograd's algorithm for one instruction set; see winograd/fp32.c. */
#include "simd/f32.h"
#include "winograd/fp32_tile.h"

#define MOST 6 /* elements along an axis */

NP_INLINE vec add_scaled(const float factor, vec x, vec y) {
  return multiply_add(broadcast(factor), x, y);
}

/* The input transform (Bᵀ d) along one axis; elements of d and v are `from` and `to` apart. */
NP_INLINE void transform_input_axis(const int tile, const vec *d, const int from, vec *v,
                                   const int to) {
  if (tile == 2) {
    v[0] = d[2 * from] - d[0];
    v[to] = d[2 * from] + d[from];
    v[2 * to] = d[2 * from] - d[from];
    v[3 * to] = d[3 * from] - d[from];
    return;
  }
  const float a = NP_WINOGRAD_NEAR, b = NP_WINOGRAD_FAR;
  const vec even_a = add_scaled(-b * b, d[2 * from], d[4 * from]);
  const vec odd_a = add_scaled(-b * b, d[from], d[3 * from]);
  const vec even_b = add_scaled(-a * a, d[2 * from], d[4 * from]);
  const vec odd_b = add_scaled(-a * a, d[from], d[3 * from]);
  const float both = a * a + b * b, scale = a * a * b * b;
  v[0] = add_scaled(scale, d[0], add_scaled(-both, d[2 * from], d[4 * from]));
  v[to] = add_scaled(a, odd_a, even_a);
  v[2 * to] = add_scaled(-a, odd_a, even_a);
  v[3 * to] = add_scaled(b, odd_b, even_b);
  v[4 * to] = add_scaled(-b, odd_b, even_b);
  v[5 * to] = add_scaled(scale, d[from], add_scaled(-both, d[3 * from], d[5 * from]));
}

/* The output transform (Aᵀ m) along one axis. */
NP_INLINE void transform_output_axis(const int tile, const vec *m, const int from, vec *y,
                                    const int to) {
  const vec plus_a = m[from] + m[2 * from], minus_a = m[from] - m[2 * from];
  if (tile == 2) {
    y[0] = m[0] + plus_a;
    y[to] = minus_a + m[3 * from];
    return;
  }
  const float a = NP_WINOGRAD_NEAR, b = NP_WINOGRAD_FAR;
  const vec plus_b = m[3 * from] + m[4 * from], minus_b = m[3 * from] - m[4 * from];
  y[0] = m[0] + (plus_a + plus_b);
  y[to] = add_scaled(a, minus_a, b * minus_b);
  y[2 * to] = add_scaled(a * a, plus_a, b * b * plus_b);
  y[3 * to] = add_scaled(a * a * a, minus_a, add_scaled(b * b * b, minus_b, m[5 * from]));
}

NP_INLINE void transform_vector(const int tile, const float *const *pixels, size_t at,
                                  size_t count, float *to, size_t stride) {
  const int size = tile + 2;
  vec half[MOST * MOST];
  UNROLL for (int i = 0; i < size; i++) {
    vec d[MOST];
    UNROLL for (int j = 0; j < size; j++) d[j] = load_some(pixels[i * size + j] + at, count);
    transform_input_axis(tile, d, 1, half + i * size, 1);
  }
  UNROLL for (int j = 0; j < size; j++) {
    vec v[MOST];
    transform_input_axis(tile, half + j, size, v, 1);
    UNROLL for (int i = 0; i < size; i++) {
      *(vec *)(to + (size_t)(i * size + j) * stride + at) = v[i];
    }
  }
}

NP_INLINE void transform(const int tile, const float *const *pixels, size_t channels, float *to,
                           size_t stride) {
  size_t at = 0;
  for (; at + LANES <= channels; at += LANES) {
    transform_vector(tile, pixels, at, LANES, to, stride);
  }
  if (at < channels) transform_vector(tile, pixels, at, channels - at, to, stride);
}

NP_INLINE void finish_vector(const int tile, const np_winograd_tile *p, size_t at,
                               size_t count) {
  const int size = tile + 2;
  vec half[4 * MOST];
  UNROLL for (int j = 0; j < size; j++) {
    vec m[MOST];
    UNROLL for (int i = 0; i < size; i++) {
      m[i] = *(const vec *)(p->acc + (size_t)(i * size + j) * p->stride + at);
    }
    transform_output_axis(tile, m, 1, half + j, size);
  }
  const vec bias = *(const vec *)(p->bias + at);
  UNROLL for (int i = 0; i < tile; i++) {
    if ((size_t)i >= p->rows) break;
    vec y[4];
    transform_output_axis(tile, half + i * size, 1, y, 1);
    UNROLL for (int j = 0; j < tile; j++) {
      if ((size_t)j >= p->pixels) break;
      const size_t place = (size_t)i * p->row_stride + (size_t)j * p->pixel_stride + at;
      vec x = y[j] + bias;
      if (p->residual != NULL) x += load_some(p->residual + place, count);
      store_some(p->out + place, clamp(x, p->low, p->high), count);
    }
  }
}

NP_INLINE void finish(const int tile, const np_winograd_tile *p) {
  size_t at = 0;
  for (; at + LANES <= p->columns; at += LANES) finish_vector(tile, p, at, LANES);
  if (at < p->columns) finish_vector(tile, p, at, p->columns - at);
}

#define NP_TILE_OF(size)                                                               \
  static void transform_##size(const float *const *pixels, size_t channels, float *to, \
                               size_t stride) {                                        \
    transform(size, pixels, channels, to, stride);                                     \
  }                                                                                    \
  static void finish_##size(const np_winograd_tile *tile) { finish(size, tile); }
NP_TILE_OF(2)
NP_TILE_OF(4)

const np_winograd_code NP_OF_ISA(np_winograd) = {{transform_2, transform_4}, {finish_2, finish_4}};
