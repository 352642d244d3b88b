/* GatherElements, ScatterElements, GatherND, ScatterND: indices are read once, and what was read is
 * checked, since others may write to a feed meanwhile. */
#include <stdbool.h>

#include "movement/scatter_code.h"
#include "runtime/kernel.h"

/* Elements of a row that one part computes. */
#define COLUMNS 8192
#define POLL 4096 /* updates between two looks at whether the run is stopped */

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

/* A row of TYPE by indices of INDEX; returns false where one is outside. */
#define GATHER_ROW(TYPE, INDEX)                                                               \
  for (size_t i = 0; i < count; i++) {                                                        \
    const int64_t read = ((const volatile INDEX *)indices)[i];                                \
    const size_t at = (size_t)(read < 0 ? read + (int64_t)w->size : read);                    \
    if (at >= w->size) return false;                                                          \
    ((TYPE *)out)[i] =                                                                        \
        ((const TYPE *)data)[(ptrdiff_t)i * w->step + (ptrdiff_t)at * w->stride];             \
  }
#define GATHER_4(TYPE) GATHER_ROW(TYPE, int32_t)
#define GATHER_8(TYPE) GATHER_ROW(TYPE, int64_t)

static bool gather_columns(const struct np_elements_params *p, const walk *w, const char *data,
                           const char *indices, char *out, size_t count) {
  if (p->index_size == 8) {
    NP_SWITCH_SIZE(p->element_size, GATHER_8)
  } else {
    NP_SWITCH_SIZE(p->element_size, GATHER_4)
  }
  return true;
}

static void gather_parts(np_job *job, size_t start, size_t count) {
  const struct np_elements_params *p = job->params;
  const size_t last = p->rank - 1, columns = p->sizes[last];
  const size_t parts = np_ceil_div(columns, COLUMNS);
  const walk w = {last == p->axis ? 0 : p->strides[last], p->strides[p->axis], p->axis_size};
  for (size_t part = start; part < start + count; part++) {
    const size_t row = part / parts, first = part % parts * COLUMNS;
    const size_t end = np_min(first + COLUMNS, columns);
    const ptrdiff_t at = start_of(p, row) + (ptrdiff_t)first * w.step;
    const size_t flat = row * columns + first;
    if (!gather_columns(p, &w, (const char *)job->inputs[0] + at * p->element_size,
                        (const char *)job->inputs[1] + flat * (size_t)p->index_size,
                        (char *)job->out + flat * (size_t)p->element_size, end - first)) {
      np_index_outside(job);
      return;
    }
  }
}

int np_gather_elements(np_job *job) {
  const struct np_elements_params *p = job->params;
  const size_t columns = p->sizes[p->rank - 1];
  const size_t rows = np_element_count(p->rank - 1, p->sizes);
  const size_t bytes = rows * columns * (size_t)p->element_size;
  if (bytes == 0) return 0;
  return np_for_tiles(job, gather_parts, rows * np_ceil_div(columns, COLUMNS),
                      1 + COLUMNS / 2 / columns, bytes, 0);
}

/* One line along the axis after the other: updates of one element are in order. */
static void scatter_lines(np_job *job, size_t start, size_t count) {
  const struct np_elements_params *p = job->params;
  /* Local copies: the compiler must assume that writes to the output change what pointers refer to. */
  const char *const indices = job->inputs[1], *const updates = job->inputs[2];
  char *const out = job->out;
  const size_t index_size = (size_t)p->index_size, size = (size_t)p->element_size;
  const size_t length = p->sizes[p->axis], axis_size = p->axis_size;
  const ptrdiff_t stride = p->strides[p->axis] * (ptrdiff_t)size;
  const int32_t reduction = p->reduction, type = p->type;
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
    char *const first = out + at * (ptrdiff_t)size;
    for (size_t i = 0; i < length; i++, flat += step) {
      if (i % POLL == POLL - 1 && np_cancel_check()) return;
      const size_t found = np_read_index(indices, index_size, flat, axis_size);
      if (found >= axis_size) {
        np_index_outside(job);
        return;
      }
      np_scatter_update(reduction, type, size, first + (ptrdiff_t)found * stride,
                        updates + flat * size, 1);
    }
  }
}

static void copy_part(np_job *job, size_t start, size_t count) {
  memcpy((char *)job->out + start, (const char *)job->inputs[0] + start, count);
}

/* Copy the data to the output, unless it lies there, then update elements of it. */
static int update(np_job *job, size_t data_bytes, np_tile *tile, size_t count, size_t size,
                  size_t bytes) {
  if (job->out != job->inputs[0] && data_bytes > 0) {
    np_for_tiles(job, copy_part, data_bytes, NP_PARALLEL_MIN_BYTES, data_bytes, 0);
  }
  return bytes == 0 ? 0 : np_for_tiles(job, tile, count, size, bytes, 0);
}

int np_scatter_elements(np_job *job) {
  const struct np_elements_params *p = job->params;
  const size_t length = p->sizes[p->axis];
  const size_t lines = length == 0 ? 0 : np_element_count(p->rank, p->sizes) / length;
  return update(job, p->data_bytes, scatter_lines, lines,
                1 + COLUMNS / 4 / (length > 0 ? length : 1),
                lines * length * (size_t)p->element_size);
}

/* Where in the data a tuple's row is, without that of its batch; false where there is none. */
static bool place_of(const struct np_gather_nd_params *p, const void *indices, size_t tuple,
                     ptrdiff_t *place) {
  *place = 0;
  for (size_t i = 0; i < p->depth; i++) {
    const size_t at =
        np_read_index(indices, (size_t)p->index_size, tuple * p->depth + i, p->sizes[i]);
    if (at >= p->sizes[i]) return false;
    *place += (ptrdiff_t)at * p->strides[i];
  }
  return true;
}

static void gather_tuples(np_job *job, size_t start, size_t count) {
  const struct np_gather_nd_params *p = job->params;
  const size_t bytes = p->row * (size_t)p->element_size;
  const char *const data = job->inputs[0], *const indices = job->inputs[1];
  char *const out = job->out;
  for (size_t tuple = start; tuple < start + count; tuple++) {
    ptrdiff_t place;
    if (!place_of(p, indices, tuple, &place)) {
      np_index_outside(job);
      return;
    }
    place += (ptrdiff_t)(tuple / p->tuples) * p->batch_stride;
    np_copy_bytes(out + tuple * bytes, data + place, bytes);
  }
}

int np_gather_nd(np_job *job) {
  const struct np_gather_nd_params *p = job->params;
  const size_t total = p->batches * p->tuples, bytes = p->row * (size_t)p->element_size;
  if (total * bytes == 0) return 0;
  return np_for_tiles(job, gather_tuples, total, 1 + NP_PARALLEL_MIN_BYTES / 4 / bytes,
                      total * bytes, 0);
}

/* Columns of all rows: updates of one element are in order. */
static void scatter_columns(np_job *job, size_t start, size_t count) {
  const struct np_gather_nd_params *p = job->params;
  const size_t size = (size_t)p->element_size;
  const char *const indices = job->inputs[1];
  const char *const updates = (const char *)job->inputs[2] + start * size;
  char *const out = (char *)job->out + start * size;
  for (size_t tuple = 0; tuple < p->tuples; tuple++) {
    if (tuple % POLL == POLL - 1 && np_cancel_check()) return;
    ptrdiff_t place;
    if (!place_of(p, indices, tuple, &place)) {
      np_index_outside(job);
      return;
    }
    np_scatter_update(p->reduction, p->type, size, out + place, updates + tuple * p->row * size,
                      count);
  }
}

int np_scatter_nd(np_job *job) {
  const struct np_gather_nd_params *p = job->params;
  return update(job, p->data_bytes, scatter_columns, p->row, 256,
                p->tuples * p->row * (size_t)p->element_size);
}
