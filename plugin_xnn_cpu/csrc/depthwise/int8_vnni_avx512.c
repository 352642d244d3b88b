/* Depthwise convolutions of the 4-way interleaved (VNNI) layout for AVX-512 with VNNI. */
#include "gemm/int8/vnni_avx512.h"

void np_int8_vnni_interleave_avx512(const int8_t *const *rows, size_t stride, size_t count,
                                    size_t columns, int32_t zero, uint8_t out_xor, void *to) {
  uint8_t *out = to;
  const __mmask64 mask = mask_of(columns);
  const __m512i bits = _mm512_set1_epi8((char)out_xor), nothing = _mm512_set1_epi8((char)zero);
  for (size_t x = 0; x < count; x++, out += NP_INT8_VNNI_PIXEL) {
    __m512i r[4];
    UNROLL for (int i = 0; i < 4; i++) {
      r[i] = nothing;
      if (rows[i] != NULL) {
        const __m512i bytes = _mm512_maskz_loadu_epi8(mask, rows[i] + x * stride);
        r[i] = _mm512_xor_si512(bytes, bits);
      }
    }
    const __m512i a = _mm512_unpacklo_epi8(r[0], r[1]), b = _mm512_unpackhi_epi8(r[0], r[1]);
    const __m512i c = _mm512_unpacklo_epi8(r[2], r[3]), d = _mm512_unpackhi_epi8(r[2], r[3]);
    _mm512_store_si512(out, _mm512_unpacklo_epi16(a, c));
    _mm512_store_si512(out + 64, _mm512_unpackhi_epi16(a, c));
    _mm512_store_si512(out + 128, _mm512_unpacklo_epi16(b, d));
    _mm512_store_si512(out + 192, _mm512_unpackhi_epi16(b, d));
  }
}

/* How the accumulators of 64 channels are requantized. */
typedef struct {
  __m512i start[4];
  __m512 scales[4];
  __m512 most;
  __m512i zero, low, high, out_xor;
  __mmask64 mask;
} requantization;

/* Also returns whether no scaled accumulator of `terms` terms is too large to be converted. */
NP_INLINE int start_block(const np_int8_depthwise_tile *b, size_t terms, requantization *n) {
  const int32_t *bias = (const int32_t *)(const void *)b->head;
  const float *factors = (const float *)(const void *)(bias + NP_INT8_VNNI_CHANNELS);
  const int32_t *column_sums = bias + 2 * NP_INT8_VNNI_CHANNELS;
  const __m512i from_zero = _mm512_set1_epi32(b->zero);
  const __m512 most_of_acc = _mm512_set1_ps((float)terms * 127.0f * 256.0f);
  int small = 1;
  UNROLL for (int v = 0; v < 4; v++) {
    const __m512i sum = _mm512_load_si512(column_sums + LANES * v);
    const __m512i added = _mm512_load_si512(bias + LANES * v);
    n->start[v] = _mm512_sub_epi32(added, _mm512_mullo_epi32(sum, from_zero));
    n->scales[v] = _mm512_load_ps(factors + LANES * v);
    const __m512 most = _mm512_add_ps(_mm512_abs_ps(_mm512_cvtepi32_ps(added)), most_of_acc);
    small &= _mm512_cmp_ps_mask(_mm512_mul_ps(most, n->scales[v]), _mm512_set1_ps(0x1p30f),
                                _CMP_GE_OQ) == 0;
  }
  n->most = _mm512_set1_ps((float)(b->range.high - b->range.zero));
  n->zero = _mm512_set1_epi16((int16_t)b->range.zero);
  n->low = _mm512_set1_epi8((int8_t)b->range.low);
  n->high = _mm512_set1_epi8((int8_t)b->range.high);
  n->out_xor = _mm512_set1_epi8((int8_t)b->out_xor);
  n->mask = mask_of(b->columns);
  return small;
}

NP_INLINE void store_requantized(const requantization *n, const __m512i *acc, const int small,
                              int8_t *out) {
  __m512i x[4];
  UNROLL for (int v = 0; v < 4; v++) {
    x[v] = small ? _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(acc[v]), n->scales[v]))
                 : scaled(acc[v], n->scales[v], n->most);
  }
  const __m512i first = _mm512_adds_epi16(_mm512_packs_epi32(x[0], x[1]), n->zero);
  const __m512i second = _mm512_adds_epi16(_mm512_packs_epi32(x[2], x[3]), n->zero);
  const __m512i bytes = _mm512_max_epi8(_mm512_packs_epi16(first, second), n->low);
  const __m512i cut = _mm512_min_epi8(bytes, n->high);
  _mm512_mask_storeu_epi8(out, n->mask, _mm512_xor_si512(cut, n->out_xor));
}

NP_INLINE void any_kernel(const np_int8_depthwise_tile *b, const requantization *n,
                       const int small) {
  const uint8_t *weights = b->weights;
  for (size_t i = 0; i < b->count; i++) {
    __m512i acc[4];
    UNROLL for (int v = 0; v < 4; v++) acc[v] = n->start[v];
    const uint8_t *w = weights;
    for (size_t j = 0; j < b->groups; j++) {
      const uint8_t *x = (const uint8_t *)b->image + i * b->step + j * b->group_stride;
      for (size_t k = 0; k < b->width; k++, x += b->column_stride, w += NP_INT8_VNNI_PIXEL) {
        UNROLL for (int v = 0; v < 4; v++) {
          acc[v] = _mm512_dpbusd_epi32(acc[v], _mm512_load_si512(x + 64 * v),
                                       _mm512_load_si512(w + 64 * v));
        }
      }
    }
    store_requantized(n, acc, small, b->out + i * b->out_stride);
  }
}

/* Kernels of up to 4 rows and 3 columns, whose weights stay in registers. */
NP_INLINE void three_columns(const np_int8_depthwise_tile *b, const requantization *n) {
  const uint8_t *weights = b->weights;
  const requantization kept = *n;
  const size_t step = b->step, column_stride = b->column_stride, out_stride = b->out_stride;
  const uint8_t *x = b->image;
  int8_t *out = b->out;
  const __m128i moved = _mm_cvtsi32_si128(b->lower ? 8 : 0);
  __m512i w[3][4];
  UNROLL for (int k = 0; k < 3; k++) {
    UNROLL for (int v = 0; v < 4; v++) {
      const __m512i upper = _mm512_load_si512(weights + k * NP_INT8_VNNI_PIXEL + 64 * v);
      w[k][v] = _mm512_sll_epi32(upper, moved);
    }
  }
  for (size_t i = 0; i < b->count; i++, x += step, out += out_stride) {
    __m512i acc[4];
    UNROLL for (int v = 0; v < 4; v++) acc[v] = kept.start[v];
    UNROLL for (int k = 0; k < 3; k++) {
      UNROLL for (int v = 0; v < 4; v++) {
        const __m512i four = _mm512_load_si512(x + k * column_stride + 64 * v);
        acc[v] = _mm512_dpbusd_epi32(acc[v], four, w[k][v]);
      }
    }
    store_requantized(&kept, acc, 1, out);
  }
}

void np_int8_vnni_depthwise_avx512(const np_int8_depthwise_tile *b) {
  requantization n;
  const int small = start_block(b, 4 * b->groups * b->width, &n);
  if (small && b->width == 3 && b->groups == 1) {
    three_columns(b, &n);
  } else if (!b->lower) {
    any_kernel(b, &n, small);
  } else {
    /* Kernels that start in the second row of a K-group: their weights are moved down. */
    np_int8_depthwise_tile moved = *b;
    uint8_t weights[3 * NP_INT8_VNNI_PIXEL] __attribute__((aligned(64)));
    for (size_t i = 0; i < sizeof weights; i += 64) {
      const __m512i w = _mm512_load_si512(b->weights + i);
      _mm512_store_si512(weights + i, _mm512_slli_epi32(w, 8));
    }
    moved.weights = weights;
    any_kernel(&moved, &n, small);
  }
}
