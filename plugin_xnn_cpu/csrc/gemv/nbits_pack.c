/* How a matrix of few bits, or of float8, is packed: see gemv/nbits_panel.h. */
#include <string.h>

#include "gemv/nbits_panel.h"

size_t np_nbits_packed_size(const struct np_nbits_matrix *m) {
  return np_nbits_panels(m) * np_nbits_panel_size(m);
}

/* Rows of bytes of a block of float8. */
static uint8_t *pack_bytes(const struct np_nbits_matrix *m, const uint8_t *block, size_t stride,
                           size_t columns, uint8_t *to) {
  for (size_t k = 0; k < m->block; k++, to += NP_NBITS_COLUMNS) {
    for (size_t n = 0; n < NP_NBITS_COLUMNS; n++) to[n] = n < columns ? block[n * stride + k] : 0;
  }
  return to;
}

/* Rows of words of a block. */
static uint8_t *pack_words(const struct np_nbits_matrix *m, const uint8_t *block, size_t stride,
                           size_t columns, uint8_t *to) {
  const size_t bits = (size_t)m->bits, together = 32 / bits;
  for (size_t k = 0; k < m->block; k += together) {
    for (size_t n = 0; n < NP_NBITS_COLUMNS; n++, to += sizeof(uint32_t)) {
      uint32_t word = 0;
      for (size_t i = 0; i < together && n < columns; i++) {
        word |= (uint32_t)block[n * stride + k + i] << (i % 4 * 8 + i / 4 * bits);
      }
      memcpy(to, &word, sizeof word);
    }
  }
  return to;
}

/* Numbers of `size` bytes of block `number` for each column; 0 for columns that are not there. */
static uint8_t *pack_numbers(const uint8_t *from, size_t size, size_t number, size_t stride,
                             size_t columns, uint8_t *to) {
  memset(to, 0, NP_NBITS_COLUMNS * size);
  for (size_t n = 0; n < columns; n++) {
    memcpy(to + n * size, from + (n * stride + number) * size, size);
  }
  return to + NP_NBITS_COLUMNS * size;
}

void np_nbits_pack(const struct np_nbits_matrix *m, const void *weights, const void *numbers,
                   const void *bias, void *packed) {
  const size_t blocks = np_nbits_blocks(m), width = blocks * m->block;
  const size_t scale = np_nbits_scales_size(m) / NP_NBITS_COLUMNS;
  const size_t zero = np_nbits_zeros_size(m) / NP_NBITS_COLUMNS;
  const uint8_t *scales = numbers, *zeros = scales + m->outputs * blocks * scale;
  uint8_t *to = packed;
  for (size_t first = 0; first < m->outputs; first += NP_NBITS_COLUMNS) {
    const size_t left = m->outputs - first;
    const size_t columns = left < NP_NBITS_COLUMNS ? left : NP_NBITS_COLUMNS;
    memset(to, 0, NP_NBITS_COLUMNS * sizeof(float));
    if (bias != NULL) memcpy(to, (const float *)bias + first, columns * sizeof(float));
    to += NP_NBITS_COLUMNS * sizeof(float);
    for (size_t b = 0; b < blocks; b++) {
      to = pack_numbers(scales + first * blocks * scale, scale, b, blocks, columns, to);
      to = pack_numbers(zeros + first * blocks * zero, zero, b, blocks, columns, to);
      const uint8_t *block = (const uint8_t *)weights + first * width + b * m->block;
      to = m->format == NP_NBITS_INTEGERS ? pack_words(m, block, width, columns, to)
                                          : pack_bytes(m, block, width, columns, to);
    }
  }
}
