/* The int8 GEMM micro-kernels for AVX2.
 *
 * vpmaddwd multiplies 16 pairs of int16 and adds them by twos: exact, whatever the operands are.
 * vpmaddubsw would take int8 as they are, and saturates. A tile of 6 output pixels and 16 columns
 * has 12 accumulators, 2 registers of weights, and one of a pair of elements in all of its lanes;
 * the pair comes from memory in one load, so that upcasting the weights is the only work beside
 * multiplying. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>

#include "gemm/int8/panel.h"

#define TARGET __attribute__((target("avx2,fma")))
#define INLINE TARGET static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

INLINE __m256i pair_of(const int16_t *x) {
  int32_t pair;
  memcpy(&pair, x, sizeof pair);
  return _mm256_set1_epi32(pair);
}

/* Sums to integers that are int8 but for their zero point and lower bound; larger ones are cut
 * before they are converted, which makes the least integer of what is too large. */
INLINE __m256i scaled(__m256i acc, __m256 scales, __m256 most) {
  return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(acc), scales), most));
}

/* Scaled accumulators of 16 columns, in the order of np_int8_order, to bytes. */
INLINE __m128i requantized_16(__m256i first, __m256i second, __m256i zero, __m128i low) {
  const __m256i moved = _mm256_adds_epi16(_mm256_packs_epi32(first, second), zero);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(moved), _mm256_extracti128_si256(moved, 1));
  return _mm_max_epi8(bytes, low);
}

/* The same of 8 columns in their order, in the low half of the result. */
INLINE __m128i requantized_8(__m256i x, __m256i zero, __m128i low) {
  const __m128i halves =
      _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  const __m128i moved = _mm_adds_epi16(halves, _mm256_castsi256_si128(zero));
  return _mm_max_epi8(_mm_packs_epi16(moved, moved), low);
}

INLINE void store_bytes(int8_t *out, __m128i bytes, size_t columns) {
  if (columns == 16) {
    _mm_storeu_si128((__m128i *)out, bytes);
    return;
  }
  if (columns >= 8) {
    _mm_storel_epi64((__m128i *)out, bytes);
    bytes = _mm_unpackhi_epi64(bytes, bytes);
    out += 8;
    columns -= 8;
  }
  uint64_t rest = (uint64_t)_mm_cvtsi128_si64(bytes);
  for (; columns > 0; columns--, rest >>= 8) *out++ = (int8_t)rest;
}

INLINE __m256 dequantized(__m256i acc, __m256 row_scale, const float *scales, const float *bias) {
  const __m256 x = _mm256_mul_ps(_mm256_cvtepi32_ps(acc), row_scale);
  return _mm256_fmadd_ps(x, _mm256_load_ps(scales), _mm256_load_ps(bias));
}

/* Elements of 32 bits of all columns, from the order of a panel. */
INLINE void store_columns(float *out, __m256 first, __m256 second, const np_int8_panel *p,
                          const int vectors) {
  if (vectors == 2) {
    const __m256 swapped = _mm256_permute2f128_ps(first, second, 0x31);
    first = _mm256_permute2f128_ps(first, second, 0x20);
    second = swapped;
  }
  if (p->columns == 8 * (size_t)vectors) {
    _mm256_storeu_ps(out, first);
    if (vectors == 2) _mm256_storeu_ps(out + 8, second);
    return;
  }
  float all[NP_INT8_NR];
  _mm256_storeu_ps(all, first);
  _mm256_storeu_ps(all + 8, second);
  memcpy(out, all, p->columns * sizeof *out);
}

INLINE void store_floats(float *out, __m256 first, __m256 second, const np_int8_panel *p,
                         const int vectors) {
  /* In this order NaN stays. */
  const __m256 low = _mm256_set1_ps(p->low), high = _mm256_set1_ps(p->high);
  first = _mm256_min_ps(high, _mm256_max_ps(low, first));
  second = _mm256_min_ps(high, _mm256_max_ps(low, second));
  store_columns(out, first, second, p, vectors);
}

INLINE void tile(const np_int8_panel *p, size_t first, const int rows, const int vectors,
                 const int kind) {
  const int wide = kind == NP_INT8_TO_INT32;
  const float *bias = (const float *)p->panel;
  const float *scales = bias + 8 * vectors;
  const __m128i *weights = (const __m128i *)(wide ? bias : scales + 8 * vectors);
  __m256i acc[NP_INT8_MR][2];
  UNROLL for (int r = 0; r < rows; r++) {
    UNROLL for (int v = 0; v < vectors; v++) {
      acc[r][v] = kind == NP_INT8_TO_INT8 ? _mm256_load_si256((const __m256i *)(bias + 8 * v))
                                          : _mm256_setzero_si256();
    }
  }
  for (size_t q = 0; q < p->run_count; q++) {
    const int16_t *x[NP_INT8_MR];
    UNROLL for (int r = 0; r < rows; r++) {
      x[r] = (const int16_t *)p->image + p->pixels[first + (size_t)r] + p->runs[q];
    }
    for (size_t k = 0; k < p->groups; k++, weights += (wide + 1) * vectors) {
      __m256i w[2];
      UNROLL for (int v = 0; v < vectors; v++) {
        w[v] = wide ? _mm256_load_si256((const __m256i *)weights + v)
                    : _mm256_cvtepi8_epi16(_mm_load_si128(weights + v));
      }
      UNROLL for (int r = 0; r < rows; r++) {
        const __m256i pair = pair_of(x[r] + 2 * k);
        UNROLL for (int v = 0; v < vectors; v++) {
          acc[r][v] = _mm256_add_epi32(acc[r][v], _mm256_madd_epi16(pair, w[v]));
        }
      }
    }
  }
  if (!wide && p->row_sums != NULL) {
    UNROLL for (int r = 0; r < rows; r++) {
      const __m256i given = _mm256_set1_epi32(p->row_sums[first + (size_t)r]);
      UNROLL for (int v = 0; v < vectors; v++) {
        const __m256i zeros = _mm256_loadu_si256((const __m256i *)p->weight_zeros + v);
        acc[r][v] = _mm256_sub_epi32(acc[r][v], _mm256_mullo_epi32(given, zeros));
      }
    }
  }
  if (wide) {
    __m256i *out = (__m256i *)p->out + 2 * first;
    UNROLL for (int r = 0; r < rows; r++) {
      UNROLL for (int v = 0; v < vectors; v++) _mm256_store_si256(out + 2 * r + v, acc[r][v]);
    }
    return;
  }
  if (kind == NP_INT8_TO_FLOAT && p->raw) {
    UNROLL for (int r = 0; r < rows; r++) {
      store_columns((float *)p->out + (first + (size_t)r) * p->out_stride,
                    _mm256_castsi256_ps(acc[r][0]), _mm256_castsi256_ps(acc[r][vectors - 1]), p,
                    vectors);
    }
    return;
  }
  if (kind == NP_INT8_TO_FLOAT) {
    UNROLL for (int r = 0; r < rows; r++) {
      const size_t row = first + (size_t)r;
      const __m256 scale = _mm256_set1_ps(p->row_scales[row]);
      const __m256 a = dequantized(acc[r][0], scale, scales, bias);
      const __m256 b =
          vectors == 2 ? dequantized(acc[r][vectors - 1], scale, scales + 8, bias + 8) : a;
      store_floats((float *)p->out + row * p->out_stride, a, b, p, vectors);
    }
    return;
  }
  const __m256 most = _mm256_set1_ps((float)(p->range.high - p->range.zero));
  const __m256i zero = _mm256_set1_epi16((int16_t)p->range.zero);
  const __m128i low = _mm_set1_epi8((int8_t)p->range.low);
  const size_t columns = p->columns, out_stride = p->out_stride;
  int8_t *out = (int8_t *)p->out + first * out_stride;
  UNROLL for (int r = 0; r < rows; r++) {
    UNROLL for (int v = 0; v < vectors; v++) {
      acc[r][v] = scaled(acc[r][v], _mm256_load_ps(scales + 8 * v), most);
    }
    const __m128i bytes = vectors == 2 ? requantized_16(acc[r][0], acc[r][vectors - 1], zero, low)
                                       : requantized_8(acc[r][0], zero, low);
    store_bytes(out, bytes, columns);
    out += out_stride;
  }
}

INLINE void tiles(const np_int8_panel *p, const int vectors, const int kind) {
  size_t first = 0;
  for (; first + 6 <= p->count; first += 6) tile(p, first, 6, vectors, kind);
  const size_t left = p->count - first;
  if (left == 5) tile(p, first, 5, vectors, kind);
  if (left == 4) tile(p, first, 4, vectors, kind);
  if (left == 3) tile(p, first, 3, vectors, kind);
  if (left == 2) tile(p, first, 2, vectors, kind);
  if (left == 1) tile(p, first, 1, vectors, kind);
}

TARGET static void multiply(const np_int8_panel *p) {
  const int wide = p->columns > 8;
  if (p->kind == NP_INT8_TO_INT32) {
    tiles(p, 2, NP_INT8_TO_INT32);
  } else if (p->kind == NP_INT8_TO_FLOAT) {
    wide ? tiles(p, 2, NP_INT8_TO_FLOAT) : tiles(p, 1, NP_INT8_TO_FLOAT);
  } else {
    wide ? tiles(p, 2, NP_INT8_TO_INT8) : tiles(p, 1, NP_INT8_TO_INT8);
  }
}

/* Output pixels of 16 channels; see np_int8_depthwise_tile. Half of the channels are accumulated
 * before the others: so more output pixels share the weights that are loaded. Width and steps may
 * be constants. */
INLINE void output_pixels(const np_int8_depthwise_tile *b, size_t first, const int count,
                          const size_t width, const size_t step, const size_t column_stride) {
  const __m256i *bias = (const __m256i *)b->head;
  const float *scales = (const float *)b->head + NP_INT8_NR;
  const __m256 most = _mm256_set1_ps((float)(b->range.high - b->range.zero));
  const size_t pairs = b->pairs, pair_stride = b->pair_stride;
  __m256i halves[2][4];
  UNROLL for (int v = 0; v < 2; v++) {
    const __m256i *weights = (const __m256i *)b->weights + v;
    const int16_t *row = b->image + first * step + v * NP_INT8_NR;
    __m256i acc[4];
    UNROLL for (int i = 0; i < count; i++) acc[i] = _mm256_load_si256(bias + v);
    for (size_t j = 0; j < pairs; j++, row += pair_stride, weights += 2 * width) {
      UNROLL for (size_t k = 0; k < width; k++) {
        const __m256i w = _mm256_load_si256(weights + 2 * k);
        UNROLL for (int i = 0; i < count; i++) {
          const int16_t *x = row + k * column_stride + (size_t)i * step;
          const __m256i products = _mm256_madd_epi16(w, _mm256_load_si256((const __m256i *)x));
          acc[i] = _mm256_add_epi32(acc[i], products);
        }
      }
    }
    const __m256 scale = _mm256_load_ps(scales + 8 * v);
    UNROLL for (int i = 0; i < count; i++) halves[v][i] = scaled(acc[i], scale, most);
  }
  const __m256i zero = _mm256_set1_epi16((int16_t)b->range.zero);
  const __m128i low = _mm_set1_epi8((int8_t)b->range.low);
  const size_t columns = b->columns, out_stride = b->out_stride;
  int8_t *out = b->out + first * out_stride;
  UNROLL for (int i = 0; i < count; i++, out += out_stride) {
    store_bytes(out, requantized_16(halves[0][i], halves[1][i], zero, low), columns);
  }
}

INLINE void pixel_row(const np_int8_depthwise_tile *b, const size_t width, const size_t step,
                      const size_t column_stride) {
  size_t i = 0;
  for (; i + 4 <= b->count; i += 4) output_pixels(b, i, 4, width, step, column_stride);
  for (; i + 2 <= b->count; i += 2) output_pixels(b, i, 2, width, step, column_stride);
  if (i < b->count) output_pixels(b, i, 1, width, step, column_stride);
}

TARGET static void depthwise(const np_int8_depthwise_tile *b) {
  const int dense = b->width == 3 && b->column_stride == NP_INT8_PAIR;
  if (dense && b->step == NP_INT8_PAIR) {
    pixel_row(b, 3, NP_INT8_PAIR, NP_INT8_PAIR);
  } else if (dense && b->step == 2 * NP_INT8_PAIR) {
    pixel_row(b, 3, 2 * NP_INT8_PAIR, NP_INT8_PAIR);
  } else {
    pixel_row(b, b->width, b->step, b->column_stride);
  }
}

TARGET static void upcast(const int8_t *in, size_t count, int32_t zero, void *wide) {
  int16_t *out = wide;
  const __m256i away = _mm256_set1_epi16((int16_t)zero);
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(in + i)));
    _mm256_storeu_si256((__m256i *)(out + i), _mm256_sub_epi16(x, away));
  }
  for (; i < count; i++) out[i] = (int16_t)(in[i] - zero);
}

/* Bytes in the order of a panel. */
INLINE __m128i pixel_of(const int8_t *in, size_t columns) {
  __m128i bytes;
  if (columns == NP_INT8_NR) {
    bytes = _mm_loadu_si128((const __m128i *)in);
  } else {
    int8_t some[NP_INT8_NR] = {0};
    memcpy(some, in, columns);
    bytes = _mm_loadu_si128((const __m128i *)some);
  }
  return _mm_shuffle_epi32(bytes, 0xd8);
}

TARGET static void interleave_pairs(const int8_t *upper, const int8_t *lower, size_t stride,
                                    size_t count, size_t columns, int32_t zero, int16_t *out) {
  const __m256i away = _mm256_set1_epi16((int16_t)zero);
  const __m128i nothing = _mm_set1_epi8((int8_t)zero);
  for (size_t i = 0; i < count; i++, out += NP_INT8_PAIR) {
    const __m128i a = upper == NULL ? nothing : pixel_of(upper + i * stride, columns);
    const __m128i b = lower == NULL ? nothing : pixel_of(lower + i * stride, columns);
    const __m256i first = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b));
    const __m256i second = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b));
    _mm256_store_si256((__m256i *)out, _mm256_sub_epi16(first, away));
    _mm256_store_si256((__m256i *)out + 1, _mm256_sub_epi16(second, away));
  }
}

/* Of four elements, those that a transformed tile has in their place. */
#define TURN(a, b, c, d, add, sub)                                     \
  do {                                                                 \
    const __m256i ac = sub(a, c), bc = add(b, c), cb = sub(c, b);      \
    d = sub(b, d), a = ac, b = bc, c = cb;                             \
  } while (0)

TARGET static void transform(const int16_t *wide, size_t row_stride, size_t channels,
                             size_t stride, int16_t *out) {
  for (size_t channel = 0; channel < channels; channel += 16) {
    __m256i x[4][4];
    UNROLL for (size_t i = 0; i < 4; i++) {
      UNROLL for (size_t j = 0; j < 4; j++) {
        const int16_t *from = wide + i * row_stride + j * channels + channel;
        x[i][j] = _mm256_loadu_si256((const __m256i *)from);
      }
      TURN(x[i][0], x[i][1], x[i][2], x[i][3], _mm256_add_epi16, _mm256_sub_epi16);
    }
    UNROLL for (size_t j = 0; j < 4; j++) {
      TURN(x[0][j], x[1][j], x[2][j], x[3][j], _mm256_add_epi16, _mm256_sub_epi16);
      UNROLL for (size_t i = 0; i < 4; i++) {
        _mm256_storeu_si256((__m256i *)(out + (4 * i + j) * stride + channel), x[i][j]);
      }
    }
  }
}

TARGET static void finish(const np_int8_winograd_tile *t) {
  const __m256i *bias = (const __m256i *)t->head;
  const float *scales = (const float *)t->head + NP_INT8_NR;
  const __m256 most = _mm256_set1_ps((float)(t->range.high - t->range.zero));
  __m256i all[2][2][2];
  UNROLL for (int v = 0; v < 2; v++) {
    __m256i rows[4][2];
    UNROLL for (size_t i = 0; i < 4; i++) {
      __m256i x[4];
      UNROLL for (size_t j = 0; j < 4; j++) {
        x[j] = _mm256_load_si256((const __m256i *)(t->acc + (4 * i + j) * t->stride) + v);
      }
      rows[i][0] = _mm256_add_epi32(_mm256_add_epi32(x[0], x[1]), x[2]);
      rows[i][1] = _mm256_sub_epi32(_mm256_sub_epi32(x[1], x[2]), x[3]);
    }
    const __m256 scale = _mm256_load_ps(scales + 8 * v);
    UNROLL for (int j = 0; j < 2; j++) {
      const __m256i upper = _mm256_add_epi32(_mm256_add_epi32(rows[0][j], rows[1][j]), rows[2][j]);
      const __m256i lower = _mm256_sub_epi32(_mm256_sub_epi32(rows[1][j], rows[2][j]), rows[3][j]);
      all[0][j][v] = scaled(_mm256_add_epi32(_mm256_srai_epi32(upper, 2), bias[v]), scale, most);
      all[1][j][v] = scaled(_mm256_add_epi32(_mm256_srai_epi32(lower, 2), bias[v]), scale, most);
    }
  }
  const __m256i zero = _mm256_set1_epi16((int16_t)t->range.zero);
  const __m128i low = _mm_set1_epi8((int8_t)t->range.low);
  UNROLL for (size_t i = 0; i < 2; i++) {
    UNROLL for (size_t j = 0; j < 2; j++) {
      if (i < t->rows && j < t->columns) {
        int8_t *out = t->out + i * t->row_stride + j * t->column_stride;
        _mm_storeu_si128((__m128i *)out, requantized_16(all[i][j][0], all[i][j][1], zero, low));
      }
    }
  }
}

TARGET static float quantize(const float *row, size_t count, void *out, int32_t *zero) {
  *zero = 0;
  return np_int8_quantize_loop(row, count, out);
}

const np_int8_micro_kernels np_int8_avx2 = {
    .element = sizeof(int16_t),
    .group = 2,
    .columns = NP_INT8_NR,
    .most = NP_INT8_NR,
    .panel_size = np_int8_pair_panel_size,
    .packed_size = np_int8_packed_size,
    .multiply = multiply,
    .upcast = upcast,
    .quantize = quantize,
    .depthwise = depthwise,
    .interleave_pairs = interleave_pairs,
    .transform = transform,
    .finish = finish,
};

#endif
