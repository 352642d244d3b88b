/* Local response normalization: across channels, of images in either order of axes. */
#include <math.h>

#include "runtime/kernel.h"

/* x / (bias + alpha / size · Σ x²)^beta; the sum is over `size` channels around each. Images are
 * [channels, pixels], or [pixels, channels] where `channels_last`. */
struct np_lrn_params {
  size_t images;
  size_t channels;
  size_t pixels;
  size_t size;
  float alpha;
  float beta;
  float bias;
  int32_t channels_last;
};

#define PIXELS 64 /* of a part */

/* Up to PIXELS pixels, `step` apart, of one image whose channels are `stride` apart. */
static void pixels_of(const struct np_lrn_params *p, const float *x, float *out, size_t count,
                      size_t stride, size_t step) {
  const size_t before = (p->size - 1) / 2, after = p->size - 1 - before;
  const float factor = p->alpha / (float)p->size;
  for (size_t c = 0; c < p->channels; c++) {
    if (c % 64 == 63 && np_cancel_check()) return;
    const size_t first = c < before ? 0 : c - before;
    const size_t last = p->channels - 1 - c < after ? p->channels - 1 : c + after;
    float squares[PIXELS];
    for (size_t i = 0; i < count; i++) squares[i] = 0.0f;
    for (size_t d = first; d <= last; d++) {
      const float *row = x + d * stride;
      for (size_t i = 0; i < count; i++) squares[i] += row[i * step] * row[i * step];
    }
    for (size_t i = 0; i < count; i++) {
      const float base = p->bias + factor * squares[i];
      /* The power that all known networks have needs two roots. */
      const float power =
          p->beta == 0.75f ? sqrtf(base) * sqrtf(sqrtf(base)) : powf(base, p->beta);
      out[c * stride + i * step] = x[c * stride + i * step] / power;
    }
  }
}

static void part(np_job *job, size_t thread, size_t index) {
  const struct np_lrn_params *p = job->params;
  const size_t parts = np_ceil_div(p->pixels, PIXELS), image = index / parts;
  const np_range range = np_range_of(index % parts, PIXELS, p->pixels);
  const size_t stride = p->channels_last ? 1 : p->pixels;
  const size_t step = p->channels_last ? p->channels : 1;
  const size_t at = image * p->channels * p->pixels + range.first * step;
  pixels_of(p, (const float *)job->inputs[0] + at, (float *)job->out + at, range.count, stride,
            step);
}

int np_lrn(np_job *job) {
  const struct np_lrn_params *p = job->params;
  const size_t count = p->images * p->channels * p->pixels;
  if (count == 0) return 0;
  return np_for_parts(job, part, p->images * np_ceil_div(p->pixels, PIXELS),
                      count * 4 < NP_PARALLEL_MIN_BYTES, 0);
}
