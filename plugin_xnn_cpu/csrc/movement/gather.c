/* Rows by index, as of an embedding table. */
#include <string.h>

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

typedef struct {
  const struct np_gather_params *params;
  const char *in;
  const void *indices;
  char *out;
  atomic_int outside; /* whether an index asks for a row that is not there */
} job;

/* The row that index i asks for, of `count`, or -1 where there is none; negative ones count from
 * the end. Indices may lie where others write meanwhile: each is read once, and what was read
 * checked. */
static int64_t row_at(const void *indices, size_t index_size, size_t i, size_t count) {
  const int64_t read = index_size == 8 ? ((const volatile int64_t *)indices)[i]
                                       : (int64_t)((const volatile int32_t *)indices)[i];
  const int64_t at = read < 0 ? read + (int64_t)count : read;
  return at >= 0 && at < (int64_t)count ? at : -1;
}

static void rows(void *context, size_t start, size_t count) {
  job *task = context;
  const struct np_gather_params *p = task->params;
  for (size_t row = start; row < start + count; row++) {
    const size_t outer = row / p->indices;
    const int64_t at = row_at(task->indices, p->index_size, row % p->indices, p->axis);
    if (at < 0) {
      atomic_store_explicit(&task->outside, 1, memory_order_relaxed);
      return;
    }
    memcpy(task->out + row * p->row_bytes,
           task->in + (outer * p->axis + (size_t)at) * p->row_bytes, p->row_bytes);
  }
}

int np_gather(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_gather_params *p = params;
  const size_t total = p->outer * p->indices;
  job task = {p, inputs[0], inputs[1], out, 0};
  np_workers *const used = total * p->row_bytes < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  const size_t tile = 1 + NP_PARALLEL_MIN_BYTES / 4 / (p->row_bytes > 0 ? p->row_bytes : 1);
  np_parallel_for_tiles(used, rows, &task, total, tile, 0);
  return task.outside ? NP_STATUS_INDEX : 0;
}

typedef struct {
  const struct np_gather_s8_params *params;
  const int8_t *table;
  const void *indices;
  const float *scales;
  float *out;
  atomic_int outside;
} scaled_job;

NP_MULTIVERSIONED(void, scaled_row, (const int8_t *row, float scale, float *out, size_t count),
                  (row, scale, out, count)) {
  for (size_t i = 0; i < count; i++) out[i] = (float)row[i] * scale;
}

static void scaled_rows(void *context, size_t start, size_t count) {
  scaled_job *task = context;
  const struct np_gather_s8_params *p = task->params;
  for (size_t i = start; i < start + count; i++) {
    const int64_t found = row_at(task->indices, p->index_size, i, p->rows);
    if (found < 0) {
      atomic_store_explicit(&task->outside, 1, memory_order_relaxed);
      return;
    }
    const size_t at = (size_t)found;
    scaled_row(task->table + at * p->row_size, task->scales[at * p->scale_step],
               task->out + i * p->row_size, p->row_size);
  }
}

int np_gather_s8(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_gather_s8_params *p = params;
  scaled_job task = {p, inputs[0], inputs[1], inputs[2], out, 0};
  np_workers *const used =
      p->indices * p->row_size * sizeof(float) < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  const size_t tile = 1 + NP_PARALLEL_MIN_BYTES / 16 / p->row_size;
  np_parallel_for_tiles(used, scaled_rows, &task, p->indices, tile, 0);
  return task.outside ? NP_STATUS_INDEX : 0;
}
