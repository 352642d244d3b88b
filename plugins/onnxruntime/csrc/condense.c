/* NH, the hash of UMAC (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, CRYPTO 1999): words of 32
 * bits of the block and of the key are added, and pairs of the results multiplied and accumulated in
 * 64 bits. Once, two blocks agree with probability 2^-32; a second time with the key shifted by a
 * vector (Toeplitz), with 2^-64. As fast as memory is read. */
#include "condense.h"

#include <string.h>

#define LANES 8
#define VECTOR 64 /* bytes */

typedef uint32_t words __attribute__((vector_size(VECTOR), aligned(1), may_alias));
typedef uint64_t pairs_of_words __attribute__((vector_size(VECTOR)));

_Static_assert(NP_CONDENSE_KEY == NP_CONDENSE_BLOCK + VECTOR, "a key is a block and the shift");

#if defined(__x86_64__)
#define FOR_EACH_LEVEL __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_LEVEL
#endif

static inline pairs_of_words multiplied(words block, words key) {
  pairs_of_words added = (pairs_of_words)(block + key);
  return (added & 0xffffffffu) * (added >> 32);
}

static uint64_t total(const pairs_of_words *accumulators) {
  uint64_t found = 0;
  for (size_t i = 0; i < LANES; i++) found += (*accumulators)[i];
  return found;
}

FOR_EACH_LEVEL
void np_condense(const void *data, size_t size, const void *key, uint64_t *pairs) {
  const uint8_t *bytes = data, *keys = key;
  uint8_t padded[NP_CONDENSE_BLOCK];
  for (size_t done = 0; done < size; done += NP_CONDENSE_BLOCK, pairs += 2) {
    const uint8_t *block = bytes + done;
    if (size - done < NP_CONDENSE_BLOCK) {
      memset(padded, 0, sizeof padded);
      memcpy(padded, block, size - done);
      block = padded;
    }
    pairs_of_words first = {0}, second = {0};
    for (size_t i = 0; i < NP_CONDENSE_BLOCK; i += VECTOR) {
      words given = *(const words *)(block + i);
      first += multiplied(given, *(const words *)(keys + i));
      second += multiplied(given, *(const words *)(keys + i + VECTOR));
    }
    pairs[0] = total(&first);
    pairs[1] = total(&second);
  }
}
