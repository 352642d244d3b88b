/* Addition and clamp, which XNNPACK does in two passes. */
#include "runtime/kernel.h"

/* out = min(max(a + b, low), high), all of `count` elements. */
struct np_add_clamp_params {
  size_t count;
  float low;
  float high;
};

#define TILE 4096

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
  const np_job *job = context;
  const struct np_add_clamp_params *p = job->params;
  const float *a = job->inputs[0], *b = job->inputs[1];
  add_clamp(a + start, b + start, (float *)job->out + start, count, p->low, p->high);
}

int np_add_clamp(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const size_t count = ((const struct np_add_clamp_params *)params)->count;
  return np_run_tiles((np_job){params, inputs, out, NULL, 0}, add_clamp_part, count, TILE,
                      count * 4, 0, workers);
}
