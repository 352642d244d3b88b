/* The vectors of simd/f32_avx2.h and simd/f32_avx512.h for any processor: four floats. */
#ifndef NARROWPASS_SIMD_F32_PLAIN_H
#define NARROWPASS_SIMD_F32_PLAIN_H

#include <string.h>

#define LANES 4
#define TARGET
#define VEC NP_INLINE

#include "simd/vector.h"

VEC vec zero(void) { return (vec){0}; }
VEC vec load(const float *x) { return *(const vec *)x; }
VEC vec load_some(const float *x, size_t count) {
  vec v = {0};
  memcpy(&v, x, count * sizeof *x);
  return v;
}
VEC void store(float *x, vec v) { *(vec *)x = v; }
VEC void store_some(float *x, vec v, size_t count) { memcpy(x, &v, count * sizeof *x); }
VEC vec splat(const float *x) { return broadcast(*x); }
VEC vec plus(vec a, vec b) { return a + b; }
VEC vec multiply_add(vec a, vec b, vec c) { return a * b + c; }
VEC vec clamped(vec x, float low, float high) { return clamp(x, low, high); }

#endif
