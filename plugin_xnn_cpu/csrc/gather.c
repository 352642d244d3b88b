/* Rows by index, as of an embedding table. */
#include <string.h>

#include "run.h"

typedef struct {
  const struct np_gather_params *params;
  const char *in;
  const void *indices;
  char *out;
} job;

static int64_t index_at(const struct np_gather_params *p, const void *indices, size_t i) {
  const int64_t at = p->index_size == 8 ? ((const int64_t *)indices)[i]
                                        : (int64_t)((const int32_t *)indices)[i];
  return at < 0 ? at + (int64_t)p->axis : at;
}

static void rows(void *context, size_t start, size_t count) {
  const job *task = context;
  const struct np_gather_params *p = task->params;
  for (size_t row = start; row < start + count; row++) {
    const size_t outer = row / p->indices;
    const size_t at = (size_t)index_at(p, task->indices, row % p->indices);
    memcpy(task->out + row * p->row_bytes, task->in + (outer * p->axis + at) * p->row_bytes,
           p->row_bytes);
  }
}

int np_gather(const void *params, const void *const *inputs, void *out, pthreadpool_t pool) {
  const struct np_gather_params *p = params;
  for (size_t i = 0; i < p->indices; i++) {
    const int64_t at = index_at(p, inputs[1], i);
    if (at < 0 || at >= (int64_t)p->axis) return NP_STATUS_INDEX;
  }
  const size_t total = p->outer * p->indices;
  if (total == 0 || p->row_bytes == 0) return 0;
  job task = {p, inputs[0], inputs[1], out};
  const pthreadpool_t used = total * p->row_bytes < NP_SMALL ? NULL : pool;
  const size_t tile = 1 + NP_SMALL / 4 / p->row_bytes;
  pthreadpool_parallelize_1d_tile_1d(used, rows, &task, total, tile, 0);
  return 0;
}
