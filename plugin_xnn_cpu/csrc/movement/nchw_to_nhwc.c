/* Planes to pixels, [N, C, P] to [N, P, C], for few channels: what the inputs of image networks
 * have. XNNPACK's transpose is for many. */
#include "runtime/kernel.h"

/* out[n, p, c] = in[n, c, p], of 2 to 4 channels, and elements of 1 or 4 bytes. */
struct np_nchw_to_nhwc_params {
  size_t images;
  size_t channels;
  size_t pixels;
  size_t element_size;
};

/* `count` pixels of CHANNELS planes, a constant, that lie `apart` elements one after the other. */
#define NP_INTERLEAVE(type, CHANNELS)                                             \
  for (size_t i = 0; i < count; i++) {                                            \
    for (size_t c = 0; c < CHANNELS; c++) out[CHANNELS * i + c] = in[c * apart + i]; \
  }

#define NP_PLANES_TO_PIXELS(type, name)                                                         \
  NP_INLINE void name(const type *in, size_t apart, size_t channels, type *out, size_t count) { \
    if (channels == 2) {                                                                        \
      NP_INTERLEAVE(type, 2)                                                                    \
    } else if (channels == 3) {                                                                 \
      NP_INTERLEAVE(type, 3)                                                                    \
    } else {                                                                                    \
      NP_INTERLEAVE(type, 4)                                                                    \
    }                                                                                           \
  }

NP_PLANES_TO_PIXELS(float, pixels_of_words)
NP_PLANES_TO_PIXELS(int8_t, pixels_of_bytes)

NP_TILE(part) {
  const struct np_nchw_to_nhwc_params *p = job->params;
  const size_t pixels = p->pixels, channels = p->channels, size = p->element_size;
  while (count > 0) {
    const size_t image = start / pixels, at = start % pixels;
    const size_t here = np_min(count, pixels - at);
    const void *in = (const char *)job->inputs[0] + (image * pixels * channels + at) * size;
    void *out = (char *)job->out + start * channels * size;
    if (size == 1) {
      pixels_of_bytes(in, pixels, channels, out, here);
    } else {
      pixels_of_words(in, pixels, channels, out, here);
    }
    start += here;
    count -= here;
  }
}

int np_nchw_to_nhwc(np_job *job) {
  const struct np_nchw_to_nhwc_params *p = job->params;
  const size_t total = p->images * p->pixels;
  const int known = p->element_size == 1 || p->element_size == sizeof(float);
  if (p->channels < 2 || p->channels > 4 || !known) return NP_STATUS_CALL;
  return np_for_tiles(job, part, total, 4096, total * p->channels * p->element_size, 0);
}
