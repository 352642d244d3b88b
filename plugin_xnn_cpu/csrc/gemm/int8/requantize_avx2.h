/* Stores of gemm/int8/code.c with AVX2, and pixels in the order of a panel. */

typedef struct {
  __m256 most;
  __m256i zero;
  __m128i low;
} limits;

NP_INLINE limits limits_of(np_int8_range range) {
  return (limits){_mm256_set1_ps((float)(range.high - range.zero)),
                  _mm256_set1_epi16((int16_t)range.zero), _mm_set1_epi8((int8_t)range.low)};
}

/* The lower bound is left to saturation; larger ones are cut before they are converted, which
 * yields the least integer for what is too large. */
NP_INLINE ivec scaled(uvec acc, vec scales, const limits *l) {
  return (ivec)_mm256_cvtps_epi32(_mm256_min_ps((__m256)(to_floats(acc) * scales), l->most));
}

NP_INLINE void store_bytes(int8_t *out, __m128i bytes, size_t columns) {
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

/* 16 columns in the order of np_int8_order, or 8 in theirs. */
NP_INLINE void store_scaled(int8_t *out, const ivec *x, const int vectors, const limits *l,
                            size_t columns) {
  const __m256i last = (__m256i)x[vectors - 1];
  const __m256i words = _mm256_adds_epi16(_mm256_packs_epi32((__m256i)x[0], last), l->zero);
  __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
  /* Of one vector that is packed with itself, each half has four columns twice. */
  if (vectors == 1) low = high = _mm_unpacklo_epi64(low, high);
  store_bytes(out, _mm_max_epi8(_mm_packs_epi16(low, high), l->low), columns);
}

/* Elements of 32 bits of all columns, from the order of a panel. */
NP_INLINE void store_columns(float *out, const vec *x, const int vectors, size_t columns) {
  __m256 first = (__m256)x[0], second = (__m256)x[vectors - 1];
  if (vectors == 2) {
    const __m256 swapped = _mm256_permute2f128_ps(first, second, 0x31);
    first = _mm256_permute2f128_ps(first, second, 0x20);
    second = swapped;
  }
  if (columns == 8 * (size_t)vectors) {
    _mm256_storeu_ps(out, first);
    if (vectors == 2) _mm256_storeu_ps(out + 8, second);
    return;
  }
  float all[NP_INT8_NR];
  _mm256_storeu_ps(all, first);
  _mm256_storeu_ps(all + 8, second);
  memcpy(out, all, columns * sizeof *out);
}

/* Bytes in the order of a panel. */
NP_INLINE __m128i pixel_of(const int8_t *in, size_t columns) {
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

NP_INLINE void interleave_pairs(const int8_t *const *rows, size_t stride, size_t count,
                                size_t columns, int32_t zero, int16_t *out) {
  const int8_t *upper = rows[0], *lower = rows[1];
  const int16_t offset = (int16_t)zero;
  const __m128i padding = _mm_set1_epi8((int8_t)zero);
  for (size_t i = 0; i < count; i++, out += NP_INT8_PAIR) {
    const __m128i a = upper == NULL ? padding : pixel_of(upper + i * stride, columns);
    const __m128i b = lower == NULL ? padding : pixel_of(lower + i * stride, columns);
    *(pairs *)out = (pairs)_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)) - offset;
    *(pairs *)(out + NP_INT8_NR) = (pairs)_mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b)) - offset;
  }
}
