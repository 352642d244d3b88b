/* Depthwise convolutions with registers of four floats, which any CPU has. */
#if defined(__GNUC__) && !defined(__clang__)
/* Vectors are passed between functions that become one: there is no calling convention to change. */
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#include <string.h>

#include "runtime/kernel.h"

#define LANES 4
#define HIGH 1
#define DEPTHWISE np_fp32_depthwise_plain
#define TARGET

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

NP_INLINE vec load(const float *x) { return *(const vec *)x; }
NP_INLINE void store(float *x, vec v) { *(vec *)x = v; }
NP_INLINE vec plus(vec a, vec b) { return a + b; }
NP_INLINE vec multiply_add(vec a, vec b, vec c) { return a * b + c; }

NP_INLINE vec load_some(const float *x, size_t count) {
  vec v = {0};
  memcpy(&v, x, count * sizeof *x);
  return v;
}

NP_INLINE void store_some(float *x, vec v, size_t count) { memcpy(x, &v, count * sizeof *x); }

/* NaN stays. */
NP_INLINE vec clamped(vec v, float low, float high) {
  for (int i = 0; i < LANES; i++) v[i] = v[i] < low ? low : v[i] > high ? high : v[i];
  return v;
}

#include "depthwise/fp32_code.h"
