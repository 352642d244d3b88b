/* A cache with new rows in it: what was there is copied around them. */
#include <string.h>

#include "runtime/kernel.h"

/* out[b, i, :, :] = past[b, i, :, :] with update[b, i, :, :] from row starts[b] on, or from row 0;
 * `inner` values of i. Rows beyond the end go to the beginning where `circular` is set. No size is
 * 0, and there are no more new rows than rows. */
struct np_scatter_rows_params {
  size_t batches;
  size_t inner;
  size_t rows;
  size_t new_rows;
  size_t row_bytes;
  int32_t has_starts;
  int32_t circular;
};

typedef struct {
  const struct np_scatter_rows_params *params;
  const char *past;
  const char *update;
  const int64_t *starts;
  char *out;
  atomic_int outside; /* whether rows start where there are none */
} job;

/* The row where new ones start, or -1 where they do not fit. It may lie where others write
 * meanwhile: it is read once, and what was read checked. */
static int64_t start_of(const job *task, size_t outer) {
  const struct np_scatter_rows_params *p = task->params;
  const int64_t start =
      p->has_starts ? ((const volatile int64_t *)task->starts)[outer / p->inner] : 0;
  if (start < 0) return -1;
  if (p->circular) return start % (int64_t)p->rows;
  return start <= (int64_t)(p->rows - p->new_rows) ? start : -1;
}

static void part(void *context, size_t thread, size_t outer) {
  (void)thread;
  job *task = context;
  const struct np_scatter_rows_params *p = task->params;
  const int64_t found = start_of(task, outer);
  if (found < 0) {
    atomic_store_explicit(&task->outside, 1, memory_order_relaxed);
    return;
  }
  const size_t row = p->row_bytes;
  const char *past = task->past + outer * p->rows * row;
  const char *update = task->update + outer * p->new_rows * row;
  char *out = task->out + outer * p->rows * row;
  /* In a circle the new rows are up to two pieces, and so are the old ones. */
  const size_t start = (size_t)found;
  const size_t whole = p->rows - start;
  const size_t first = p->new_rows < whole ? p->new_rows : whole;
  const size_t wrapped = p->new_rows - first;
  memcpy(out, update + first * row, wrapped * row);
  memcpy(out + wrapped * row, past + wrapped * row, (start - wrapped) * row);
  memcpy(out + start * row, update, first * row);
  memcpy(out + (start + first) * row, past + (start + first) * row, (whole - first) * row);
}

int np_scatter_rows(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_scatter_rows_params *p = params;
  job task = {p, inputs[0], inputs[1], p->has_starts ? inputs[2] : NULL, out, 0};
  const size_t count = p->batches * p->inner;
  np_workers *const used = count * p->rows * p->row_bytes < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  np_parallel_for(used, part, &task, count, 0);
  return task.outside ? NP_STATUS_INDEX : 0;
}
