/* NH, the hash of UMAC (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, CRYPTO 1999): words of 32
 * bits of the block and of the key are added, and pairs of the results multiplied and accumulated in
 * 64 bits. Once, two blocks agree with probability 2^-32; a second time with the key shifted by a
 * vector (Toeplitz), with 2^-64. As fast as memory is read.
 *
 * The vectors are spelled out: compilers multiply 64-bit lanes in full, three multiplications
 * instead of one, since they do not see that the upper halves are zero. */
#include "condense.h"

#include <string.h>

#define VECTOR 64 /* bytes that the key is shifted by */

_Static_assert(NP_CONDENSE_KEY == NP_CONDENSE_BLOCK + VECTOR, "a key is a block and the shift");

/* Write the pair of a whole block. The order of additions does not matter: all modulo 2^64. */
typedef void block_hash(const uint8_t *block, const uint8_t *key, uint64_t *pair);

static uint32_t word(const uint8_t *bytes) {
  uint32_t found;
  memcpy(&found, bytes, sizeof found);
  return found;
}

static void plain(const uint8_t *block, const uint8_t *key, uint64_t *pair) {
  uint64_t totals[2] = {0, 0};
  for (size_t i = 0; i < NP_CONDENSE_BLOCK; i += 8) {
    uint32_t low = word(block + i), high = word(block + i + 4);
    for (size_t turn = 0; turn < 2; turn++) {
      const uint8_t *at = key + i + turn * VECTOR;
      totals[turn] += (uint64_t)(low + word(at)) * (uint32_t)(high + word(at + 4));
    }
  }
  memcpy(pair, totals, sizeof totals);
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2"))) static __m256i multiplied_avx2(__m256i given, __m256i key) {
  __m256i added = _mm256_add_epi32(given, key);
  return _mm256_mul_epu32(added, _mm256_srli_epi64(added, 32));
}

__attribute__((target("avx2"))) static void avx2(const uint8_t *block, const uint8_t *key,
                                                 uint64_t *pair) {
  __m256i totals[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (size_t i = 0; i < NP_CONDENSE_BLOCK; i += sizeof(__m256i)) {
    __m256i given = _mm256_loadu_si256((const __m256i *)(block + i));
    for (size_t turn = 0; turn < 2; turn++) {
      __m256i keys = _mm256_loadu_si256((const __m256i *)(key + i + turn * VECTOR));
      totals[turn] = _mm256_add_epi64(totals[turn], multiplied_avx2(given, keys));
    }
  }
  for (size_t turn = 0; turn < 2; turn++) {
    uint64_t lanes[4];
    _mm256_storeu_si256((__m256i *)lanes, totals[turn]);
    pair[turn] = lanes[0] + lanes[1] + lanes[2] + lanes[3];
  }
}

__attribute__((target("avx512f"))) static __m512i multiplied_avx512(__m512i given, __m512i key) {
  __m512i added = _mm512_add_epi32(given, key);
  return _mm512_mul_epu32(added, _mm512_srli_epi64(added, 32));
}

__attribute__((target("avx512f"))) static void avx512(const uint8_t *block, const uint8_t *key,
                                                      uint64_t *pair) {
  __m512i first = _mm512_setzero_si512(), second = first;
  __m512i keys = _mm512_loadu_si512(key);
  for (size_t i = 0; i < NP_CONDENSE_BLOCK; i += VECTOR) {
    __m512i given = _mm512_loadu_si512(block + i);
    __m512i shifted = _mm512_loadu_si512(key + i + VECTOR);
    first = _mm512_add_epi64(first, multiplied_avx512(given, keys));
    second = _mm512_add_epi64(second, multiplied_avx512(given, shifted));
    keys = shifted;
  }
  pair[0] = (uint64_t)_mm512_reduce_add_epi64(first);
  pair[1] = (uint64_t)_mm512_reduce_add_epi64(second);
}

static block_hash *const LEVELS[] = {plain, avx2, avx512};

int np_condense_levels(void) {
  if (__builtin_cpu_supports("avx512f")) return 3;
  return __builtin_cpu_supports("avx2") ? 2 : 1;
}
#else
static block_hash *const LEVELS[] = {plain};

int np_condense_levels(void) { return 1; }
#endif

void np_condense(const void *data, size_t size, const void *key, uint64_t *pairs, int level) {
  const uint8_t *bytes = data;
  block_hash *hash = LEVELS[level];
  size_t whole = size / NP_CONDENSE_BLOCK, rest = size % NP_CONDENSE_BLOCK;
  for (size_t i = 0; i < whole; i++) hash(bytes + i * NP_CONDENSE_BLOCK, key, pairs + 2 * i);
  if (rest == 0) return;
  uint8_t padded[NP_CONDENSE_BLOCK] = {0};
  memcpy(padded, bytes + whole * NP_CONDENSE_BLOCK, rest);
  hash(padded, key, pairs + 2 * whole);
}
