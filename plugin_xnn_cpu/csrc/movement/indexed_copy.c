/* Copies through a table of indices for each axis: reflected, repeated and wrapped pads. */
#include "runtime/kernel.h"

/* out[i, j, ..] = in[table 0[i], table 1[j], ..], with a table for each axis; both are dense, the
 * input by its strides in elements. Of a row, the last axis, `plain` elements from `first` on have
 * sources that lie side by side. */
struct np_indexed_copy_params {
  size_t rank; /* 1 to 8 */
  size_t sizes[8];
  ptrdiff_t in_strides[8];
  size_t starts[8]; /* of each axis' table in `tables` */
  size_t first;
  size_t plain;
  size_t element_size; /* 1, 2, 4 or 8 */
  int32_t tables[];    /* indices, all within the input */
};

static void copy_some(const struct np_indexed_copy_params *p, const char *in, char *out,
                      size_t start, size_t end) {
  const int32_t *table = p->tables + p->starts[p->rank - 1];
  const ptrdiff_t stride = p->in_strides[p->rank - 1];
#define NP_SOME(type) \
  for (; i < next; i++) ((type *)out)[i] = ((const type *)in)[table[i] * stride];
  for (size_t i = start; i < end;) {
    if (i > start && np_cancel_check()) return;
    const size_t next = np_stretch(i, end);
    NP_SWITCH_SIZE(p->element_size, NP_SOME)
  }
#undef NP_SOME
}

static void rows(np_job *job, size_t start, size_t count) {
  const struct np_indexed_copy_params *p = job->params;
  const size_t last = p->rank - 1, size = p->element_size, columns = p->sizes[last];
  const size_t end = p->first + p->plain;
  for (size_t row = start; row < start + count; row++) {
    ptrdiff_t at = 0;
    size_t rest = row;
    for (size_t dim = last; dim-- > 0;) {
      at += p->tables[p->starts[dim] + rest % p->sizes[dim]] * p->in_strides[dim];
      rest /= p->sizes[dim];
    }
    const char *in = (const char *)job->inputs[0] + at * (ptrdiff_t)size;
    char *out = (char *)job->out + row * columns * size;
    copy_some(p, in, out, 0, p->first);
    if (p->plain > 0) {
      const ptrdiff_t from = p->tables[p->starts[last] + p->first] * p->in_strides[last];
      np_copy_bytes(out + p->first * size, in + from * (ptrdiff_t)size, p->plain * size);
    }
    copy_some(p, in, out, end, columns);
  }
}

int np_indexed_copy(np_job *job) {
  const struct np_indexed_copy_params *p = job->params;
  const size_t total = np_element_count(p->rank - 1, p->sizes);
  const size_t bytes = p->sizes[p->rank - 1] * p->element_size;
  if (total * bytes == 0) return 0;
  return np_for_tiles(job, rows, total, 1 + NP_PARALLEL_MIN_BYTES / 4 / bytes, total * bytes, 0);
}
