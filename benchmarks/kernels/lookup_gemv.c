/* GEMV with weights of 4 bits in blocks of 32, by dot products and by look-up tables.
 *
 * A weight is a sum of bits: so a row of int8 times weights is the sum over bits p of 2^p times the sum
 * of the elements whose bit is set. A table has that sum for each subset of a few elements, and bits of
 * weights are its index (T-MAC, arXiv:2407.00088). Entries are rounded to bytes, as there.
 *
 * All multiply panels of 16 columns, a vector of float accumulators, by one row; scales are float32,
 * zero points 8. lookup_gemv.py packs weights and tables, and states the layouts. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define BLOCK 32
#define COLUMNS 16
#define AHEAD 4096 /* bytes that are prefetched ahead */

typedef struct {
  const uint8_t *packed; /* [panels][blocks]: scales of columns, then indices or weights */
  const uint8_t *x;      /* the row: bytes, or tables */
  const float *factors;  /* [blocks]: what integers of a block are multiplied with */
  const int32_t *starts; /* [blocks]: accumulators begin with */
  float *out;
  size_t panels;
  size_t blocks;
} gemv;

#define PANELS(bytes)                                                   \
  const uint8_t *at = g->packed;                                        \
  for (size_t panel = 0; panel < g->panels; panel++) {                  \
    const uint8_t *x = g->x;                                            \
    START                                                               \
    for (size_t b = 0; b < g->blocks; b++) {                            \
      for (size_t i = 0; i < (bytes); i += 64) {                        \
        _mm_prefetch((const char *)at + AHEAD + i, _MM_HINT_T1);        \
      }                                                                 \
      const uint8_t *w = at + COLUMNS * sizeof(float);                  \
      ADD                                                               \
      at += COLUMNS * sizeof(float) + (bytes);                          \
    }                                                                   \
    END                                                                 \
  }

#ifdef __AVX512VNNI__
#define START __m512 acc = _mm512_setzero_ps();
#define END _mm512_storeu_ps(g->out + panel * COLUMNS, acc);
#define SCALED(sum)                                                                       \
  acc = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_loadu_ps(at)),      \
                        _mm512_set1_ps(g->factors[b]), acc);

/* Words of 8 weights: byte j has those of k = j and j + 4. */
void dot_products_avx512(const gemv *g) {
  const __m512i mask = _mm512_set1_epi8(15);
#define ADD                                                                                \
  __m512i low = _mm512_set1_epi32(g->starts[b]), high = _mm512_setzero_si512();            \
  for (int i = 0; i < BLOCK / 8; i++, x += 8) {                                            \
    const __m512i words = _mm512_loadu_si512(w + i * 64);                                  \
    const __m512i first = _mm512_set1_epi32(*(const int32_t *)(const void *)x);            \
    const __m512i second = _mm512_set1_epi32(*(const int32_t *)(const void *)(x + 4));     \
    low = _mm512_dpbusd_epi32(low, _mm512_and_si512(words, mask), first);                  \
    high = _mm512_dpbusd_epi32(                                                            \
        high, _mm512_and_si512(_mm512_srli_epi32(words, 4), mask), second);                \
  }                                                                                        \
  SCALED(_mm512_add_epi32(low, high))
  PANELS(BLOCK * COLUMNS / 2)
#undef ADD
}

/* Tables of 4 elements, in each lane of 128 bits: byte p of a column has the index of bit p in one group
 * in its lower half, and that in the next group in the upper one. A dot product adds the bits. */
void tables_of_4_avx512(const gemv *g) {
  const __m512i mask = _mm512_set1_epi8(15), powers = _mm512_set1_epi32(0x08040201);
#define ADD                                                                                \
  __m512i low = _mm512_set1_epi32(g->starts[b]), high = _mm512_setzero_si512();            \
  for (int i = 0; i < BLOCK / 8; i++, x += 32) {                                           \
    const __m512i indices = _mm512_loadu_si512(w + i * 64);                                \
    const __m512i first = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)x));        \
    const __m512i second = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)(x + 16)));\
    low = _mm512_dpbusd_epi32(                                                             \
        low, _mm512_shuffle_epi8(first, _mm512_and_si512(indices, mask)), powers);         \
    const __m512i upper = _mm512_and_si512(_mm512_srli_epi32(indices, 4), mask);           \
    high = _mm512_dpbusd_epi32(high, _mm512_shuffle_epi8(second, upper), powers);          \
  }                                                                                        \
  SCALED(_mm512_add_epi32(low, high))
  PANELS(BLOCK * COLUMNS / 2)
#undef ADD
}

/* Tables of 6 elements, 64 bytes: byte p of a column has the index of bit p, in 6 of its bits. A block is
 * 6 groups, the last of 2 elements. */
void tables_of_6_avx512(const gemv *g) {
  const __m512i powers = _mm512_set1_epi32(0x08040201);
#define ADD                                                                                \
  __m512i totals[2] = {_mm512_set1_epi32(g->starts[b]), _mm512_setzero_si512()};             \
  for (int i = 0; i < 6; i++, x += 64) {                                                   \
    const __m512i found = _mm512_permutexvar_epi8(_mm512_loadu_si512(w + i * 64),          \
                                                  _mm512_loadu_si512(x));                  \
    totals[i % 2] = _mm512_dpbusd_epi32(totals[i % 2], found, powers);                         \
  }                                                                                        \
  SCALED(_mm512_add_epi32(totals[0], totals[1]))
  PANELS(6 * 64)
#undef ADD
}
#undef START
#undef END
#undef SCALED
#endif

#define START __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
#define END                                                       \
  _mm256_storeu_ps(g->out + panel * COLUMNS, acc[0]);             \
  _mm256_storeu_ps(g->out + panel * COLUMNS + 8, acc[1]);
#define SCALED(v, sum)                                                                       \
  acc[v] = _mm256_fmadd_ps(                                                                  \
      _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(sum, _mm256_set1_epi32(g->starts[b]))), \
                    _mm256_loadu_ps((const float *)(const void *)at + 8 * v)),               \
      _mm256_set1_ps(g->factors[b]), acc[v]);

/* The same words, by multiplying pairs in 16 bits. */
void dot_products_avx2(const gemv *g) {
  const __m256i mask = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
#define ADD                                                                                  \
  __m256i totals[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};                        \
  for (int i = 0; i < BLOCK / 8; i++, x += 8) {                                              \
    const __m256i first = _mm256_set1_epi32(*(const int32_t *)(const void *)x);              \
    const __m256i second = _mm256_set1_epi32(*(const int32_t *)(const void *)(x + 4));       \
    for (int v = 0; v < 2; v++) {                                                            \
      const __m256i words = _mm256_loadu_si256((const void *)(w + i * 64 + v * 32));         \
      const __m256i upper = _mm256_and_si256(_mm256_srli_epi32(words, 4), mask);             \
      totals[v] = _mm256_add_epi16(                                                            \
          totals[v], _mm256_maddubs_epi16(_mm256_and_si256(words, mask), first));              \
      totals[v] = _mm256_add_epi16(totals[v], _mm256_maddubs_epi16(upper, second));              \
    }                                                                                        \
  }                                                                                          \
  for (int v = 0; v < 2; v++) SCALED(v, _mm256_madd_epi16(totals[v], ones))
  PANELS(BLOCK * COLUMNS / 2)
#undef ADD
}

/* The same indices of tables of 4 elements, whose bits are added in pairs of 16 bits. */
void tables_of_4_avx2(const gemv *g) {
  const __m256i mask = _mm256_set1_epi8(15), powers = _mm256_set1_epi16(0x0201);
  const __m256i quarters = _mm256_set1_epi32(0x00040001);
#define ADD                                                                                  \
  __m256i totals[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};                        \
  for (int i = 0; i < BLOCK / 8; i++, x += 32) {                                             \
    const __m256i first = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)x));     \
    const __m256i second =                                                                   \
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)(x + 16)));                \
    for (int v = 0; v < 2; v++) {                                                            \
      const __m256i indices = _mm256_loadu_si256((const void *)(w + i * 64 + v * 32));       \
      const __m256i upper = _mm256_and_si256(_mm256_srli_epi32(indices, 4), mask);           \
      const __m256i low = _mm256_shuffle_epi8(first, _mm256_and_si256(indices, mask));       \
      totals[v] = _mm256_add_epi16(totals[v], _mm256_maddubs_epi16(low, powers));                \
      totals[v] = _mm256_add_epi16(                                                            \
          totals[v], _mm256_maddubs_epi16(_mm256_shuffle_epi8(second, upper), powers));        \
    }                                                                                        \
  }                                                                                          \
  for (int v = 0; v < 2; v++) SCALED(v, _mm256_madd_epi16(totals[v], quarters))
  PANELS(BLOCK * COLUMNS / 2)
#undef ADD
}
