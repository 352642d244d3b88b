/* Addition and clamp, which XNNPACK does in two passes. */
#include "runtime/kernel.h"

/* out = min(max(a + b, low), high), all of `count` elements. */
struct np_add_clamp_params {
  size_t count;
  float low;
  float high;
};

#define TILE 4096

NP_TILE(add_clamp) {
  const struct np_add_clamp_params *p = job->params;
  const float *a = (const float *)job->inputs[0] + start;
  const float *b = (const float *)job->inputs[1] + start;
  const float low = p->low, high = p->high;
  float *out = (float *)job->out + start;
  for (size_t i = 0; i < count; i++) {
    float sum = a[i] + b[i];
    sum = sum < low ? low : sum; /* NaN stays */
    out[i] = sum > high ? high : sum;
  }
}

int np_add_clamp(np_job *job) {
  const size_t count = ((const struct np_add_clamp_params *)job->params)->count;
  return np_for_tiles(job, add_clamp, count, TILE, count * 4, 0);
}
