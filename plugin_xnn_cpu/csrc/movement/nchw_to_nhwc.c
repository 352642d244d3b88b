/* Planes to pixels, [N, C, P] to [N, P, C], for few channels: what the inputs of image networks
 * have. XNNPACK's transpose is made for many. */
#include "runtime/kernel.h"

/* out[n, p, c] = in[n, c, p], of 2 to 4 channels, and elements of 1 or 4 bytes. */
struct np_nchw_to_nhwc_params {
  size_t images;
  size_t channels;
  size_t pixels;
  size_t element_size;
};

typedef struct {
  const struct np_nchw_to_nhwc_params *params;
  const char *in;
  char *out;
} job;

/* `count` pixels of planes that start at `in`, and lie `apart` elements one after the other. */
#define NP_PLANES_TO_PIXELS(type, name)                                                       \
  NP_MULTIVERSIONED(void, name,                                                               \
                    (const type *in, size_t apart, size_t channels, type *out, size_t count), \
                    (in, apart, channels, out, count)) {                                      \
    const type *a = in, *b = in + apart;                                                      \
    const type *c = channels > 2 ? b + apart : b, *d = channels > 3 ? c + apart : c;          \
    if (channels == 2) {                                                                      \
      for (size_t i = 0; i < count; i++) {                                                    \
        out[2 * i] = a[i];                                                                    \
        out[2 * i + 1] = b[i];                                                                \
      }                                                                                       \
    } else if (channels == 3) {                                                               \
      for (size_t i = 0; i < count; i++) {                                                    \
        out[3 * i] = a[i];                                                                    \
        out[3 * i + 1] = b[i];                                                                \
        out[3 * i + 2] = c[i];                                                                \
      }                                                                                       \
    } else {                                                                                  \
      for (size_t i = 0; i < count; i++) {                                                    \
        out[4 * i] = a[i];                                                                    \
        out[4 * i + 1] = b[i];                                                                \
        out[4 * i + 2] = c[i];                                                                \
        out[4 * i + 3] = d[i];                                                                \
      }                                                                                       \
    }                                                                                         \
  }

NP_PLANES_TO_PIXELS(float, pixels_of_words)
NP_PLANES_TO_PIXELS(int8_t, pixels_of_bytes)

static void part(void *context, size_t start, size_t count) {
  const job *task = context;
  const struct np_nchw_to_nhwc_params *p = task->params;
  const size_t pixels = p->pixels, channels = p->channels, size = p->element_size;
  while (count > 0) {
    const size_t image = start / pixels;
    const size_t at = start % pixels;
    const size_t here = count < pixels - at ? count : pixels - at;
    const void *in = task->in + (image * pixels * channels + at) * size;
    void *out = task->out + start * channels * size;
    if (size == 1) {
      pixels_of_bytes(in, pixels, channels, out, here);
    } else {
      pixels_of_words(in, pixels, channels, out, here);
    }
    start += here;
    count -= here;
  }
}

int np_nchw_to_nhwc(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_nchw_to_nhwc_params *p = params;
  const size_t total = p->images * p->pixels;
  const int known = p->element_size == 1 || p->element_size == sizeof(float);
  if (p->channels < 2 || p->channels > 4 || !known) return NP_STATUS_CALL;
  job task = {p, inputs[0], out};
  np_workers *const used =
      total * p->channels * p->element_size < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  np_parallel_for_tiles(used, part, &task, total, 4096, 0);
  return 0;
}
