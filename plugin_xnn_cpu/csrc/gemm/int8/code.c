/* The int8 GEMM micro-kernels of the 2-way interleaved layout, for one instruction set.
 *
 * vpmaddwd multiplies pairs of int16 and adds them: exact, whatever the operands are. vpmaddubsw
 * would take int8 as they are, and saturates. With AVX2 a tile of 6 output pixels and 16 columns
 * has 12 accumulators, 2 registers of weights, and one of a pair of elements in all of its lanes;
 * the pair comes from memory in one load, so that upcasting the weights is the only work beside
 * multiplying. */
#include <math.h>

#include "gemm/int8/panel.h"
#include "simd/i16.h"

#define VECTORS (NP_INT8_NR / LANES) /* of a panel; half as many of a narrow one */
#define ROWS (LANES == 8 ? NP_INT8_MR : 2)

/* Scaled accumulators are int8 but for their zero point. */
#if LANES == 8
#include "gemm/int8/requantize_avx2.h"
#else
typedef struct {
  float least, most;
  int32_t zero;
} limits;

NP_INLINE limits limits_of(np_int8_range range) {
  return (limits){(float)(range.low - range.zero), (float)(range.high - range.zero), range.zero};
}

NP_INLINE ivec scaled(uvec acc, vec scales, const limits *l) {
  const vec x = smaller(to_floats(acc) * scales, broadcast(l->most));
  return to_integers(larger(x, broadcast(l->least)));
}

/* The column that lane n of a panel of so many vectors has. */
NP_INLINE size_t column_of(size_t n, const int vectors) {
  return vectors == VECTORS ? np_int8_order[n] : n;
}

NP_INLINE void store_scaled(int8_t *out, const ivec *x, const int vectors, const limits *l,
                            size_t columns) {
  for (size_t n = 0; n < (size_t)vectors * LANES; n++) {
    const size_t column = column_of(n, vectors);
    if (column < columns) out[column] = (int8_t)(x[n / LANES][n % LANES] + l->zero);
  }
}

NP_INLINE void store_columns(float *out, const vec *x, const int vectors, size_t columns) {
  for (size_t n = 0; n < (size_t)vectors * LANES; n++) {
    const size_t column = column_of(n, vectors);
    if (column < columns) memcpy(&out[column], (const float *)x + n, sizeof *out);
  }
}

NP_INLINE void interleave_pairs(const int8_t *const *rows, size_t stride, size_t count,
                                size_t columns, int32_t zero, int16_t *out) {
  for (size_t i = 0; i < count * stride; i += stride, out += NP_INT8_PAIR) {
    for (size_t n = 0; n < NP_INT8_PAIR; n++) {
      const size_t column = np_int8_order[n / 2];
      const int inside = column < columns && rows[n % 2] != NULL;
      out[n] = (int16_t)(inside ? rows[n % 2][i + column] - zero : 0);
    }
  }
}
#endif

NP_INLINE void tile(const np_int8_panel *p, size_t first, const int rows, const int vectors,
                    const int kind) {
  const int wide = kind == NP_INT8_TO_INT32;
  const float *bias = (const float *)(const void *)p->panel, *scales = bias + LANES * vectors;
  const int8_t *weights = (const int8_t *)(wide ? bias : scales + LANES * vectors);
  const int bytes = (wide ? 4 : 2) * LANES; /* of a vector of weights */
  uvec acc[ROWS][VECTORS];
  UNROLL for (int r = 0; r < rows; r++) {
    UNROLL for (int v = 0; v < vectors; v++) {
      acc[r][v] = kind == NP_INT8_TO_INT8 ? *(const uvec *)(bias + LANES * v) : (uvec){0};
    }
  }
  for (size_t q = 0; q < p->run_count; q++) {
    const int16_t *x[ROWS];
    UNROLL for (int r = 0; r < rows; r++) {
      x[r] = (const int16_t *)p->image + p->pixels[first + (size_t)r] + p->runs[q];
    }
    for (size_t k = 0; k < p->groups; k++, weights += bytes * vectors) {
      pairs w[VECTORS];
      UNROLL for (int v = 0; v < vectors; v++) {
        w[v] = wide ? *(const pairs *)(const void *)(weights + bytes * v)
                    : load_bytes(weights + bytes * v);
      }
      UNROLL for (int r = 0; r < rows; r++) {
        const pairs pair = broadcast_pair(x[r] + 2 * k);
        UNROLL for (int v = 0; v < vectors; v++) acc[r][v] += multiply_pairs(pair, w[v]);
      }
    }
  }
  if (!wide && p->row_sums != NULL) {
    UNROLL for (int r = 0; r < rows; r++) {
      const uvec sum = broadcast_int(p->row_sums[first + (size_t)r]);
      UNROLL for (int v = 0; v < vectors; v++) {
        acc[r][v] -= sum * *(const uvec *)(p->weight_zeros + LANES * v);
      }
    }
  }
  if (wide) {
    int32_t *out = (int32_t *)p->out + NP_INT8_NR * first;
    UNROLL for (int r = 0; r < rows; r++) {
      UNROLL for (int v = 0; v < vectors; v++) {
        *(uvec *)(out + NP_INT8_NR * r + LANES * v) = acc[r][v];
      }
    }
    return;
  }
  if (kind == NP_INT8_TO_FLOAT && p->raw) {
    UNROLL for (int r = 0; r < rows; r++) {
      float *out = (float *)p->out + (first + (size_t)r) * p->out_stride;
      store_columns(out, (const vec *)acc[r], vectors, p->columns);
    }
    return;
  }
  if (kind == NP_INT8_TO_FLOAT) {
    UNROLL for (int r = 0; r < rows; r++) {
      const size_t row = first + (size_t)r;
      vec x[VECTORS];
      UNROLL for (int v = 0; v < vectors; v++) {
        const vec sum = to_floats(acc[r][v]) * p->row_scales[row];
        x[v] = multiply_add(sum, load(scales + LANES * v), load(bias + LANES * v));
        x[v] = clamp(x[v], p->low, p->high);
      }
      store_columns((float *)p->out + row * p->out_stride, x, vectors, p->columns);
    }
    return;
  }
  const limits l = limits_of(p->range);
  const size_t columns = p->columns, out_stride = p->out_stride;
  int8_t *out = (int8_t *)p->out + first * out_stride;
  UNROLL for (int r = 0; r < rows; r++, out += out_stride) {
    ivec x[VECTORS];
    UNROLL for (int v = 0; v < vectors; v++) x[v] = scaled(acc[r][v], load(scales + LANES * v), &l);
    store_scaled(out, x, vectors, &l, columns);
  }
}

NP_INLINE void tiles(const np_int8_panel *p, const int vectors, const int kind) {
  size_t first = 0;
  for (; first + ROWS <= p->count; first += ROWS) tile(p, first, ROWS, vectors, kind);
#define NP_CASE(rows) \
  case rows: if (rows < ROWS) tile(p, first, rows, vectors, kind); break;
  switch (p->count - first) { NP_CASE(1) NP_CASE(2) NP_CASE(3) NP_CASE(4) NP_CASE(5) }
#undef NP_CASE
}

static void multiply(const np_int8_panel *p) {
  const int wide = p->columns > 8;
  if (p->kind == NP_INT8_TO_INT32) {
    tiles(p, VECTORS, NP_INT8_TO_INT32);
  } else if (p->kind == NP_INT8_TO_FLOAT) {
    wide ? tiles(p, VECTORS, NP_INT8_TO_FLOAT) : tiles(p, VECTORS / 2, NP_INT8_TO_FLOAT);
  } else {
    wide ? tiles(p, VECTORS, NP_INT8_TO_INT8) : tiles(p, VECTORS / 2, NP_INT8_TO_INT8);
  }
}

/* Output pixels of 16 channels; see np_int8_depthwise_tile. Each vector of channels is accumulated
 * before the next: so more output pixels share the weights that are loaded. Width and steps may be
 * constants. */
NP_INLINE void output_pixels(const np_int8_depthwise_tile *b, size_t first, const int count,
                             const size_t width, const size_t step, const size_t column_stride) {
  const float *bias = (const float *)(const void *)b->head, *scales = bias + NP_INT8_NR;
  const size_t row_pairs = b->groups, pair_stride = b->group_stride;
  const limits l = limits_of(b->range);
  ivec x[4][VECTORS];
  UNROLL for (int v = 0; v < VECTORS; v++) {
    const int16_t *weights = (const int16_t *)(const void *)b->weights + 2 * LANES * v;
    const int16_t *row = (const int16_t *)b->image + first * step + 2 * LANES * v;
    uvec acc[4];
    UNROLL for (int i = 0; i < count; i++) acc[i] = *(const uvec *)(bias + LANES * v);
    for (size_t j = 0; j < row_pairs; j++, row += pair_stride, weights += NP_INT8_PAIR * width) {
      _Pragma("GCC unroll 8") for (size_t k = 0; k < width; k++) {
        const pairs w = *(const pairs *)(weights + NP_INT8_PAIR * k);
        UNROLL for (int i = 0; i < count; i++) {
          acc[i] += multiply_pairs(w, *(const pairs *)(row + k * column_stride + (size_t)i * step));
        }
      }
    }
    UNROLL for (int i = 0; i < count; i++) x[i][v] = scaled(acc[i], load(scales + LANES * v), &l);
  }
  int8_t *out = b->out + first * b->out_stride;
  UNROLL for (int i = 0; i < count; i++) {
    store_scaled(out + (size_t)i * b->out_stride, x[i], VECTORS, &l, b->columns);
  }
}

NP_INLINE void pixel_row(const np_int8_depthwise_tile *b, const size_t width, const size_t step,
                         const size_t column_stride) {
  size_t i = 0;
  for (; i + 4 <= b->count; i += 4) output_pixels(b, i, 4, width, step, column_stride);
  for (; i + 2 <= b->count; i += 2) output_pixels(b, i, 2, width, step, column_stride);
  if (i < b->count) output_pixels(b, i, 1, width, step, column_stride);
}

static void depthwise(const np_int8_depthwise_tile *b) {
  const int dense = b->width == 3 && b->column_stride == NP_INT8_PAIR;
  if (dense && b->step == NP_INT8_PAIR) {
    pixel_row(b, 3, NP_INT8_PAIR, NP_INT8_PAIR);
  } else if (dense && b->step == 2 * NP_INT8_PAIR) {
    pixel_row(b, 3, 2 * NP_INT8_PAIR, NP_INT8_PAIR);
  } else {
    pixel_row(b, b->width, b->step, b->column_stride);
  }
}

static void interleave(const int8_t *const *rows, size_t stride, size_t count, size_t columns,
                       int32_t zero, uint8_t out_xor, void *out) {
  interleave_pairs(rows, stride, count, columns, zero, out);
}

static void upcast(const void *pixels, size_t count, int32_t zero, void *wide) {
  const int8_t *in = pixels;
  int16_t *out = wide;
  const int16_t offset = (int16_t)zero;
  size_t i = 0;
  for (; i + 2 * LANES <= count; i += 2 * LANES) *(pairs *)(out + i) = load_bytes(in + i) - offset;
  for (; i < count; i++) out[i] = (int16_t)(in[i] - offset);
}

/* Four elements along an axis of a tile, transformed in place. */
#define TRANSFORM(a, b, c, d)                                \
  do {                                                       \
    const pairs ac = a - c, bc = b + c, cb = c - b;          \
    d = b - d, a = ac, b = bc, c = cb;                       \
  } while (0)

static void transform(const int16_t *wide, size_t row_stride, size_t channels, size_t stride,
                      int16_t *out) {
  for (size_t channel = 0; channel < channels; channel += 2 * LANES) {
    pairs x[4][4];
    UNROLL for (size_t i = 0; i < 4; i++) {
      UNROLL for (size_t j = 0; j < 4; j++) {
        x[i][j] = *(const pairs *)(wide + i * row_stride + j * channels + channel);
      }
      TRANSFORM(x[i][0], x[i][1], x[i][2], x[i][3]);
    }
    UNROLL for (size_t j = 0; j < 4; j++) {
      TRANSFORM(x[0][j], x[1][j], x[2][j], x[3][j]);
      UNROLL for (size_t i = 0; i < 4; i++) {
        *(pairs *)(out + (4 * i + j) * stride + channel) = x[i][j];
      }
    }
  }
}

static void finish(const np_int8_winograd_tile *t) {
  const float *head = (const float *)(const void *)t->head;
  const limits l = limits_of(t->range);
  ivec x[2][2][VECTORS];
  UNROLL for (int v = 0; v < VECTORS; v++) {
    uvec rows[4][2];
    UNROLL for (size_t i = 0; i < 4; i++) {
      uvec a[4];
      UNROLL for (size_t j = 0; j < 4; j++) {
        a[j] = *(const uvec *)(t->acc + (4 * i + j) * t->stride + LANES * v);
      }
      rows[i][0] = a[0] + a[1] + a[2];
      rows[i][1] = a[1] - a[2] - a[3];
    }
    const uvec bias = *(const uvec *)(head + LANES * v);
    const vec scale = load(head + NP_INT8_NR + LANES * v);
    UNROLL for (int j = 0; j < 2; j++) {
      const uvec upper = rows[0][j] + rows[1][j] + rows[2][j];
      const uvec lower = rows[1][j] - rows[2][j] - rows[3][j];
      x[0][j][v] = scaled((uvec)((ivec)upper >> 2) + bias, scale, &l);
      x[1][j][v] = scaled((uvec)((ivec)lower >> 2) + bias, scale, &l);
    }
  }
  UNROLL for (size_t i = 0; i < 2; i++) {
    UNROLL for (size_t j = 0; j < 2; j++) {
      if (i >= t->rows || j >= t->columns) continue;
      store_scaled(t->out + i * t->row_stride + j * t->column_stride, x[i][j], VECTORS, &l,
                   NP_INT8_NR);
    }
  }
}

static float quantize(const float *row, size_t count, void *out, int32_t *zero) {
  *zero = 0;
  return np_int8_quantize_loop(row, count, out);
}

const np_int8_micro_kernels NP_OF_ISA(np_int8) = {
    .element = sizeof(int16_t),
    .group = 2,
    .columns = NP_INT8_NR,
    .most = NP_INT8_NR,
    .multiply = multiply,
    .upcast = upcast,
    .quantize = quantize,
    .depthwise = depthwise,
    .interleave = interleave,
    .transform = transform,
    .finish = finish,
};
