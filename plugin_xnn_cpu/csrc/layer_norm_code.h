/* Layer normalization of a row for one instruction set; layer_norm.c says how it is done.
 *
 * Who includes this defines LANES, the floats of a register; ROW, the function's name; and TARGET,
 * its attribute. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#include <math.h>
#include <string.h>

#include "layer_norm.h"

#define SUMS 4 /* an addition takes as long as so many can be begun in */

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

NP_INLINE float sum_of(const vec *sums) {
  const vec both = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float lanes[LANES];
  memcpy(lanes, &both, sizeof lanes);
  for (int apart = LANES / 2; apart > 0; apart /= 2) {
    for (int i = 0; i < apart; i++) lanes[i] += lanes[i + apart];
  }
  return lanes[0];
}

/* Sum of the numbers less `mean`, or of their squares. */
NP_INLINE float total(const float *x, size_t columns, float mean, const int squared) {
  vec sums[SUMS];
  for (int s = 0; s < SUMS; s++) sums[s] = (vec){0};
  size_t i = 0;
  for (; i + SUMS * LANES <= columns; i += SUMS * LANES) {
    for (int s = 0; s < SUMS; s++) {
      const vec d = *(const vec *)(x + i + s * LANES) - mean;
      if (squared) {
        sums[s] += d * d;
      } else {
        sums[s] += d;
      }
    }
  }
  for (; i + LANES <= columns; i += LANES) {
    const vec d = *(const vec *)(x + i) - mean;
    if (squared) {
      sums[0] += d * d;
    } else {
      sums[0] += d;
    }
  }
  float rest = 0.0f;
  for (; i < columns; i++) {
    const float d = x[i] - mean;
    rest += squared ? d * d : d;
  }
  return sum_of(sums) + rest;
}

TARGET void ROW(const float *x, const float *added, const float *scale, const float *bias,
                float *sum, float *out, size_t columns, float epsilon, int root_mean_square) {
  const size_t whole = columns - columns % LANES;
  if (added != NULL) {
    for (size_t i = 0; i < whole; i += LANES) {
      *(vec *)(sum + i) = *(const vec *)(x + i) + *(const vec *)(added + i);
    }
    for (size_t i = whole; i < columns; i++) sum[i] = x[i] + added[i];
    x = sum;
  }
  const float count = (float)columns;
  const float mean = root_mean_square ? 0.0f : total(x, columns, 0.0f, 0) / count;
  const float factor = 1.0f / sqrtf(total(x, columns, mean, 1) / count + epsilon);
  if (bias != NULL) {
    for (size_t i = 0; i < whole; i += LANES) {
      const vec normal = (*(const vec *)(x + i) - mean) * factor;
      *(vec *)(out + i) = normal * *(const vec *)(scale + i) + *(const vec *)(bias + i);
    }
  } else {
    for (size_t i = 0; i < whole; i += LANES) {
      const vec normal = (*(const vec *)(x + i) - mean) * factor;
      *(vec *)(out + i) = normal * *(const vec *)(scale + i);
    }
  }
  for (size_t i = whole; i < columns; i++) {
    out[i] = (x[i] - mean) * factor * scale[i] + (bias == NULL ? 0.0f : bias[i]);
  }
}
