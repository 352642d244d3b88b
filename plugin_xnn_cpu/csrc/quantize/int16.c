/* Between float32 and integers of 16 bits, and rounding floats to what such integers stand for. */
#include <math.h>

#include "runtime/kernel.h"

/* NP_QUANTIZE16: integers out[i] = min(max(rint(x[i] / scale), low), high) + zero_point.
 * NP_DEQUANTIZE16: float out[i] = (x[i] - zero_point) * scale.
 * NP_FAKE_QUANTIZE: the second of the first, in one pass over floats; of any width of integers.
 *
 * `low` and `high` keep the sum within the integers. NaN becomes `low`. */
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

#define TILE 16384

typedef struct {
  const struct np_int16_params *params;
  const void *in;
  void *out;
} job;

/* Divided, and not multiplied by the inverse: halves fall where the standard has them. */
NP_INLINE float to_steps(const struct np_int16_params *p, float value) {
  float x = rintf(value / p->scale);
  x = x > p->low ? x : p->low;
  return x < p->high ? x : p->high;
}

/* uint16 and int16 have the same low 16 bits. */
NP_MULTIVERSIONED(void, quantize,
                  (const struct np_int16_params *params, const float *in, uint16_t *out,
                   size_t count),
                  (params, in, out, count)) {
  const struct np_int16_params p = *params; /* which integers that are written cannot change */
  for (size_t i = 0; i < count; i++) {
    out[i] = (uint16_t)((int32_t)to_steps(&p, in[i]) + p.zero_point);
  }
}

NP_MULTIVERSIONED(void, dequantize_signed,
                  (float scale, int32_t zero_point, const int16_t *in, float *out, size_t count),
                  (scale, zero_point, in, out, count)) {
  for (size_t i = 0; i < count; i++) out[i] = (float)(in[i] - zero_point) * scale;
}

NP_MULTIVERSIONED(void, dequantize_unsigned,
                  (float scale, int32_t zero_point, const uint16_t *in, float *out, size_t count),
                  (scale, zero_point, in, out, count)) {
  for (size_t i = 0; i < count; i++) out[i] = (float)(in[i] - zero_point) * scale;
}

/* An integer has no -0. */
NP_MULTIVERSIONED(void, fake,
                  (const struct np_int16_params *params, const float *in, float *out, size_t count),
                  (params, in, out, count)) {
  const struct np_int16_params p = *params;
  for (size_t i = 0; i < count; i++) out[i] = (to_steps(&p, in[i]) + 0.0f) * p.scale;
}

/* A channel for each element, as where channels are the last axis. */
NP_MULTIVERSIONED(void, fake_row,
                  (const float *scales, const float *lows, const float *highs, const float *in,
                   float *out, size_t count),
                  (scales, lows, highs, in, out, count)) {
  for (size_t i = 0; i < count; i++) {
    float x = rintf(in[i] / scales[i]);
    x = x > lows[i] ? x : lows[i];
    x = x < highs[i] ? x : highs[i];
    out[i] = (x + 0.0f) * scales[i];
  }
}

typedef struct {
  const struct np_fake_quantize_channels_params *params;
  const float *in;
  float *out;
} channels_job;

static void channels_tile(void *context, size_t start, size_t count) {
  const channels_job *task = context;
  const struct np_fake_quantize_channels_params *p = task->params;
  const float *in = task->in + start;
  float *out = task->out + start;
  for (size_t done = 0; done < count;) {
    const size_t at = start + done, channel = at / p->inner % p->channels;
    const size_t rest = p->inner == 1 ? p->channels - channel : p->inner - at % p->inner;
    const size_t some = rest < count - done ? rest : count - done;
    if (p->inner == 1) {
      fake_row(p->scales + channel, p->lows + channel, p->highs + channel, in + done, out + done,
               some);
    } else {
      const struct np_int16_params one = {
          .scale = p->scales[channel], .low = p->lows[channel], .high = p->highs[channel]};
      fake(&one, in + done, out + done, some);
    }
    done += some;
  }
}

int np_fake_quantize_channels(const void *params, const void *const *inputs, void *out,
                              np_workers *workers) {
  channels_job task = {params, inputs[0], out};
  np_workers *const used =
      task.params->count * sizeof(float) < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  np_parallel_for_tiles(used, channels_tile, &task, task.params->count, TILE, 0);
  return 0;
}

static void quantize_tile(void *context, size_t start, size_t count) {
  const job *task = context;
  quantize(task->params, (const float *)task->in + start, (uint16_t *)task->out + start, count);
}

static void dequantize_tile(void *context, size_t start, size_t count) {
  const job *task = context;
  const struct np_int16_params *p = task->params;
  float *out = (float *)task->out + start;
  if (p->is_signed) {
    dequantize_signed(p->scale, p->zero_point, (const int16_t *)task->in + start, out, count);
  } else {
    dequantize_unsigned(p->scale, p->zero_point, (const uint16_t *)task->in + start, out, count);
  }
}

static void fake_tile(void *context, size_t start, size_t count) {
  const job *task = context;
  fake(task->params, (const float *)task->in + start, (float *)task->out + start, count);
}

static int run(np_tile *tile, const void *params, const void *const *inputs, void *out,
               np_workers *workers) {
  job task = {params, inputs[0], out};
  np_workers *const used =
      task.params->count * sizeof(float) < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  np_parallel_for_tiles(used, tile, &task, task.params->count, TILE, 0);
  return 0;
}

int np_quantize16(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  return run(quantize_tile, params, inputs, out, workers);
}

int np_dequantize16(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  return run(dequantize_tile, params, inputs, out, workers);
}

int np_fake_quantize(const void *params, const void *const *inputs, void *out,
                     np_workers *workers) {
  return run(fake_tile, params, inputs, out, workers);
}
