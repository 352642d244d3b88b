/* Choosing between two tensors, with broadcasting. */
#include "runtime/kernel.h"

/* out = condition ? x : y, each broadcast by strides of 0; out is dense. */
struct np_where_params {
  size_t rank;
  size_t sizes[8];
  ptrdiff_t strides[3][8];
  size_t element_size;
};

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
  const np_job *job = context;
  const struct np_where_params *p = job->params;
  const size_t last = p->rank - 1, count = p->sizes[last];
  const ptrdiff_t size = (ptrdiff_t)p->element_size;
  const ptrdiff_t *const strides[] = {p->strides[0], p->strides[1], p->strides[2]};
  ptrdiff_t at[3];
  np_offsets(index, last, p->sizes, 3, strides, at);
  const uint8_t *c = (const uint8_t *)job->inputs[0] + at[0];
  const char *x = (const char *)job->inputs[1] + at[1] * size;
  const char *y = (const char *)job->inputs[2] + at[2] * size;
  char *out = (char *)job->out + index * count * p->element_size;
  const ptrdiff_t cs = strides[0][last], xs = strides[1][last], ys = strides[2][last];
  if (size == 4) {
    row4(c, cs, (const uint32_t *)x, xs, (const uint32_t *)y, ys, (uint32_t *)out, count);
  } else {
    any_row(c, cs, x, xs, y, ys, out, count, p->element_size);
  }
}

int np_where(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_where_params *p = params;
  const size_t outer = np_element_count(p->rank - 1, p->sizes), inner = p->sizes[p->rank - 1];
  if (outer * inner == 0) return 0;
  return np_run_parts((np_job){params, inputs, out, NULL, 0}, rows, outer, 0,
                      np_workers_for(outer * inner * p->element_size, workers));
}
