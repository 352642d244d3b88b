/* Strided copies: slices with steps, concatenation, expansion, reversal, odd element sizes. */
#include <string.h>

#include "movement/copy.h"
#include "runtime/kernel.h"

typedef struct {
  const struct np_copy_params *params;
  const char *in;
  char *out;
  size_t inner; /* the first dimension that one call copies whole */
} job;

static void copy_row(const char *in, ptrdiff_t in_stride, char *out, ptrdiff_t out_stride,
                     size_t count, size_t size) {
  if (in_stride == 1 && out_stride == 1) {
    memcpy(out, in, count * size);
    return;
  }
#define NP_ROW(type)                                                      \
  {                                                                       \
    const type *from = (const type *)in;                                  \
    type *to = (type *)out;                                               \
    for (size_t i = 0; i < count; i++) {                                  \
      to[(ptrdiff_t)i * out_stride] = from[(ptrdiff_t)i * in_stride];     \
    }                                                                     \
    return;                                                               \
  }
  switch (size) {
    case 1:
      NP_ROW(uint8_t)
    case 2:
      NP_ROW(uint16_t)
    case 4:
      NP_ROW(uint32_t)
    case 8:
      NP_ROW(uint64_t)
    default:
      for (size_t i = 0; i < count; i++) {
        memcpy(out + (ptrdiff_t)i * out_stride * (ptrdiff_t)size,
               in + (ptrdiff_t)i * in_stride * (ptrdiff_t)size, size);
      }
  }
#undef NP_ROW
}

static void copy_from(const struct np_copy_params *params, size_t dim, const char *in, char *out) {
  const ptrdiff_t size = (ptrdiff_t)params->element_size;
  if (dim + 1 >= params->rank) {
    const size_t last = params->rank - 1;
    copy_row(in, params->in_strides[last], out, params->out_strides[last], params->sizes[last],
             params->element_size);
    return;
  }
  for (size_t i = 0; i < params->sizes[dim]; i++) {
    copy_from(params, dim + 1, in, out);
    in += params->in_strides[dim] * size;
    out += params->out_strides[dim] * size;
  }
}

static void copy_part(void *context, size_t thread, size_t index) {
  (void)thread;
  const job *task = context;
  const struct np_copy_params *params = task->params;
  const ptrdiff_t size = (ptrdiff_t)params->element_size;
  const char *in = task->in;
  char *out = task->out;
  for (size_t dim = task->inner; dim-- > 0;) {
    const ptrdiff_t at = (ptrdiff_t)(index % params->sizes[dim]);
    index /= params->sizes[dim];
    in += at * params->in_strides[dim] * size;
    out += at * params->out_strides[dim] * size;
  }
  copy_from(params, task->inner, in, out);
}

int np_copy(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_copy_params *p = params;
  const ptrdiff_t size = (ptrdiff_t)p->element_size;
  size_t total = p->element_size;
  for (size_t dim = 0; dim < p->rank; dim++) total *= p->sizes[dim];
  if (total == 0) return 0;
  job task = {p, (const char *)inputs[0] + p->in_offset * size, (char *)out + p->out_offset * size,
              0};
  if (total < NP_PARALLEL_MIN_BYTES || workers == NULL) {
    copy_part(&task, 0, 0);
    return 0;
  }
  size_t parts = 1;
  const size_t enough = 4 * np_workers_threads(workers);
  while (task.inner + 1 < p->rank && parts < enough) parts *= p->sizes[task.inner++];
  np_parallel_for(workers, copy_part, &task, parts, 0);
  return 0;
}
