/* GatherElements, ScatterElements, GatherND, ScatterND: indices are read once, and what was read is
 * checked, since others may write to a feed meanwhile. */
#include <stdbool.h>
#include <string.h>

#include "runtime/kernel.h"
#include "movement/scatter_code.h"

/* Elements of a row that one part computes. */
#define COLUMNS 8192

typedef struct {
  const void *params;
  const char *data;
  const char *indices;
  const char *updates;
  char *out;
  atomic_int outside; /* whether an index is out of range */
} job;

static void report(job *task) { atomic_store_explicit(&task->outside, 1, memory_order_relaxed); }

static inline int64_t index_at(const char *indices, int32_t size, size_t i) {
  return size == 8 ? ((const volatile int64_t *)indices)[i]
                   : (int64_t)((const volatile int32_t *)indices)[i];
}

/* Counts negative indices from the end; gives `size` or more where there is no such element. */
static inline size_t wrapped(int64_t index, size_t size) {
  return (size_t)(index < 0 ? index + (int64_t)size : index);
}

/* Where in the data row `row` of the indices starts, the indexed axis left aside. */
static ptrdiff_t start_of(const struct np_elements_params *p, size_t row) {
  ptrdiff_t at = 0;
  for (size_t dim = p->rank - 1; dim-- > 0;) {
    if (dim != p->axis) at += (ptrdiff_t)(row % p->sizes[dim]) * p->strides[dim];
    row /= p->sizes[dim];
  }
  return at;
}

typedef struct {
  ptrdiff_t step;   /* of the data from column to column */
  ptrdiff_t stride; /* of the indexed axis */
  size_t size;      /* of that axis */
} walk;

#define GATHER(type, index)                                                                       \
  static bool gather_##type##_##index(const walk *w, const type *data,                            \
                                      const volatile index *indices, type *out, size_t count) {   \
    for (size_t i = 0; i < count; i++) {                                                          \
      const size_t at = wrapped(indices[i], w->size);                                             \
      if (at >= w->size) return false;                                                            \
      out[i] = data[(ptrdiff_t)i * w->step + (ptrdiff_t)at * w->stride];                          \
    }                                                                                             \
    return true;                                                                                  \
  }
#define GATHERS(type) GATHER(type, int32_t) GATHER(type, int64_t)
GATHERS(uint8_t)
GATHERS(uint16_t)
GATHERS(uint32_t)
GATHERS(uint64_t)

static bool gather_columns(const struct np_elements_params *p, const walk *w, const char *data,
                           const char *indices, char *out, size_t count) {
#define CASE(type)                                                                             \
  return p->index_size == 8                                                                    \
             ? gather_##type##_int64_t(w, (const type *)data, (const int64_t *)indices,        \
                                       (type *)out, count)                                     \
             : gather_##type##_int32_t(w, (const type *)data, (const int32_t *)indices,        \
                                       (type *)out, count);
  switch (p->element_size) {
    case 1:
      CASE(uint8_t)
    case 2:
      CASE(uint16_t)
    case 4:
      CASE(uint32_t)
    default:
      CASE(uint64_t)
  }
#undef CASE
}

static void gather_parts(void *context, size_t start, size_t count) {
  job *task = context;
  const struct np_elements_params *p = task->params;
  const size_t last = p->rank - 1, columns = p->sizes[last];
  const size_t parts = (columns + COLUMNS - 1) / COLUMNS;
  const walk w = {last == p->axis ? 0 : p->strides[last], p->strides[p->axis], p->axis_size};
  for (size_t part = start; part < start + count; part++) {
    const size_t row = part / parts, first = part % parts * COLUMNS;
    const size_t end = first + COLUMNS < columns ? first + COLUMNS : columns;
    const ptrdiff_t at = start_of(p, row) + (ptrdiff_t)first * w.step;
    const size_t flat = row * columns + first;
    if (!gather_columns(p, &w, task->data + at * p->element_size,
                        task->indices + flat * (size_t)p->index_size,
                        task->out + flat * (size_t)p->element_size, end - first)) {
      report(task);
      return;
    }
  }
}

int np_gather_elements(const void *params, const void *const *inputs, void *out,
                       np_workers *workers) {
  const struct np_elements_params *p = params;
  const size_t columns = p->sizes[p->rank - 1];
  size_t rows = 1;
  for (size_t dim = 0; dim + 1 < p->rank; dim++) rows *= p->sizes[dim];
  const size_t bytes = rows * columns * (size_t)p->element_size;
  if (bytes == 0) return 0;
  job task = {p, inputs[0], inputs[1], NULL, out, 0};
  const size_t parts = (columns + COLUMNS - 1) / COLUMNS;
  np_parallel_for_tiles(bytes < NP_PARALLEL_MIN_BYTES ? NULL : workers, gather_parts, &task,
                        rows * parts, 1 + COLUMNS / 2 / columns, 0);
  return task.outside ? NP_STATUS_INDEX : 0;
}

/* One line along the axis after the other: updates of one element are in order. */
static void scatter_lines(void *context, size_t start, size_t count) {
  job *task = context;
  const struct np_elements_params *p = task->params;
  for (size_t line = start; line < start + count; line++) {
    size_t rest = line, flat = 0, dense = 1, step = 1;
    ptrdiff_t at = 0;
    for (size_t dim = p->rank; dim-- > 0;) {
      if (dim == p->axis) {
        step = dense;
      } else {
        at += (ptrdiff_t)(rest % p->sizes[dim]) * p->strides[dim];
        flat += rest % p->sizes[dim] * dense;
        rest /= p->sizes[dim];
      }
      dense *= p->sizes[dim];
    }
    for (size_t i = 0; i < p->sizes[p->axis]; i++, flat += step) {
      const size_t found = wrapped(index_at(task->indices, p->index_size, flat), p->axis_size);
      if (found >= p->axis_size) {
        report(task);
        return;
      }
      const ptrdiff_t to = at + (ptrdiff_t)found * p->strides[p->axis];
      np_scatter_update(p->reduction, p->type, (size_t)p->element_size,
                        task->out + to * p->element_size,
                        task->updates + flat * (size_t)p->element_size, 1);
    }
  }
}

static void copy_part(void *context, size_t start, size_t count) {
  job *task = context;
  memcpy(task->out + start, task->data + start, count);
}

static void copy_data(job *task, size_t bytes, np_workers *workers) {
  if (task->out == task->data || bytes == 0) return;
  np_parallel_for_tiles(bytes < NP_PARALLEL_MIN_BYTES ? NULL : workers, copy_part, task, bytes,
                        NP_PARALLEL_MIN_BYTES, 0);
}

int np_scatter_elements(const void *params, const void *const *inputs, void *out,
                        np_workers *workers) {
  const struct np_elements_params *p = params;
  job task = {p, inputs[0], inputs[1], inputs[2], out, 0};
  copy_data(&task, p->data_bytes, workers);
  size_t lines = 1;
  for (size_t dim = 0; dim < p->rank; dim++) lines *= dim == p->axis ? 1 : p->sizes[dim];
  const size_t length = p->sizes[p->axis];
  if (lines * length == 0) return 0;
  const size_t bytes = lines * length * (size_t)p->element_size;
  np_parallel_for_tiles(bytes < NP_PARALLEL_MIN_BYTES ? NULL : workers, scatter_lines, &task, lines,
                        1 + COLUMNS / 4 / length, 0);
  return task.outside ? NP_STATUS_INDEX : 0;
}

/* Where in the data a tuple's row is, without that of its batch; false where there is none. */
static bool place_of(const struct np_gather_nd_params *p, const char *indices, size_t tuple,
                     ptrdiff_t *place) {
  *place = 0;
  for (size_t i = 0; i < p->depth; i++) {
    const size_t at = wrapped(index_at(indices, p->index_size, tuple * p->depth + i), p->sizes[i]);
    if (at >= p->sizes[i]) return false;
    *place += (ptrdiff_t)at * p->strides[i];
  }
  return true;
}

static void gather_tuples(void *context, size_t start, size_t count) {
  job *task = context;
  const struct np_gather_nd_params *p = task->params;
  const size_t bytes = p->row * (size_t)p->element_size;
  for (size_t tuple = start; tuple < start + count; tuple++) {
    ptrdiff_t place;
    if (!place_of(p, task->indices, tuple, &place)) {
      report(task);
      return;
    }
    place += (ptrdiff_t)(tuple / p->tuples) * p->batch_stride;
    memcpy(task->out + tuple * bytes, task->data + place, bytes);
  }
}

int np_gather_nd(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_gather_nd_params *p = params;
  const size_t total = p->batches * p->tuples, bytes = p->row * (size_t)p->element_size;
  if (total * bytes == 0) return 0;
  job task = {p, inputs[0], inputs[1], NULL, out, 0};
  np_parallel_for_tiles(total * bytes < NP_PARALLEL_MIN_BYTES ? NULL : workers, gather_tuples,
                        &task, total, 1 + NP_PARALLEL_MIN_BYTES / 4 / bytes, 0);
  return task.outside ? NP_STATUS_INDEX : 0;
}

/* Columns of all rows: updates of one element are in order. */
static void scatter_columns(void *context, size_t start, size_t count) {
  job *task = context;
  const struct np_gather_nd_params *p = task->params;
  const size_t size = (size_t)p->element_size;
  for (size_t tuple = 0; tuple < p->tuples; tuple++) {
    ptrdiff_t place;
    if (!place_of(p, task->indices, tuple, &place)) {
      report(task);
      return;
    }
    np_scatter_update(p->reduction, p->type, size, task->out + place + start * size,
                      task->updates + (tuple * p->row + start) * size, count);
  }
}

int np_scatter_nd(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_gather_nd_params *p = params;
  job task = {p, inputs[0], inputs[1], inputs[2], out, 0};
  copy_data(&task, p->data_bytes, workers);
  if (p->tuples * p->row == 0) return 0;
  const size_t bytes = p->tuples * p->row * (size_t)p->element_size;
  np_parallel_for_tiles(bytes < NP_PARALLEL_MIN_BYTES ? NULL : workers, scatter_columns, &task,
                        p->row, 256, 0);
  return task.outside ? NP_STATUS_INDEX : 0;
}
