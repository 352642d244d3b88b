/* Rows by index, as of an embedding table. */
#include "runtime/kernel.h"

/* out[o, i, :] = in[o, index[i], :]; rows of `row_bytes`; negative indices count from the end. */
struct np_gather_params {
  size_t outer;
  size_t axis;
  size_t indices;
  size_t row_bytes;
  size_t index_size;
};

/* float out[i, :] = table[index[i], :] * scale[index[i]], of a table of int8; one scale for all
 * rows where `scale_step` is 0. Negative indices count from the end. */
struct np_gather_s8_params {
  size_t rows;
  size_t row_size;
  size_t indices;
  size_t index_size;
  size_t scale_step;
};

static void rows(np_job *job, size_t start, size_t count) {
  const struct np_gather_params *p = job->params;
  for (size_t row = start; row < start + count; row++) {
    const size_t outer = row / p->indices;
    const size_t at = np_read_index(job->inputs[1], p->index_size, row % p->indices, p->axis);
    if (at >= p->axis) {
      np_index_outside(job);
      return;
    }
    np_copy_bytes((char *)job->out + row * p->row_bytes,
                  (const char *)job->inputs[0] + (outer * p->axis + at) * p->row_bytes,
                  p->row_bytes);
  }
}

int np_gather(np_job *job) {
  const struct np_gather_params *p = job->params;
  const size_t total = p->outer * p->indices;
  const size_t tile = 1 + NP_PARALLEL_MIN_BYTES / 4 / (p->row_bytes > 0 ? p->row_bytes : 1);
  return np_for_tiles(job, rows, total, tile, total * p->row_bytes, 0);
}

NP_TILE(scaled_rows) {
  const struct np_gather_s8_params *p = job->params;
  const float *scales = job->inputs[2];
  const size_t row_size = p->row_size;
  for (size_t i = start; i < start + count; i++) {
    const size_t at = np_read_index(job->inputs[1], p->index_size, i, p->rows);
    if (at >= p->rows) {
      np_index_outside(job);
      return;
    }
    const int8_t *row = (const int8_t *)job->inputs[0] + at * row_size;
    const float scale = scales[at * p->scale_step];
    float *out = (float *)job->out + i * row_size;
    for (size_t n = 0; n < row_size; n++) out[n] = (float)row[n] * scale;
  }
}

int np_gather_s8(np_job *job) {
  const struct np_gather_s8_params *p = job->params;
  return np_for_tiles(job, scaled_rows, p->indices, 1 + NP_PARALLEL_MIN_BYTES / 16 / p->row_size,
                      p->indices * p->row_size * sizeof(float), 0);
}
