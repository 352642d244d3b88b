/* A scale and a shift for each channel of images, as a batch normalization alone is. */
#include "runtime/kernel.h"

/* x · scale + shift, clamped, with a scale and a shift for each channel. */
struct np_affine_params {
  size_t images;
  size_t channels;
  size_t pixels;
  float low;
  float high;
  int32_t channels_last;
};

#define TILE 16384

NP_INLINE float clamped(float x, float low, float high) { /* NaN stays */
  x = x < low ? low : x;
  return x > high ? high : x;
}

NP_MULTIVERSIONED(void, plane,
                  (const float *x, float *out, size_t count, float scale, float shift, float low,
                   float high),
                  (x, out, count, scale, shift, low, high)) {
  for (size_t i = 0; i < count; i++) out[i] = clamped(x[i] * scale + shift, low, high);
}

NP_MULTIVERSIONED(void, rows,
                  (const float *x, const float *scale, const float *shift, float *out,
                   size_t pixels, size_t channels, float low, float high),
                  (x, scale, shift, out, pixels, channels, low, high)) {
  for (size_t i = 0; i < pixels; i++, x += channels, out += channels) {
    for (size_t c = 0; c < channels; c++) {
      out[c] = clamped(x[c] * scale[c] + shift[c], low, high);
    }
  }
}

static void planes_part(void *context, size_t start, size_t count) {
  const np_job *job = context;
  const struct np_affine_params *p = job->params;
  const float *in = job->inputs[0], *scale = job->inputs[1], *shift = job->inputs[2];
  float *out = job->out;
  for (size_t at = start; at < start + count; at++) {
    const size_t channel = at % p->channels;
    plane(in + at * p->pixels, out + at * p->pixels, p->pixels, scale[channel], shift[channel],
          p->low, p->high);
  }
}

static void rows_part(void *context, size_t start, size_t count) {
  const np_job *job = context;
  const struct np_affine_params *p = job->params;
  rows((const float *)job->inputs[0] + start * p->channels, job->inputs[1], job->inputs[2],
       (float *)job->out + start * p->channels, count, p->channels, p->low, p->high);
}

int np_affine(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_affine_params *p = params;
  const size_t count = p->images * p->channels * p->pixels;
  if (count == 0) return 0;
  const np_job job = {params, inputs, out, NULL, 0};
  if (p->channels_last) {
    return np_run_tiles(job, rows_part, p->images * p->pixels, 1 + TILE / p->channels, count * 4, 0,
                        workers);
  }
  return np_run_tiles(job, planes_part, p->images * p->channels, 1 + TILE / p->pixels, count * 4, 0,
                      workers);
}
