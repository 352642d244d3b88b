/* Vectors of the compiler: LANES floats, and as many integers. The includer defines LANES and
 * TARGET, the attribute of functions for the instruction set: without it operations would be split
 * into those of narrower vectors before functions are inlined. */
#ifndef NARROWPASS_SIMD_VECTOR_H
#define NARROWPASS_SIMD_VECTOR_H

#include "runtime/kernel.h"

#if defined(__GNUC__) && !defined(__clang__)
/* All is inlined: there is no calling convention that the width of vectors could change. */
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

TARGET NP_INLINE vec broadcast(float x) { return x - (vec){0}; }

TARGET NP_INLINE vec choose(ivec condition, vec x, vec y) {
  return (vec)((condition & (ivec)x) | (~condition & (ivec)y));
}

/* NaN stays. */
TARGET NP_INLINE vec clamp(vec x, float low, float high) {
  x = choose(x < low, broadcast(low), x);
  return choose(x > high, broadcast(high), x);
}

#endif
