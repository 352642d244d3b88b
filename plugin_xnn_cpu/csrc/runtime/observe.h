/* Statistics of a value, taken where it lies. Read by cffi too: no directives but simple
 * constants. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define NP_METER_OFF 0
#define NP_METER_EXTREMES 1
#define NP_METER_COUNTS 2

/* What is kept of a value. Extremes are compared as integers: the bits of a float, all but the
 * sign turned over where that is set. Bin i of `bins` is as narrowpass.runtime.meters.Counts has
 * it. */
typedef struct {
  int32_t kind;
  int32_t folded; /* magnitudes are counted */
  int32_t low;
  int32_t high;
  size_t bins;
  double below; /* bins below zero */
  double scale;
  int64_t zeros;
  int64_t *counts;   /* [bins] */
  uint32_t *scratch; /* np_meter_words() for each thread */
} np_meter;

/* Words of scratch memory that a thread needs, on its own cache lines. */
size_t np_meter_words(size_t bins);

struct np_observe_params {
  size_t count;
  np_meter *meter;
};
