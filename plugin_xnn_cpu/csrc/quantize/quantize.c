/* Between float32 and integers of 8 and 16 bits; and float32 rounded to what such integers stand
 * for. */
#include <math.h>

#include "runtime/kernel.h"

/* int8 out[i] = min(max(rint(x[i] / scale), low), high) + zero_point; `low` and `high` keep the sum
 * in [-128, 127]. NaN becomes `low`. Where there is a second input, of float32, rows of `columns`
 * elements are multiplied by it before. */
struct np_quantize_params {
  size_t count;
  size_t columns;
  float scale;
  float low;
  float high;
  int32_t zero_point;
};

/* float out[i] = (x[i] - zero_point) * scale. */
struct np_dequantize_params {
  size_t count;
  float scale;
  int32_t zero_point;
};

/* The same of int16 and uint16. NP_FAKE_QUANTIZE: quantized and dequantized, in one pass over
 * floats; of any width of integers. */
struct np_int16_params {
  size_t count;
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

typedef struct {
  float scale, low, high;
  int32_t zero;
} steps;

/* Divided, and not multiplied by the inverse: halves fall where the standard has them. */
NP_INLINE float to_steps(float value, float scale, float low, float high) {
  float x = rintf(value / scale);
  x = x > low ? x : low;
  return x < high ? x : high;
}

/* Arguments are copied: stores of integers cannot change them. */
#define NP_QUANTIZE(name, type)                                                                \
  NP_MULTIVERSIONED(void, name, (const steps *s, const float *in, type *out, size_t count),    \
                    (s, in, out, count)) {                                                     \
    const steps by = *s;                                                                       \
    for (size_t i = 0; i < count; i++) {                                                       \
      out[i] = (type)((int32_t)to_steps(in[i], by.scale, by.low, by.high) + by.zero);          \
    }                                                                                          \
  }

#define NP_DEQUANTIZE(name, type)                                                               \
  NP_MULTIVERSIONED(void, name,                                                                 \
                    (float scale, int32_t zero, const type *in, float *out, size_t count),      \
                    (scale, zero, in, out, count)) {                                            \
    for (size_t i = 0; i < count; i++) out[i] = (float)(in[i] - zero) * scale;                  \
  }

NP_QUANTIZE(to_int8, int8_t)
NP_QUANTIZE(to_uint16, uint16_t) /* and to int16, which has the same low 16 bits */
NP_DEQUANTIZE(from_int8, int8_t)
NP_DEQUANTIZE(from_int16, int16_t)
NP_DEQUANTIZE(from_uint16, uint16_t)

NP_MULTIVERSIONED(void, multiplied_to_int8,
                  (const steps *s, const float *in, const float *factors, int8_t *out,
                   size_t count),
                  (s, in, factors, out, count)) {
  const steps by = *s;
  for (size_t i = 0; i < count; i++) {
    out[i] = (int8_t)((int32_t)to_steps(in[i] * factors[i], by.scale, by.low, by.high) + by.zero);
  }
}

static void quantize_tile(void *context, size_t start, size_t count) {
  const np_job *job = context;
  const struct np_quantize_params *p = job->params;
  const steps s = {p->scale, p->low, p->high, p->zero_point};
  const float *in = (const float *)job->inputs[0] + start, *factors = job->inputs[1];
  int8_t *out = (int8_t *)job->out + start;
  if (factors == NULL) {
    to_int8(&s, in, out, count);
    return;
  }
  for (size_t done = 0; done < count;) {
    const size_t column = (start + done) % p->columns;
    const size_t some = np_min(p->columns - column, count - done);
    multiplied_to_int8(&s, in + done, factors + column, out + done, some);
    done += some;
  }
}

static void dequantize_tile(void *context, size_t start, size_t count) {
  const np_job *job = context;
  const struct np_dequantize_params *p = job->params;
  from_int8(p->scale, p->zero_point, (const int8_t *)job->inputs[0] + start,
            (float *)job->out + start, count);
}

static void quantize16_tile(void *context, size_t start, size_t count) {
  const np_job *job = context;
  const struct np_int16_params *p = job->params;
  const steps s = {p->scale, p->low, p->high, p->zero_point};
  to_uint16(&s, (const float *)job->inputs[0] + start, (uint16_t *)job->out + start, count);
}

static void dequantize16_tile(void *context, size_t start, size_t count) {
  const np_job *job = context;
  const struct np_int16_params *p = job->params;
  const uint16_t *in = (const uint16_t *)job->inputs[0] + start;
  float *out = (float *)job->out + start;
  if (p->is_signed) {
    from_int16(p->scale, p->zero_point, (const int16_t *)in, out, count);
  } else {
    from_uint16(p->scale, p->zero_point, in, out, count);
  }
}

static int run(np_tile *tile, const void *params, size_t count, const void *const *inputs,
               void *out, np_workers *workers) {
  return np_run_tiles((np_job){params, inputs, out, NULL, 0}, tile, count, TILE,
                      count * sizeof(float), 0, workers);
}

int np_quantize(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_quantize_params *p = params;
  return run(quantize_tile, params, p->count, inputs, out, workers);
}

int np_dequantize(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_dequantize_params *p = params;
  return run(dequantize_tile, params, p->count, inputs, out, workers);
}

int np_quantize16(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_int16_params *p = params;
  return run(quantize16_tile, params, p->count, inputs, out, workers);
}

int np_dequantize16(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_int16_params *p = params;
  return run(dequantize16_tile, params, p->count, inputs, out, workers);
}

/* An integer has no -0. */
NP_MULTIVERSIONED(void, fake,
                  (const steps *s, const float *in, float *out, size_t count),
                  (s, in, out, count)) {
  const steps by = *s;
  for (size_t i = 0; i < count; i++) {
    out[i] = (to_steps(in[i], by.scale, by.low, by.high) + 0.0f) * by.scale;
  }
}

/* A channel for each element, as where channels are the last axis. */
NP_MULTIVERSIONED(void, fake_row,
                  (const float *scales, const float *lows, const float *highs, const float *in,
                   float *out, size_t count),
                  (scales, lows, highs, in, out, count)) {
  for (size_t i = 0; i < count; i++) {
    out[i] = (to_steps(in[i], scales[i], lows[i], highs[i]) + 0.0f) * scales[i];
  }
}

static void fake_tile(void *context, size_t start, size_t count) {
  const np_job *job = context;
  const struct np_int16_params *p = job->params;
  const steps s = {p->scale, p->low, p->high, 0};
  fake(&s, (const float *)job->inputs[0] + start, (float *)job->out + start, count);
}

int np_fake_quantize(const void *params, const void *const *inputs, void *out,
                     np_workers *workers) {
  const struct np_int16_params *p = params;
  return run(fake_tile, params, p->count, inputs, out, workers);
}

static void fake_channels_tile(void *context, size_t start, size_t count) {
  const np_job *job = context;
  const struct np_fake_quantize_channels_params *p = job->params;
  const float *in = (const float *)job->inputs[0] + start;
  float *out = (float *)job->out + start;
  for (size_t done = 0; done < count;) {
    const size_t at = start + done, channel = at / p->inner % p->channels;
    const size_t rest = p->inner == 1 ? p->channels - channel : p->inner - at % p->inner;
    const size_t some = np_min(rest, count - done);
    const float *scale = p->scales + channel, *low = p->lows + channel, *high = p->highs + channel;
    if (p->inner == 1) {
      fake_row(scale, low, high, in + done, out + done, some);
    } else {
      const steps s = {*scale, *low, *high, 0};
      fake(&s, in + done, out + done, some);
    }
    done += some;
  }
}

int np_fake_quantize_channels(const void *params, const void *const *inputs, void *out,
                              np_workers *workers) {
  const struct np_fake_quantize_channels_params *p = params;
  return run(fake_channels_tile, params, p->count, inputs, out, workers);
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

static void range_part(void *context, size_t thread, size_t index) {
  (void)thread;
  const np_job *job = context;
  const struct np_dynamic_range_params *p = job->params;
  const np_range part = np_range_of(index, p->part, p->count);
  extremes *found = (extremes *)(void *)job->scratch;
  found[index] = extremes_of((const float *)job->inputs[0] + part.first, part.count);
}

int np_dynamic_range(const void *params, const void *const *inputs, void *out, void *workspace,
                     np_workers *workers) {
  const struct np_dynamic_range_params *p = params;
  const extremes *found = workspace;
  const size_t parts = p->count == 0 ? 0 : np_ceil_div(p->count, p->part);
  np_run_parts((np_job){params, inputs, out, workspace, 0}, range_part, parts, 0,
               np_workers_for(p->count * sizeof(float), workers));
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
  memcpy(out, &range, sizeof range);
  return 0;
}

int np_dynamic_dequantize(const void *params, const void *const *inputs, void *out,
                          np_workers *workers) {
  const struct np_dynamic_range_params *p = params;
  struct np_dequantize_params given = {p->count, 0, *(const int8_t *)inputs[2]};
  memcpy(&given.scale, inputs[1], sizeof given.scale);
  return np_dequantize(&given, inputs, out, workers);
}

int np_dynamic_quantize(const void *params, const void *const *inputs, void *out,
                        np_workers *workers) {
  const struct np_dynamic_range_params *p = params;
  const int32_t zero = *(const int8_t *)inputs[2];
  struct np_quantize_params given = {
      p->count, 0, 0, (float)(-128 - zero), (float)(127 - zero), zero};
  memcpy(&given.scale, inputs[1], sizeof given.scale);
  const void *const values[] = {inputs[0], NULL};
  return np_quantize(&given, values, out, workers);
}
