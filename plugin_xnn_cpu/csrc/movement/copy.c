/* Strided copies: slices with steps, concatenation, expansion, reversal, odd element sizes. */
#include "movement/copy.h"

#include "runtime/kernel.h"

#define POLL_BYTES ((ptrdiff_t)1 << 20) /* between two looks at whether the run is stopped */

typedef struct {
  const struct np_copy_params *params;
  const char *in;
  char *out;
  size_t inner; /* the first dimension that one call copies whole */
} copy_job;

static void copy_row(const char *in, ptrdiff_t in_stride, char *out, ptrdiff_t out_stride,
                     size_t count, size_t size) {
  if (in_stride == 1 && out_stride == 1) {
    np_copy_bytes(out, in, count * size);
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

/* A whole row; returns whether the run was stopped meanwhile. */
static int copy_long_row(const struct np_copy_params *p, const char *in, char *out) {
  const size_t last = p->rank - 1, all = p->sizes[last];
  const ptrdiff_t in_stride = p->in_strides[last], out_stride = p->out_strides[last];
  const ptrdiff_t size = (ptrdiff_t)p->element_size;
  const size_t some = in_stride == 1 && out_stride == 1 ? all : NP_STRETCH;
  for (size_t i = 0; i < all; i += some) {
    if (i > 0 && np_cancel_check()) return 1;
    copy_row(in + (ptrdiff_t)i * in_stride * size, in_stride, out + (ptrdiff_t)i * out_stride * size,
             out_stride, np_min(all - i, some), p->element_size);
  }
  return 0;
}

/* `left` bytes are copied before the next look at whether the run is stopped; returns whether it
 * is. */
static int copy_from(const struct np_copy_params *p, size_t dim, const char *in, char *out,
                     ptrdiff_t *left) {
  const ptrdiff_t size = (ptrdiff_t)p->element_size;
  if (dim + 1 >= p->rank) {
    *left -= (ptrdiff_t)p->sizes[p->rank - 1] * size;
    if (*left < 0) {
      if (np_cancel_check()) return 1;
      *left = POLL_BYTES;
    }
    return copy_long_row(p, in, out);
  }
  for (size_t i = 0; i < p->sizes[dim]; i++) {
    if (copy_from(p, dim + 1, in, out, left)) return 1;
    in += p->in_strides[dim] * size;
    out += p->out_strides[dim] * size;
  }
  return 0;
}

static void copy_part(void *context, size_t thread, size_t index) {
  const copy_job *job = context;
  const struct np_copy_params *p = job->params;
  const ptrdiff_t *const strides[] = {p->in_strides, p->out_strides};
  const ptrdiff_t size = (ptrdiff_t)p->element_size;
  ptrdiff_t at[2];
  np_offsets(index, job->inner, p->sizes, 2, strides, at);
  ptrdiff_t left = POLL_BYTES;
  copy_from(p, job->inner, job->in + at[0] * size, job->out + at[1] * size, &left);
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
