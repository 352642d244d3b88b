/* Between float32 and integers of 8 and 16 bits; and float32 rounded to what such integers stand
 * for. */
#include <math.h>

#include "runtime/kernel.h"

/* NP_QUANTIZE and NP_QUANTIZE16: out[i] = min(max(rint(x[i] / scale), low), high) + zero_point, of
 * int8, or of int16 or uint16; `low` and `high` keep the sum in the type's range. NaN becomes
 * `low`. Where NP_QUANTIZE has a second input, of float32, rows of `columns` elements are
 * multiplied by it before. NP_DEQUANTIZE and NP_DEQUANTIZE16: float out[i] = (x[i] - zero_point) *
 * scale. NP_FAKE_QUANTIZE: quantized and dequantized, in one pass over floats; of any width of
 * integers. */
struct np_quantize_params {
  size_t count;
  size_t columns;
  float scale;
  float low;
  float high;
  int32_t zero_point;
  int32_t is_signed; /* int16; otherwise uint16 */
};

/* float out[i] = min(max(rint(x[i] / scale), low), high) * scale, where all three are those of the
 * channel (i / inner) % channels. NaN becomes `low`. */
struct np_fake_quantize_channels_params {
  size_t count;
  size_t channels;
  size_t inner;
  const float *scales;
  const float *lows;
  const float *highs;
};

/* DynamicQuantizeLinear: of float32 elements, of which a thread takes `part` at a time; the
 * workspace has two float32 numbers for each part. */
struct np_dynamic_range_params {
  size_t count;
  size_t part;
};

/* How a tensor is quantized: scale · (q - zero), with q an int8, which is the byte of
 * DynamicQuantizeLinear XOR 0x80. */
struct np_dynamic_range {
  float scale;
  int8_t zero[4]; /* the first of them */
};

#define TILE 16384

/* Divided, and not multiplied by the inverse: halves fall where the standard has them. */
NP_INLINE float to_steps(float value, float scale, float low, float high) {
  float x = rintf(value / scale);
  x = x > low ? x : low;
  return x < high ? x : high;
}

/* As integers stand for it; an integer has no -0. */
NP_INLINE float faked(float value, float scale, float low, float high) {
  return (to_steps(value, scale, low, high) + 0.0f) * scale;
}

/* A tile whose elements become `expression` of x. Parameters are copied: stores of integers cannot
 * change them. */
#define NP_QUANTIZING(name, source, target, expression)                                  \
  NP_TILE(name) {                                                                        \
    const struct np_quantize_params p = *(const struct np_quantize_params *)job->params; \
    const source *in = (const source *)job->inputs[0] + start;                           \
    target *out = (target *)job->out + start;                                            \
    for (size_t i = 0; i < count; i++) {                                                 \
      const source x = in[i];                                                            \
      out[i] = (target)(expression);                                                     \
    }                                                                                    \
  }
#define NP_STEPS ((int32_t)to_steps(x, p.scale, p.low, p.high) + p.zero_point)
#define NP_REAL ((float)(x - p.zero_point) * p.scale)

NP_QUANTIZING(to_int8, float, int8_t, NP_STEPS)
NP_QUANTIZING(to_uint16, float, uint16_t, NP_STEPS) /* int16 has the same low 16 bits */
NP_QUANTIZING(from_int8, int8_t, float, NP_REAL)
NP_QUANTIZING(from_int16, int16_t, float, NP_REAL)
NP_QUANTIZING(from_uint16, uint16_t, float, NP_REAL)
NP_QUANTIZING(fake, float, float, faked(x, p.scale, p.low, p.high))

NP_TILE(multiplied_to_int8) {
  const struct np_quantize_params p = *(const struct np_quantize_params *)job->params;
  const float *in = (const float *)job->inputs[0] + start;
  int8_t *out = (int8_t *)job->out + start;
  for (size_t done = 0, some; done < count; done += some, in += some, out += some) {
    const size_t column = (start + done) % p.columns;
    const float *factors = (const float *)job->inputs[1] + column;
    some = np_min(p.columns - column, count - done);
    for (size_t i = 0; i < some; i++) {
      const float x = in[i] * factors[i];
      out[i] = (int8_t)NP_STEPS;
    }
  }
}

static int run(np_job *job, np_tile *tile) {
  const size_t count = ((const struct np_quantize_params *)job->params)->count;
  return np_for_tiles(job, tile, count, TILE, count * sizeof(float), 0);
}

int np_quantize(np_job *job) {
  return run(job, job->inputs[1] == NULL ? to_int8 : multiplied_to_int8);
}

int np_dequantize(np_job *job) { return run(job, from_int8); }

int np_quantize16(np_job *job) { return run(job, to_uint16); }

int np_dequantize16(np_job *job) {
  const struct np_quantize_params *p = job->params;
  return run(job, p->is_signed ? from_int16 : from_uint16);
}

int np_fake_quantize(np_job *job) { return run(job, fake); }

NP_TILE(fake_channels) {
  const struct np_fake_quantize_channels_params *p = job->params;
  const float *in = (const float *)job->inputs[0] + start;
  float *out = (float *)job->out + start;
  for (size_t done = 0, some; done < count; done += some, in += some, out += some) {
    const size_t at = start + done, channel = at / p->inner % p->channels;
    const float *scales = p->scales + channel, *lows = p->lows + channel;
    const float *highs = p->highs + channel;
    if (p->inner == 1) { /* a channel for each element, as where channels are the last axis */
      some = np_min(p->channels - channel, count - done);
      for (size_t i = 0; i < some; i++) out[i] = faked(in[i], scales[i], lows[i], highs[i]);
    } else {
      const float scale = *scales, low = *lows, high = *highs;
      some = np_min(p->inner - at % p->inner, count - done);
      for (size_t i = 0; i < some; i++) out[i] = faked(in[i], scale, low, high);
    }
  }
}

int np_fake_quantize_channels(np_job *job) {
  const size_t count = ((const struct np_fake_quantize_channels_params *)job->params)->count;
  return np_for_tiles(job, fake_channels, count, TILE, count * sizeof(float), 0);
}

typedef struct {
  float low;
  float high;
} extremes;

/* 0 is in the range in any case; NaN is in none. */
NP_MULTIVERSIONED(extremes, extremes_of, (const float *in, size_t count), (in, count)) {
  float low = 0.0f, high = 0.0f;
  for (size_t i = 0; i < count; i++) {
    low = in[i] < low ? in[i] : low;
    high = in[i] > high ? in[i] : high;
  }
  return (extremes){low, high};
}

static void range_part(np_job *job, size_t thread, size_t index) {
  const struct np_dynamic_range_params *p = job->params;
  const np_range part = np_range_of(index, p->part, p->count);
  extremes *found = (extremes *)(void *)job->scratch;
  found[index] = extremes_of((const float *)job->inputs[0] + part.first, part.count);
}

int np_dynamic_range(np_job *job) {
  const struct np_dynamic_range_params *p = job->params;
  const extremes *found = (const extremes *)(void *)job->scratch;
  const size_t parts = p->count == 0 ? 0 : np_ceil_div(p->count, p->part);
  np_for_parts(job, range_part, parts, p->count * sizeof(float) < NP_PARALLEL_MIN_BYTES, 0);
  float low = 0.0f, high = 0.0f;
  for (size_t i = 0; i < parts; i++) {
    low = found[i].low < low ? found[i].low : low;
    high = found[i].high > high ? found[i].high : high;
  }
  const float scale = low == high ? 1.0f : (high - low) / 255.0f;
  float zero = rintf(0.0f - low / scale);
  zero = zero > 0.0f ? zero : 0.0f; /* of a range that is not finite too */
  zero = zero < 255.0f ? zero : 255.0f;
  const struct np_dynamic_range range = {scale, {(int8_t)((int32_t)zero - 128)}};
  memcpy(job->out, &range, sizeof range);
  return 0;
}

/* With the scale and zero point that are the second and third input. */
static int run_dynamic(np_job *job, np_tile *tile) {
  const struct np_dynamic_range_params *p = job->params;
  const int32_t zero = *(const int8_t *)job->inputs[2];
  struct np_quantize_params given = {
      .count = p->count,
      .low = (float)(-128 - zero),
      .high = (float)(127 - zero),
      .zero_point = zero,
  };
  memcpy(&given.scale, job->inputs[1], sizeof given.scale);
  return run(&(np_job){&given, job->inputs, job->out, NULL, job->workers, 0}, tile);
}

int np_dynamic_dequantize(np_job *job) { return run_dynamic(job, from_int8); }

int np_dynamic_quantize(np_job *job) { return run_dynamic(job, to_int8); }
