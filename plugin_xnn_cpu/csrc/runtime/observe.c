/* Looking at a value where it lies: its extremes, and counts of its elements in bins.
 *
 * Floats are compared as integers of the same order, so that one pass finds the extremes, NaN and
 * infinities. Bins are those of narrowpass.runtime.meters, to the bit. Each thread counts for
 * itself. */
#include <math.h>
#include <string.h>

#include "runtime/kernel.h"
#include "runtime/observe.h"

#define TILE 2048
#define HEAD 16 /* words of a thread before its counts: the extremes, and what fills a line */
#define ZEROS 8 /* bins that zeros go to in turn: adding to one would wait for the sum before */
#define MOST 0x40000000u /* elements between additions in 64 bits: no count of 32 bits overflows */

typedef struct {
  const np_meter *meter;
  const float *in;
  size_t count;
  size_t stride;
} look_job;

size_t np_meter_words(size_t bins) { return (HEAD + bins + ZEROS + 15) / 16 * 16; }

NP_MULTIVERSIONED(void, extremes, (const float *in, size_t count, int32_t *found),
                  (in, count, found)) {
  int32_t low = found[0];
  int32_t high = found[1];
  for (size_t i = 0; i < count; i++) {
    const int32_t bits = (int32_t)np_bits_of(in[i]);
    const int32_t key = bits ^ ((bits >> 31) & 0x7fffffff);
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
  found[0] = low;
  found[1] = high;
}

NP_MULTIVERSIONED(void, place, (const float *in, size_t count, const np_meter *meter, int32_t *out),
                  (in, count, meter, out)) {
  const double scale = meter->scale;
  const double below = meter->below;
  const double last = (double)meter->bins - 1.0;
  const int32_t zeros = (int32_t)meter->bins;
  const uint32_t mask = meter->folded ? 0x7fffffffu : 0xffffffffu;
  for (int32_t i = 0; i < (int32_t)count; i++) {
    const float x = np_float_of(np_bits_of(in[i]) & mask);
    double at = floor((double)x * scale) + below;
    at = at > 0.0 ? at : 0.0; /* NaN too */
    at = at < last ? at : last;
    out[i] = x == 0.0f ? zeros + i % ZEROS : (int32_t)at;
  }
}

static void look(void *context, size_t thread, size_t index) {
  const look_job *task = context;
  const np_meter *meter = task->meter;
  const np_range range = np_range_of(index, TILE, task->count);
  uint32_t *own = meter->scratch + thread * task->stride;
  extremes(task->in + range.first, range.count, (int32_t *)own);
  if (meter->kind != NP_METER_COUNTS) return;
  int32_t places[TILE];
  place(task->in + range.first, range.count, meter, places);
  uint32_t *counts = own + HEAD;
  for (size_t i = 0; i < range.count; i++) counts[places[i]]++;
}

static void begin(const np_meter *meter, size_t threads, size_t stride) {
  for (size_t t = 0; t < threads; t++) {
    uint32_t *own = meter->scratch + t * stride;
    memset(own, 0, stride * sizeof *own);
    ((int32_t *)own)[0] = INT32_MAX;
    ((int32_t *)own)[1] = INT32_MIN;
  }
}

static void end(np_meter *meter, size_t threads, size_t stride) {
  for (size_t t = 0; t < threads; t++) {
    const uint32_t *own = meter->scratch + t * stride;
    const int32_t *found = (const int32_t *)own;
    if (found[0] < meter->low) meter->low = found[0];
    if (found[1] > meter->high) meter->high = found[1];
    if (meter->kind != NP_METER_COUNTS) continue;
    const uint32_t *counts = own + HEAD;
    for (size_t i = 0; i < meter->bins; i++) meter->counts[i] += counts[i];
    for (size_t i = 0; i < ZEROS; i++) meter->zeros += counts[meter->bins + i];
  }
}

int np_observe(np_job *job) {
  const struct np_observe_params *p = job->params;
  np_meter *meter = p->meter;
  if (meter->kind == NP_METER_OFF) return 0;
  const size_t stride = np_meter_words(meter->kind == NP_METER_COUNTS ? meter->bins : 0);
  const float *in = job->inputs[0];
  for (size_t done = 0; done < p->count; done += MOST) {
    const size_t count = p->count - done < MOST ? p->count - done : MOST;
    np_workers *const used = np_workers_for(count * sizeof *in, job->workers);
    const size_t threads = np_workers_threads(used);
    look_job task = {meter, in + done, count, stride};
    begin(meter, threads, stride);
    /* Subnormal numbers are no zeros here. */
    np_parallel_for(used, look, &task, np_ceil_div(count, TILE), 0);
    end(meter, threads, stride);
  }
  return 0;
}
