/* Group and instance normalization of images in either order of axes, and local response
 * normalization.
 *
 * The variance is that of the differences from the mean. Some thousand elements are accumulated in
 * floats, and these in doubles: the error does not grow with the image. A mean is that of the
 * differences from the first element, so that one far from 0 costs no digits. */
#include <math.h>

#include "runtime/kernel.h"

/* Each group of channels of each image gets mean 0 and variance 1, then scale and bias of each
 * channel. Images are [channels, pixels], or [pixels, channels] where `channels_last`. */
struct np_group_norm_params {
  size_t images;
  size_t channels;
  size_t pixels;
  size_t groups; /* divides channels */
  float epsilon;
  int32_t channels_last;
  int32_t by_group; /* scale and bias are of groups */
};

#define LANES 16
#define CHUNK 4096
#define PIXELS 4096 /* between two looks at whether the run is stopped */
#define CHANNELS 64 /* of a part, where they lie side by side: a few cache lines */

NP_MULTIVERSIONED(double, total, (const float *x, size_t count, float mean, int squared),
                  (x, count, mean, squared)) {
  double whole = 0.0;
  for (size_t start = 0; start < count; start += CHUNK) {
    if (start % NP_STRETCH == NP_STRETCH - CHUNK && np_cancel_check()) return whole;
    const size_t size = count - start < CHUNK ? count - start : CHUNK;
    float lanes[2 * LANES], added = 0.0f;
    for (size_t c = 0; c < 2 * LANES; c++) lanes[c] = 0.0f;
    size_t i = start;
    const size_t end = start + size;
    for (; i + 2 * LANES <= end; i += 2 * LANES) {
      for (size_t c = 0; c < 2 * LANES; c++) {
        const float d = x[i + c] - mean;
        lanes[c] += squared ? d * d : d;
      }
    }
    for (size_t c = 0; i + c < end; c++) {
      const float d = x[i + c] - mean;
      lanes[c] += squared ? d * d : d;
    }
    for (size_t c = 0; c < 2 * LANES; c++) added += lanes[c];
    whole += added;
  }
  return whole;
}

NP_MULTIVERSIONED(void, apply,
                  (const float *x, float *out, size_t count, float mean, float factor, float bias),
                  (x, out, count, mean, factor, bias)) {
  for (size_t i = 0; i < count;) {
    if (i > 0 && np_cancel_check()) return;
    for (const size_t next = np_stretch(i, count); i < next; i++) {
      out[i] = (x[i] - mean) * factor + bias;
    }
  }
}

/* One group of an image of [channels, pixels]. */
static void planes(const np_job *job, size_t index) {
  const struct np_group_norm_params *p = job->params;
  const float *scale = job->inputs[1], *bias = job->inputs[2];
  const size_t channels = p->channels / p->groups, size = channels * p->pixels;
  const size_t group = index % p->groups;
  const float *x = (const float *)job->inputs[0] + index * size;
  float *out = (float *)job->out + index * size;
  const float mean = (float)(x[0] + total(x, size, x[0], 0) / (double)size);
  const float variance = (float)(total(x, size, mean, 1) / (double)size);
  const float factor = 1.0f / sqrtf(variance + p->epsilon);
  for (size_t c = 0; c < channels; c++) {
    const size_t at = p->by_group ? group : group * channels + c;
    apply(x + c * p->pixels, out + c * p->pixels, p->pixels, mean, factor * scale[at],
          bias[at]);
  }
}

NP_INLINE void add_pixel(const float *x, const float *means, float *totals, size_t count,
                         const int squared) {
  for (size_t c = 0; c < count; c++) {
    const float d = x[c] - means[c];
    totals[c] += squared ? d * d : d;
  }
}

/* Totals over the pixels of up to CHANNELS channels. */
NP_MULTIVERSIONED(void, totals_of_channels,
                  (const float *x, size_t stride, size_t pixels, const float *means, double *totals,
                   size_t count, int squared),
                  (x, stride, pixels, means, totals, count, squared)) {
  for (size_t c = 0; c < count; c++) totals[c] = 0.0;
  for (size_t start = 0; start < pixels; start += CHUNK / LANES) {
    if (start % PIXELS == PIXELS - CHUNK / LANES && np_cancel_check()) return;
    const size_t end = pixels - start < CHUNK / LANES ? pixels : start + CHUNK / LANES;
    float part[CHANNELS];
    for (size_t c = 0; c < count; c++) part[c] = 0.0f;
    if (squared) {
      for (size_t i = start; i < end; i++) add_pixel(x + i * stride, means, part, count, 1);
    } else {
      for (size_t i = start; i < end; i++) add_pixel(x + i * stride, means, part, count, 0);
    }
    for (size_t c = 0; c < count; c++) totals[c] += part[c];
  }
}

NP_MULTIVERSIONED(void, apply_pixels,
                  (const float *x, float *out, size_t stride, size_t pixels, const float *means,
                   const float *factors, const float *biases, size_t count),
                  (x, out, stride, pixels, means, factors, biases, count)) {
  for (size_t i = 0; i < pixels; i++) {
    if (i % PIXELS == PIXELS - 1 && np_cancel_check()) return;
    const float *from = x + i * stride;
    float *to = out + i * stride;
    for (size_t c = 0; c < count; c++) to[c] = (from[c] - means[c]) * factors[c] + biases[c];
  }
}

/* The sum over the channels of a group, block by block. */
static double group_total(const float *x, size_t stride, size_t pixels, size_t channels, float mean,
                          int squared) {
  double totals[CHANNELS], whole = 0.0;
  float means[CHANNELS];
  for (size_t c = 0; c < CHANNELS; c++) means[c] = mean;
  for (size_t first = 0; first < channels; first += CHANNELS) {
    const size_t count = np_min(channels - first, CHANNELS);
    totals_of_channels(x + first, stride, pixels, means, totals, count, squared);
    for (size_t c = 0; c < count; c++) whole += totals[c];
  }
  return whole;
}

/* A group of many channels of an image of [pixels, channels]. */
static void wide_group(const np_job *job, const float *x, float *out, size_t group) {
  const struct np_group_norm_params *p = job->params;
  const float *scale = job->inputs[1], *bias = job->inputs[2];
  const size_t channels = p->channels / p->groups, first = group * channels;
  const double size = (double)channels * (double)p->pixels;
  const size_t stride = p->channels;
  const float near = x[first];
  const float mean =
      (float)(near + group_total(x + first, stride, p->pixels, channels, near, 0) / size);
  const float variance =
      (float)(group_total(x + first, stride, p->pixels, channels, mean, 1) / size);
  const float factor = 1.0f / sqrtf(variance + p->epsilon);
  float means[CHANNELS], factors[CHANNELS], biases[CHANNELS];
  for (size_t start = 0; start < channels; start += CHANNELS) {
    const size_t count = np_min(channels - start, CHANNELS);
    for (size_t c = 0; c < count; c++) {
      const size_t at = p->by_group ? group : first + start + c;
      means[c] = mean;
      factors[c] = factor * scale[at];
      biases[c] = bias[at];
    }
    apply_pixels(x + first + start, out + first + start, stride, p->pixels, means, factors, biases,
                 count);
  }
}

/* Several whole groups of at most CHANNELS channels together. */
static void narrow_groups(const np_job *job, const float *x, float *out, size_t group,
                          size_t groups) {
  const struct np_group_norm_params *p = job->params;
  const float *scale = job->inputs[1], *bias = job->inputs[2];
  const size_t each = p->channels / p->groups, count = groups * each, first = group * each;
  double totals[CHANNELS];
  float means[CHANNELS], factors[CHANNELS], biases[CHANNELS];
  const double size = (double)each * (double)p->pixels;
  memcpy(means, x + first, count * sizeof(float));
  for (int squared = 0; squared < 2; squared++) {
    totals_of_channels(x + first, p->channels, p->pixels, means, totals, count, squared);
    for (size_t g = 0; g < groups; g++) {
      double whole = 0.0;
      for (size_t c = g * each; c < (g + 1) * each; c++) {
        whole += totals[c] + (squared ? 0.0 : (double)means[c] * (double)p->pixels);
      }
      const float value = (float)(whole / size);
      for (size_t c = g * each; c < (g + 1) * each; c++) {
        if (squared) {
          const size_t at = p->by_group ? group + g : first + c;
          factors[c] = scale[at] / sqrtf(value + p->epsilon);
          biases[c] = bias[at];
        } else {
          means[c] = value;
        }
      }
    }
  }
  apply_pixels(x + first, out + first, p->channels, p->pixels, means, factors, biases, count);
}

/* Groups of a part, of images of [pixels, channels]. */
static size_t groups_together(const struct np_group_norm_params *p) {
  const size_t each = p->channels / p->groups;
  const size_t most = CHANNELS / each;
  return most < 1 ? 1 : most < p->groups ? most : p->groups;
}

static void part(np_job *job, size_t thread, size_t index) {
  const struct np_group_norm_params *p = job->params;
  if (!p->channels_last) {
    planes(job, index);
    return;
  }
  const size_t together = groups_together(p), parts = np_ceil_div(p->groups, together);
  const np_range groups = np_range_of(index % parts, together, p->groups);
  const size_t image = index / parts * p->channels * p->pixels;
  const float *x = (const float *)job->inputs[0] + image;
  float *out = (float *)job->out + image;
  if (p->channels / p->groups > CHANNELS) {
    wide_group(job, x, out, groups.first);
  } else {
    narrow_groups(job, x, out, groups.first, groups.count);
  }
}

int np_group_norm(np_job *job) {
  const struct np_group_norm_params *p = job->params;
  const size_t count = p->images * p->channels * p->pixels;
  if (count == 0) return 0;
  const size_t together = p->channels_last ? groups_together(p) : 1;
  return np_for_parts(job, part, p->images * np_ceil_div(p->groups, together),
                      count * 4 < NP_PARALLEL_MIN_BYTES, 0);
}
