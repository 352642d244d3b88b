/* Maximum, exp and reductions of vectors, for attention; attention/code.h includes this. */
#include "simd/vector.h"


/* The second one where either is NaN. */
INLINE vec larger(vec x, vec y) {
#ifdef LARGER
  return (vec)LARGER(x, y);
#else
  return choose(x > y, x, y);
#endif
}

/* exp of what is at most 0, or NaN; see elementwise/function.c for the polynomial. */
INLINE vec exp_of_at_most_0(vec x) {
#ifdef TIMES_POWER
  const float least = -110.0f; /* 0 of itself, and not infinite */
#else
  const float least = -87.3f;
#endif
  const vec t = larger(broadcast(least), x); /* NaN stays */
  /* Adding 1.5 · 2^23 rounds to an integer, which is then in the low bits: no conversion, which
   * NaN would not survive. */
  const vec shifted = t * 1.44269504f + 12582912.0f;
  const vec n = shifted - 12582912.0f;
  const vec r = (t - n * 0.693359375f) + n * 2.12194440e-4f;
  vec p = r * 0.00829030573f + 0.0418979749f;
  p = p * r + 0.166676372f;
  p = p * r + 0.499991506f;
  p = p * r + 0.999999702f;
  p = p * r + 1.0f;
#ifdef TIMES_POWER
  return (vec)TIMES_POWER(p, n);
#else
  const ivec power = ((ivec)shifted << 23) + (127 << 23);
  return choose(x < -87.3f, broadcast(0.0f), p * (vec)power);
#endif
}

/* The lanes of a vector, each with the one `apart` lanes on: a few steps combine all. */
#define NP_LIST(...) __VA_ARGS__
#if LANES == 16
#define NP_NUMBERS NP_LIST(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define NP_ROLLED_8 NP_LIST(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define NP_ROLLED_4 NP_LIST(4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define NP_ROLLED_2 NP_LIST(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define NP_ROLLED_1 NP_LIST(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif LANES == 8
#define NP_NUMBERS NP_LIST(0, 1, 2, 3, 4, 5, 6, 7)
#define NP_ROLLED_4 NP_LIST(4, 5, 6, 7, 0, 1, 2, 3)
#define NP_ROLLED_2 NP_LIST(2, 3, 0, 1, 6, 7, 4, 5)
#define NP_ROLLED_1 NP_LIST(1, 0, 3, 2, 5, 4, 7, 6)
#else
#define NP_NUMBERS NP_LIST(0, 1, 2, 3)
#define NP_ROLLED_2 NP_LIST(2, 3, 0, 1)
#define NP_ROLLED_1 NP_LIST(1, 0, 3, 2)
#endif
#define NP_ROLL(x, order) __builtin_shufflevector(x, x, order)

INLINE float sum_of(vec x) {
#if LANES == 16
  x += NP_ROLL(x, NP_ROLLED_8);
#endif
#if LANES >= 8
  x += NP_ROLL(x, NP_ROLLED_4);
#endif
  x += NP_ROLL(x, NP_ROLLED_2);
  x += NP_ROLL(x, NP_ROLLED_1);
  return x[0];
}

INLINE float largest_of(vec x) {
#if LANES == 16
  x = larger(x, NP_ROLL(x, NP_ROLLED_8));
#endif
#if LANES >= 8
  x = larger(x, NP_ROLL(x, NP_ROLLED_4));
#endif
  x = larger(x, NP_ROLL(x, NP_ROLLED_2));
  x = larger(x, NP_ROLL(x, NP_ROLLED_1));
  return x[0];
}
