/* A cache with new rows in it: what was there is copied around them. */
#include <string.h>

#include "run.h"

typedef struct {
  const struct np_scatter_rows_params *params;
  const char *past;
  const char *update;
  const int64_t *starts;
  char *out;
} job;

static int64_t start_of(const job *task, size_t outer) {
  const struct np_scatter_rows_params *p = task->params;
  return p->has_starts ? task->starts[outer / p->inner] : 0;
}

static void part(void *context, size_t thread, size_t outer) {
  (void)thread;
  const job *task = context;
  const struct np_scatter_rows_params *p = task->params;
  const size_t row = p->row_bytes;
  const char *past = task->past + outer * p->rows * row;
  const char *update = task->update + outer * p->new_rows * row;
  char *out = task->out + outer * p->rows * row;
  /* In a circle the new rows are up to two pieces, and so are the old ones. */
  const size_t start = (size_t)(start_of(task, outer) % (int64_t)p->rows);
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
  job task = {p, inputs[0], inputs[1], p->has_starts ? inputs[2] : NULL, out};
  for (size_t batch = 0; batch < p->batches; batch++) {
    const int64_t start = start_of(&task, batch * p->inner);
    if (start < 0) return NP_STATUS_INDEX;
    if (!p->circular && start > (int64_t)(p->rows - p->new_rows)) return NP_STATUS_INDEX;
  }
  const size_t count = p->batches * p->inner;
  np_workers *const used = count * p->rows * p->row_bytes < NP_SMALL ? NULL : workers;
  np_divide(used, part, &task, count, 0);
  return 0;
}
