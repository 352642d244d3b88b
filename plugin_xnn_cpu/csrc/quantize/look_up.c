/* Lookup tables of 256 bytes, for functions of a byte. */
#include "runtime/kernel.h"

/* out[i] = table[x[i]], of bytes. */
struct np_table_params {
  size_t count;
  uint8_t table[256];
};

#define TILE 16384

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>

/* A shuffle looks up low halves of bytes in one of sixteen parts of the table. Each part is asked
 * for all bytes: of those whose high half is another one, the highest bit is set, for which a
 * shuffle returns 0. */
__attribute__((target("avx2"))) static size_t look_up_avx2(const uint8_t *table, const uint8_t *in,
                                                           uint8_t *out, size_t count) {
  const __m256i others = _mm256_set1_epi8(0x70);
  size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256i x = _mm256_loadu_si256((const __m256i *)(in + i));
    __m256i found = _mm256_setzero_si256();
    for (int part = 0; part < 16; part++) {
      const __m128i values = _mm_loadu_si128((const __m128i *)table + part);
      const __m256i from_part = _mm256_xor_si256(x, _mm256_set1_epi8((char)(part << 4)));
      const __m256i chosen = _mm256_adds_epu8(from_part, others);
      const __m256i value = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), chosen);
      found = _mm256_or_si256(found, value);
    }
    _mm256_storeu_si256((__m256i *)(out + i), found);
  }
  return i;
}

/* One instruction looks up seven bits of 64 bytes; the eighth chooses between two of them. */
__attribute__((target("avx512bw,avx512vbmi"))) static void look_up_vbmi(const uint8_t *table,
                                                                       const uint8_t *in,
                                                                       uint8_t *out, size_t count) {
  __m512i part[4];
  for (int i = 0; i < 4; i++) part[i] = _mm512_loadu_si512(table + 64 * i);
  for (size_t i = 0; i < count; i += 64) {
    const size_t left = count - i;
    const __mmask64 mask = left < 64 ? ((__mmask64)1 << left) - 1 : ~(__mmask64)0;
    const __m512i x = _mm512_maskz_loadu_epi8(mask, in + i);
    const __m512i low = _mm512_permutex2var_epi8(part[0], x, part[1]);
    const __m512i high = _mm512_permutex2var_epi8(part[2], x, part[3]);
    const __m512i found = _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), low, high);
    _mm512_mask_storeu_epi8(out + i, mask, found);
  }
}
#endif

static void look_up(const uint8_t *table, const uint8_t *in, uint8_t *out, size_t count) {
  size_t i = 0;
#ifdef NP_CHOOSES_CPU
  if (np_isa_has_vbmi()) {
    look_up_vbmi(table, in, out, count);
    return;
  }
  if (np_isa() >= NP_TARGET_AVX2) i = look_up_avx2(table, in, out, count);
#endif
  for (; i < count; i++) out[i] = table[in[i]];
}

static void look_up_tile(np_job *job, size_t start, size_t count) {
  const struct np_table_params *p = job->params;
  look_up(p->table, (const uint8_t *)job->inputs[0] + start, (uint8_t *)job->out + start, count);
}

int np_table(np_job *job) {
  const size_t count = ((const struct np_table_params *)job->params)->count;
  return np_for_tiles(job, look_up_tile, count, TILE, count, 0);
}
