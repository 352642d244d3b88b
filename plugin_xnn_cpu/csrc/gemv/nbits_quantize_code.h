/* Quantizes a row to int8, in blocks; gemv/nbits_int8_code.c includes this. */

/* Largest magnitudes below this are 0: 127 divided by one would be infinite. */
#define LEAST 0x1p-100f

/* The largest magnitude of a block; infinite or NaN where an element is. */
NP_INLINE float magnitude_of(const float *x, size_t count) {
#if defined(__AVX512F__) && LANES == 16
  /* Bits of magnitudes are in the order of magnitudes, and those of infinity and NaN above all. */
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i most = _mm512_setzero_si512();
  for (size_t k = 0; k < count; k += LANES) {
    const size_t left = count - k;
    const __mmask16 some = left < LANES ? (__mmask16)((1u << left) - 1) : 0xffff;
    const __m512i bits = _mm512_maskz_loadu_epi32(some, x + k);
    most = _mm512_max_epi32(most, _mm512_and_si512(bits, magnitude));
  }
  const int32_t bits = _mm512_reduce_max_epi32(most);
  float largest;
  memcpy(&largest, &bits, sizeof largest);
  return largest;
#else
  vec most = zero(), bad = zero();
  size_t k = 0;
  for (; k + LANES <= count; k += LANES) {
    const vec given = load(x + k);
    most = larger((vec)((ivec)given & 0x7fffffff), most);
    bad += given * 0; /* NaN where one is not finite */
  }
  float largest = largest_of(most), unfit = sum_of(bad);
  for (; k < count; k++) {
    const float magnitude = x[k] < 0 ? -x[k] : x[k];
    if (magnitude > largest) largest = magnitude;
    unfit += x[k] * 0;
  }
  return unfit == 0 ? largest : unfit;
#endif
}

/* Round elements times `inverse` to bytes; return their sum. */
NP_INLINE int32_t round_block(const float *x, size_t count, float inverse, int8_t *q) {
#if defined(__AVX512F__) && LANES == 16
  const __m512 factor = _mm512_set1_ps(inverse);
  __m512i totals = _mm512_setzero_si512();
  for (size_t k = 0; k < count; k += LANES) {
    const size_t left = count - k;
    const __mmask16 some = left < LANES ? (__mmask16)((1u << left) - 1) : 0xffff;
    const __m512 given = _mm512_maskz_loadu_ps(some, x + k);
    const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(given, factor));
    _mm512_mask_cvtepi32_storeu_epi8(q + k, some, whole);
    totals = _mm512_add_epi32(totals, whole);
  }
  return _mm512_reduce_add_epi32(totals);
#else
  int32_t sum = 0;
  for (size_t k = 0; k < count; k++) {
    const int32_t whole = (int32_t)__builtin_rintf(x[k] * inverse);
    q[k] = (int8_t)whole;
    sum += whole;
  }
  return sum;
#endif
}

void NP_OF_ISA(np_nbits_quantize)(const float *x, size_t inputs, size_t block, int8_t *q,
                                  float *scales, int32_t *row_sums, size_t stride) {
  for (size_t start = 0; start < inputs; start += block, q += block) {
    const size_t count = np_min(block, inputs - start);
    const float largest = magnitude_of(x + start, count);
    const float unfit = largest * 0; /* 0, or NaN */
    if (unfit == 0 && largest >= LEAST) {
      *row_sums = round_block(x + start, count, 127 / largest, q);
      *scales = largest / 127;
    } else {
      memset(q, 0, count);
      *row_sums = 0;
      *scales = unfit;
    }
    memset(q + count, 0, block - count);
    scales += stride;
    row_sums += stride;
  }
}
