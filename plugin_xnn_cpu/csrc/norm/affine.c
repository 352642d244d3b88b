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

NP_TILE(planes) {
  const struct np_affine_params *p = job->params;
  const float *scales = job->inputs[1], *shifts = job->inputs[2], low = p->low, high = p->high;
  const size_t pixels = p->pixels;
  const float *x = (const float *)job->inputs[0] + start * pixels;
  float *out = (float *)job->out + start * pixels;
  for (size_t at = start; at < start + count; at++, x += pixels, out += pixels) {
    const float scale = scales[at % p->channels], shift = shifts[at % p->channels];
    for (size_t i = 0; i < pixels;) {
      if (i > 0 && np_cancel_check()) return;
      for (const size_t next = np_stretch(i, pixels); i < next; i++) {
        out[i] = clamped(x[i] * scale + shift, low, high);
      }
    }
  }
}

NP_TILE(rows) {
  const struct np_affine_params *p = job->params;
  const float *scale = job->inputs[1], *shift = job->inputs[2], low = p->low, high = p->high;
  const size_t channels = p->channels;
  const float *x = (const float *)job->inputs[0] + start * channels;
  float *out = (float *)job->out + start * channels;
  for (size_t i = 0; i < count; i++, x += channels, out += channels) {
    for (size_t c = 0; c < channels; c++) out[c] = clamped(x[c] * scale[c] + shift[c], low, high);
  }
}

int np_affine(np_job *job) {
  const struct np_affine_params *p = job->params;
  const size_t count = p->images * p->channels * p->pixels;
  if (count == 0) return 0;
  return p->channels_last
             ? np_for_tiles(job, rows, p->images * p->pixels, 1 + TILE / p->channels, count * 4, 0)
             : np_for_tiles(job, planes, p->images * p->channels, 1 + TILE / p->pixels, count * 4,
                            0);
}
