/* Choosing between two tensors, with broadcasting. */
#include <string.h>

#include "runtime/kernel.h"

/* out = condition ? x : y, each broadcast by strides of 0; out is dense. */
struct np_where_params {
  size_t rank;
  size_t sizes[8];
  ptrdiff_t strides[3][8];
  size_t element_size;
};

typedef struct {
  const struct np_where_params *params;
  const uint8_t *condition;
  const char *x;
  const char *y;
  char *out;
} job;

NP_MULTIVERSIONED(void, row4,
                  (const uint8_t *c, ptrdiff_t cs, const uint32_t *x, ptrdiff_t xs,
                   const uint32_t *y, ptrdiff_t ys, uint32_t *out, size_t count),
                  (c, cs, x, xs, y, ys, out, count)) {
  if (cs == 1 && xs == 1 && ys == 0) {
    for (size_t i = 0; i < count; i++) out[i] = c[i] ? x[i] : y[0];
  } else if (cs == 1 && xs == 0 && ys == 1) {
    for (size_t i = 0; i < count; i++) out[i] = c[i] ? x[0] : y[i];
  } else {
    for (size_t i = 0; i < count; i++) {
      const ptrdiff_t at = (ptrdiff_t)i;
      out[i] = c[at * cs] ? x[at * xs] : y[at * ys];
    }
  }
}

static void any_row(const uint8_t *c, ptrdiff_t cs, const char *x, ptrdiff_t xs, const char *y,
                    ptrdiff_t ys, char *out, size_t count, size_t size) {
  for (size_t i = 0; i < count; i++) {
    const ptrdiff_t at = (ptrdiff_t)i;
    const char *from = c[at * cs] ? x + at * xs * (ptrdiff_t)size : y + at * ys * (ptrdiff_t)size;
    memcpy(out + i * size, from, size);
  }
}

static void rows(void *context, size_t thread, size_t index) {
  (void)thread;
  const job *task = context;
  const struct np_where_params *p = task->params;
  const size_t last = p->rank - 1;
  const size_t count = p->sizes[last];
  const ptrdiff_t size = (ptrdiff_t)p->element_size;
  const uint8_t *c = task->condition;
  const char *x = task->x;
  const char *y = task->y;
  char *out = task->out + index * count * p->element_size;
  for (size_t dim = last; dim-- > 0;) {
    const ptrdiff_t at = (ptrdiff_t)(index % p->sizes[dim]);
    index /= p->sizes[dim];
    c += at * p->strides[0][dim];
    x += at * p->strides[1][dim] * size;
    y += at * p->strides[2][dim] * size;
  }
  if (size == 4) {
    row4(c, p->strides[0][last], (const uint32_t *)x, p->strides[1][last], (const uint32_t *)y,
         p->strides[2][last], (uint32_t *)out, count);
  } else {
    any_row(c, p->strides[0][last], x, p->strides[1][last], y, p->strides[2][last], out, count,
            p->element_size);
  }
}

int np_where(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_where_params *p = params;
  size_t outer = 1;
  for (size_t dim = 0; dim + 1 < p->rank; dim++) outer *= p->sizes[dim];
  const size_t inner = p->sizes[p->rank - 1];
  if (outer * inner == 0) return 0;
  job task = {p, inputs[0], inputs[1], inputs[2], out};
  np_workers *const used = outer * inner * p->element_size < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  np_parallel_for(used, rows, &task, outer, 0);
  return 0;
}
