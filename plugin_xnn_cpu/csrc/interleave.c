/* Planes to pixels, [N, C, P] to [N, P, C], for few channels: what the inputs of image networks
 * have. XNNPACK's transpose is made for many. */
#include "run.h"

typedef struct {
  const struct np_interleave_params *params;
  const float *in;
  float *out;
} job;

NP_FOR_EACH_CPU
static void two(const float *a, const float *b, float *out, size_t count) {
  for (size_t i = 0; i < count; i++) {
    out[2 * i] = a[i];
    out[2 * i + 1] = b[i];
  }
}

NP_FOR_EACH_CPU
static void three(const float *a, const float *b, const float *c, float *out, size_t count) {
  for (size_t i = 0; i < count; i++) {
    out[3 * i] = a[i];
    out[3 * i + 1] = b[i];
    out[3 * i + 2] = c[i];
  }
}

NP_FOR_EACH_CPU
static void four(const float *a, const float *b, const float *c, const float *d, float *out,
                 size_t count) {
  for (size_t i = 0; i < count; i++) {
    out[4 * i] = a[i];
    out[4 * i + 1] = b[i];
    out[4 * i + 2] = c[i];
    out[4 * i + 3] = d[i];
  }
}

static void part(void *context, size_t start, size_t count) {
  const job *task = context;
  const size_t pixels = task->params->pixels;
  const size_t channels = task->params->channels;
  while (count > 0) {
    const size_t image = start / pixels;
    const size_t at = start % pixels;
    const size_t here = count < pixels - at ? count : pixels - at;
    const float *a = task->in + image * pixels * channels + at;
    float *out = task->out + start * channels;
    if (channels == 2) {
      two(a, a + pixels, out, here);
    } else if (channels == 3) {
      three(a, a + pixels, a + 2 * pixels, out, here);
    } else {
      four(a, a + pixels, a + 2 * pixels, a + 3 * pixels, out, here);
    }
    start += here;
    count -= here;
  }
}

int np_interleave(const void *params, const void *const *inputs, void *out, pthreadpool_t pool) {
  const struct np_interleave_params *p = params;
  const size_t total = p->images * p->pixels;
  if (p->channels < 2 || p->channels > 4) return NP_STATUS_CALL;
  job task = {p, inputs[0], out};
  const pthreadpool_t used = total * p->channels * 4 < NP_SMALL ? NULL : pool;
  pthreadpool_parallelize_1d_tile_1d(used, part, &task, total, 4096, 0);
  return 0;
}
