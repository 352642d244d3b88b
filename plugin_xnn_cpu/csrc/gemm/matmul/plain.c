/* The micro-kernels of matmul for any processor: vectors of the compiler, of four lanes. */
#if defined(__GNUC__) && !defined(__clang__)
/* Vectors are passed between functions that become one: there is no calling convention to change. */
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#include <string.h>

#include "runtime/kernel.h"

#define LANES 4
#define TARGET
#define SUMS 12
#define MOST_VECTORS 2
#define MULTIPLY np_matmul_multiply_plain
#define DOTS np_matmul_dots_plain
#define PACK np_matmul_pack_plain

typedef float vec __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(16), aligned(4), may_alias));

NP_INLINE vec zero(void) { return (vec){0}; }
NP_INLINE vec load(const float *x) { return *(const vec *)x; }
NP_INLINE vec load_some(const float *x, size_t count) {
  float some[LANES] = {0};
  memcpy(some, x, count * sizeof *x);
  return load(some);
}
NP_INLINE void store(float *x, vec v) { *(vec *)x = v; }
NP_INLINE void store_some(float *x, vec v, size_t count) { memcpy(x, &v, count * sizeof *x); }
NP_INLINE vec splat(const float *x) { return (vec){*x, *x, *x, *x}; }
NP_INLINE vec plus(vec a, vec b) { return a + b; }
NP_INLINE vec multiply_add(vec a, vec b, vec c) { return a * b + c; }
NP_INLINE vec choose(ivec condition, vec x, vec y) {
  return (vec)((condition & (ivec)x) | (~condition & (ivec)y));
}
/* In this order NaN stays. */
NP_INLINE vec clamped(vec x, float low, float high) {
  x = choose(x < low, splat(&low), x);
  return choose(x > high, splat(&high), x);
}
NP_INLINE float sum_of(vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }

NP_INLINE void transpose(const float *from, size_t step, float *to, size_t width) {
  for (size_t n = 0; n < 8; n++) {
    for (size_t k = 0; k < 8; k++) to[k * width + n] = from[n * step + k];
  }
}

#include "gemm/matmul/code.h"
