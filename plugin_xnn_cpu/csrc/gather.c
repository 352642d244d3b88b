/* Rows by index, as of an embedding table. */
#include <string.h>

#include "run.h"

typedef struct {
  const struct np_gather_params *params;
  const char *in;
  const void *indices;
  char *out;
} job;

/* The row that index i asks for, of `count`; negative ones count from the end. */
static int64_t row_at(const void *indices, size_t index_size, size_t i, size_t count) {
  const int64_t at = index_size == 8 ? ((const int64_t *)indices)[i]
                                     : (int64_t)((const int32_t *)indices)[i];
  return at < 0 ? at + (int64_t)count : at;
}

/* Whether all of `indices` ask for rows that are there. */
static int inside(const void *indices, size_t index_size, size_t number, size_t count) {
  for (size_t i = 0; i < number; i++) {
    const int64_t at = row_at(indices, index_size, i, count);
    if (at < 0 || at >= (int64_t)count) return 0;
  }
  return 1;
}

static void rows(void *context, size_t start, size_t count) {
  const job *task = context;
  const struct np_gather_params *p = task->params;
  for (size_t row = start; row < start + count; row++) {
    const size_t outer = row / p->indices;
    const size_t at =
        (size_t)row_at(task->indices, p->index_size, row % p->indices, p->axis);
    memcpy(task->out + row * p->row_bytes, task->in + (outer * p->axis + at) * p->row_bytes,
           p->row_bytes);
  }
}

int np_gather(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_gather_params *p = params;
  if (!inside(inputs[1], p->index_size, p->indices, p->axis)) return NP_STATUS_INDEX;
  const size_t total = p->outer * p->indices;
  if (total == 0 || p->row_bytes == 0) return 0;
  job task = {p, inputs[0], inputs[1], out};
  np_workers *const used = total * p->row_bytes < NP_SMALL ? NULL : workers;
  const size_t tile = 1 + NP_SMALL / 4 / p->row_bytes;
  np_divide_tiles(used, rows, &task, total, tile, 0);
  return 0;
}

typedef struct {
  const struct np_gather_s8_params *params;
  const int8_t *table;
  const void *indices;
  const float *scales;
  float *out;
} scaled_job;

NP_INLINE void scaled_row_body(const int8_t *row, float scale, float *out, size_t count) {
  for (size_t i = 0; i < count; i++) out[i] = (float)row[i] * scale;
}
NP_FOR_EACH_ISA(void, scaled_row,
                (const int8_t *row, float scale, float *out, size_t count),
                (row, scale, out, count))

static void scaled_rows(void *context, size_t start, size_t count) {
  const scaled_job *task = context;
  const struct np_gather_s8_params *p = task->params;
  for (size_t i = start; i < start + count; i++) {
    const size_t at = (size_t)row_at(task->indices, p->index_size, i, p->rows);
    scaled_row(task->table + at * p->row_size, task->scales[at * p->scale_step],
               task->out + i * p->row_size, p->row_size);
  }
}

int np_gather_s8(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_gather_s8_params *p = params;
  if (!inside(inputs[1], p->index_size, p->indices, p->rows)) return NP_STATUS_INDEX;
  scaled_job task = {p, inputs[0], inputs[1], inputs[2], out};
  np_workers *const used = p->indices * p->row_size * sizeof(float) < NP_SMALL ? NULL : workers;
  const size_t tile = 1 + NP_SMALL / 16 / p->row_size;
  np_divide_tiles(used, scaled_rows, &task, p->indices, tile, 0);
  return 0;
}
