/* Elements of a cache, upcast in registers, for one instruction set; attention/narrow_code.c and
 * attention/bf16_amx.c include this. */

#if LANES == 4
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(1), may_alias));
typedef int8_t bytes8 __attribute__((vector_size(LANES), aligned(1), may_alias));

/* Subnormal numbers are converted as integers: denormals may be disabled. */
NP_INLINE vec upcast_half(halves x) {
  const ivec bits = __builtin_convertvector(x, ivec);
  const ivec magnitude = bits & 0x7fff;
  const ivec normal = (magnitude << 13) + (112 << 23);
  const ivec special = (magnitude << 13) | 0x7f800000;
  const ivec tiny = (ivec)(__builtin_convertvector(magnitude, vec) * 0x1p-24f);
  ivec found = (ivec)choose(magnitude >= 0x7c00, (vec)special, (vec)normal);
  found = (ivec)choose(magnitude < 0x400, (vec)tiny, (vec)found);
  return (vec)(found | (bits & 0x8000) << 16);
}
#endif

/* LANES elements of a row, from element `d` on; `type` is a constant of the caller. */
NP_INLINE vec load_elements(const char *row, size_t d, const int type) {
  row += d * size_of_type(type);
  if (type == NP_CACHE_FLOAT32) return load((const float *)(const void *)row);
#if LANES == 16
  if (type == NP_CACHE_INT8) {
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)row)));
  }
  const __m256i x = _mm256_loadu_si256((const __m256i *)row);
  if (type == NP_CACHE_FLOAT16) return (vec)_mm512_cvtph_ps(x);
  return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16);
#elif LANES == 8
  if (type == NP_CACHE_INT8) {
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)row)));
  }
  const __m128i x = _mm_loadu_si128((const __m128i *)row);
  if (type == NP_CACHE_FLOAT16) return (vec)_mm256_cvtph_ps(x);
  return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16);
#else
  if (type == NP_CACHE_INT8) {
    return __builtin_convertvector(__builtin_convertvector(*(const bytes8 *)row, ivec), vec);
  }
  if (type == NP_CACHE_FLOAT16) return upcast_half(*(const halves *)row);
  return (vec)(__builtin_convertvector(*(const halves *)row, ivec) << 16);
#endif
}

/* The first `count` of them, fewer than LANES; the other lanes are 0, and not read. */
NP_INLINE vec load_some_elements(const char *row, size_t d, size_t count, const int type) {
  char copy[4 * LANES] = {0};
  memcpy(copy, row + d * size_of_type(type), count * size_of_type(type));
  return load_elements(copy, 0, type);
}

/* DO(type) for the type of a cache, as a constant. */
#define NP_SWITCH_TYPE(type, DO)                    \
  switch (type) {                                   \
    case NP_CACHE_FLOAT32: DO(NP_CACHE_FLOAT32) break;   \
    case NP_CACHE_FLOAT16: DO(NP_CACHE_FLOAT16) break;   \
    case NP_CACHE_BFLOAT16: DO(NP_CACHE_BFLOAT16) break; \
    default: DO(NP_CACHE_INT8) break;               \
  }
