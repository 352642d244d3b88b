/* Softmax of rows for one instruction set. A row with NaN or infinity, or of -infinity alone, is NaN. */
#include <math.h>

#include "norm/softmax_rows.h"
#include "simd/exp.h"

#define CHAINS (2 * SPANS)
#define ADDED (2 * REDUCED_LANES)

NP_INLINE float largest(const float *x, size_t columns) {
  vec most[4];
  UNROLL for (int s = 0; s < 4; s++) most[s] = broadcast(-INFINITY);
  size_t i = 0;
  while (i + 4 * LANES <= columns && (i == 0 || !np_cancel_check())) {
    for (const size_t next = np_stretch(i, columns); i + 4 * LANES <= next; i += 4 * LANES) {
      UNROLL for (int s = 0; s < 4; s++) most[s] = larger(load(x + i + s * LANES), most[s]);
    }
  }
  if (np_cancelled()) return 0.0f;
  for (; i + LANES <= columns; i += LANES) most[0] = larger(load(x + i), most[0]);
  if (i < columns) {
    static const ivec lanes = {NP_LANE_NUMBERS};
    const vec rest = load_some(x + i, columns - i);
    const ivec some = lanes < (int32_t)(columns - i);
    most[1] = larger(choose(some, rest, broadcast(-INFINITY)), most[1]);
  }
  return largest_of(larger(larger(most[0], most[1]), larger(most[2], most[3])));
}

/* exp(x - most) to `out`; returns the sum. */
NP_INLINE float exponentiate(const float *x, float most, float *out, size_t columns) {
  vec acc[CHAINS];
  UNROLL for (int s = 0; s < CHAINS; s++) acc[s] = zero();
  size_t i = 0;
  while (i + ADDED <= columns && (i == 0 || !np_cancel_check())) {
    for (const size_t next = np_stretch(i, columns); i + ADDED <= next; i += ADDED) {
      UNROLL for (int s = 0; s < CHAINS; s++) {
        const vec e = exp_of_at_most_0(load(x + i + s * LANES) - most);
        store(out + i + s * LANES, e);
        acc[s] += e;
      }
    }
  }
  if (columns > NP_STRETCH && np_cancelled()) i = columns;
  for (; i < columns; i += REDUCED_LANES) {
    UNROLL for (int s = 0; s < SPANS; s++) {
      const size_t at = i + (size_t)s * LANES, some = lanes_of_span(columns - i, s);
      if (some == 0) break;
      const vec e = exp_of_at_most_0(load_some(x + at, some) - most);
      store_some(out + at, e, some);
      acc[s] += keep_some(e, some);
    }
  }
  UNROLL for (int s = 0; s < SPANS; s++) acc[s] += acc[s + SPANS];
  return sum_of_spans(acc);
}

void NP_OF_ISA(np_softmax_rows)(const float *x, float *out, size_t rows, size_t columns) {
  for (size_t row = 0; row < rows; row++, x += columns, out += columns) {
    const float sum = exponentiate(x, largest(x, columns), out, columns), factor = 1.0f / sum;
    for (size_t i = 0; i < columns;) {
      if (i > 0 && np_cancel_check()) return;
      for (const size_t next = np_stretch(i, columns); i < next; i += LANES) {
        const size_t some = np_min(next - i, LANES);
        store_some(out + i, load_some(out + i, some) * factor, some);
      }
    }
  }
}
