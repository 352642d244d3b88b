/* Strided copies: slices with steps, concatenation, expansion, reversal, odd element sizes. */
#include "movement/copy.h"

#include "runtime/kernel.h"

typedef struct {
  const struct np_copy_params *params;
  const char *in;
  char *out;
  size_t inner; /* the first dimension that one call copies whole */
} copy_job;

static void copy_row(const char *in, ptrdiff_t in_stride, char *out, ptrdiff_t out_stride,
                     size_t count, size_t size) {
  if (in_stride == 1 && out_stride == 1) {
    memcpy(out, in, count * size);
    return;
  }
  if (size > 8 || (size & (size - 1)) != 0) {
    for (size_t i = 0; i < count; i++) {
      memcpy(out + (ptrdiff_t)i * out_stride * (ptrdiff_t)size,
             in + (ptrdiff_t)i * in_stride * (ptrdiff_t)size, size);
    }
    return;
  }
#define NP_ROW(type)                                                            \
  for (size_t i = 0; i < count; i++) {                                          \
    ((type *)out)[(ptrdiff_t)i * out_stride] = ((const type *)in)[(ptrdiff_t)i * in_stride]; \
  }
  NP_SWITCH_SIZE(size, NP_ROW)
#undef NP_ROW
}

static void copy_from(const struct np_copy_params *p, size_t dim, const char *in, char *out) {
  const ptrdiff_t size = (ptrdiff_t)p->element_size;
  if (dim + 1 >= p->rank) {
    const size_t last = p->rank - 1;
    copy_row(in, p->in_strides[last], out, p->out_strides[last], p->sizes[last], p->element_size);
    return;
  }
  for (size_t i = 0; i < p->sizes[dim]; i++) {
    copy_from(p, dim + 1, in, out);
    in += p->in_strides[dim] * size;
    out += p->out_strides[dim] * size;
  }
}

static void copy_part(void *context, size_t thread, size_t index) {
  const copy_job *job = context;
  const struct np_copy_params *p = job->params;
  const ptrdiff_t *const strides[] = {p->in_strides, p->out_strides};
  const ptrdiff_t size = (ptrdiff_t)p->element_size;
  ptrdiff_t at[2];
  np_offsets(index, job->inner, p->sizes, 2, strides, at);
  copy_from(p, job->inner, job->in + at[0] * size, job->out + at[1] * size);
}

int np_copy(np_job *job) {
  const struct np_copy_params *p = job->params;
  const ptrdiff_t size = (ptrdiff_t)p->element_size;
  const size_t total = p->element_size * np_element_count(p->rank, p->sizes);
  if (total == 0) return 0;
  copy_job copy = {p, (const char *)job->inputs[0] + p->in_offset * size,
                   (char *)job->out + p->out_offset * size, 0};
  size_t parts = 1;
  if (np_workers_for(total, job->workers) != NULL) {
    const size_t enough = 4 * np_workers_threads(job->workers);
    while (copy.inner + 1 < p->rank && parts < enough) parts *= p->sizes[copy.inner++];
    np_parallel_for(job->workers, copy_part, &copy, parts, 0);
  } else {
    copy_part(&copy, 0, 0);
  }
  return 0;
}
