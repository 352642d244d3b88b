/* Elementwise kernels that fuse what XNNPACK does in two passes, and conversions. */
#include "runtime/kernel.h"

/* out = min(max(a + b, low), high), all of `count` elements. */
struct np_add_clamp_params {
  size_t count;
  float low;
  float high;
};

#define TILE 4096

typedef struct {
  const void *params;
  const void *a;
  const void *b;
  float *out;
} job;

NP_MULTIVERSIONED(void, add_clamp,
                  (const float *a, const float *b, float *out, size_t count, float low, float high),
                  (a, b, out, count, low, high)) {
  for (size_t i = 0; i < count; i++) {
    float sum = a[i] + b[i];
    sum = sum < low ? low : sum; /* NaN stays */
    out[i] = sum > high ? high : sum;
  }
}

static void add_clamp_part(void *context, size_t start, size_t count) {
  const job *task = context;
  const struct np_add_clamp_params *p = task->params;
  add_clamp((const float *)task->a + start, (const float *)task->b + start, task->out + start,
            count, p->low, p->high);
}

int np_add_clamp(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_add_clamp_params *p = params;
  job task = {p, inputs[0], inputs[1], out};
  if (p->count == 0) return 0;
  np_workers *const used = p->count * 4 < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  np_parallel_for_tiles(used, add_clamp_part, &task, p->count, TILE, 0);
  return 0;
}
