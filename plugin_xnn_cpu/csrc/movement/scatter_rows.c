/* A cache with new rows in it: what was there is copied around them. */
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

/* The row where new ones start, or -1 where they do not fit. It may lie where others write
 * meanwhile: it is read once, and what was read checked. */
static int64_t start_of(const np_job *job, size_t outer) {
  const struct np_scatter_rows_params *p = job->params;
  const volatile int64_t *starts = job->inputs[2];
  const int64_t start = p->has_starts ? starts[outer / p->inner] : 0;
  if (start < 0) return -1;
  if (p->circular) return start % (int64_t)p->rows;
  return start <= (int64_t)(p->rows - p->new_rows) ? start : -1;
}

static void part(np_job *job, size_t thread, size_t outer) {
  const struct np_scatter_rows_params *p = job->params;
  const int64_t found = start_of(job, outer);
  if (found < 0) {
    np_index_outside(job);
    return;
  }
  const size_t row = p->row_bytes;
  const char *past = (const char *)job->inputs[0] + outer * p->rows * row;
  const char *update = (const char *)job->inputs[1] + outer * p->new_rows * row;
  char *out = (char *)job->out + outer * p->rows * row;
  /* In a circle the new rows are up to two pieces, and so are the old ones. */
  const size_t start = (size_t)found, whole = p->rows - start;
  const size_t first = np_min(p->new_rows, whole), wrapped = p->new_rows - first;
  np_copy_bytes(out, update + first * row, wrapped * row);
  np_copy_bytes(out + wrapped * row, past + wrapped * row, (start - wrapped) * row);
  np_copy_bytes(out + start * row, update, first * row);
  np_copy_bytes(out + (start + first) * row, past + (start + first) * row, (whole - first) * row);
}

int np_scatter_rows(np_job *job) {
  const struct np_scatter_rows_params *p = job->params;
  const size_t count = p->batches * p->inner;
  const int small = count * p->rows * p->row_bytes < NP_PARALLEL_MIN_BYTES;
  return np_for_parts(job, part, count, small, 0);
}
