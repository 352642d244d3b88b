/* Rows of a block-quantized embedding, read from the panels that a matmul reads, too. */
#include "gemv/nbits_panel.h"

#define COLUMNS NP_NBITS_COLUMNS

static float number_at(const void *numbers, size_t size, size_t at) {
  if (size == 2) return np_half_to_float(((const uint16_t *)numbers)[at]);
  return size == 1 ? (float)((const uint8_t *)numbers)[at] : ((const float *)numbers)[at];
}

/* The same of float8: a byte of each k lies a row of bytes apart from the next one. */
static void dequantize_float8(const struct np_nbits_matrix *m, const uint8_t *panel, size_t column,
                              float *out) {
  const float factor = np_nbits_factor(m->format);
  const size_t scale_size = np_nbits_scales_size(m) / COLUMNS;
  for (size_t k = 0, number = 0; k < m->inputs; number++) {
    const np_nbits_view b = np_nbits_view_of(m, np_nbits_block_of(m, panel, number));
    const float scale = number_at(b.scales, scale_size, column);
    const size_t end = np_min(k + m->block, m->inputs);
    for (const uint8_t *from = b.words + column; k < end; from += COLUMNS, k++) {
      out[k] = np_half_to_float(np_float8_to_half(*from, m->format)) * factor * scale;
    }
  }
}

/* A word of each K-group lies a row of words apart from the next one. */
static void dequantize_column(const struct np_nbits_matrix *m, const uint8_t *panel, size_t column,
                              float *out) {
  const uint32_t mask = (1u << m->bits) - 1;
  const size_t bits = (size_t)m->bits, together = 32 / bits;
  const size_t zero_size = np_nbits_zeros_size(m) / COLUMNS;
  const size_t scale_size = np_nbits_scales_size(m) / COLUMNS;
  for (size_t k = 0, number = 0; k < m->inputs; number++) {
    const np_nbits_view b = np_nbits_view_of(m, np_nbits_block_of(m, panel, number));
    const float scale = number_at(b.scales, scale_size, column);
    const float zero = zero_size == 0 ? m->zero : number_at(b.zeros, zero_size, column);
    const size_t end = k + m->block < m->inputs ? k + m->block : m->inputs;
    for (const uint8_t *from = b.words + column * 4; k < end; from += COLUMNS * 4) {
      uint32_t word;
      memcpy(&word, from, sizeof word);
      for (size_t i = 0; i < together && k < end; i++, k++) {
        out[k] = ((float)(word >> (i % 4 * 8 + i / 4 * bits) & mask) - zero) * scale;
      }
    }
  }
}

static void gather_rows(np_job *job, size_t start, size_t count) {
  const struct np_nbits_gather_params *p = job->params;
  const struct np_nbits_matrix *m = &p->matrix;
  for (size_t i = start; i < start + count; i++) {
    const size_t at = np_read_index(job->inputs[0], p->index_size, i, m->outputs);
    if (at >= m->outputs) {
      np_index_outside(job);
      return;
    }
    const uint8_t *panel = (const uint8_t *)p->packed + at / COLUMNS * np_nbits_panel_size(m);
    float *out = (float *)job->out + i * m->inputs;
    if (m->format == NP_NBITS_INTEGERS) dequantize_column(m, panel, at % COLUMNS, out);
    else dequantize_float8(m, panel, at % COLUMNS, out);
  }
}

int np_nbits_gather(np_job *job) {
  const struct np_nbits_gather_params *p = job->params;
  return np_for_tiles(job, gather_rows, p->indices, 1,
                      p->indices * p->matrix.inputs * sizeof(float), 0);
}
