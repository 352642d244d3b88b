/* A transpose of as many vectors as a vector has lanes, in registers. Vectors that are half of the lanes
 * apart exchange halves, those a quarter apart quarters, and so on. Bits are moved as they are. */
#pragma once

#include "simd/f32.h"

NP_INLINE void transpose_lanes(vec *x) {
#define NP_EXCHANGE(distance, first, second)                                         \
  UNROLL for (int i = 0; i < LANES; i += 2 * (distance)) {                           \
    UNROLL for (int j = i; j < i + (distance); j++) {                                \
      const vec a = x[j], b = x[j + (distance)];                                     \
      x[j] = __builtin_shufflevector(a, b, first);                                   \
      x[j + (distance)] = __builtin_shufflevector(a, b, second);                     \
    }                                                                                \
  }
#if LANES == 16
  NP_EXCHANGE(8, NP_LIST(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
              NP_LIST(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
  NP_EXCHANGE(4, NP_LIST(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
              NP_LIST(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
  NP_EXCHANGE(2, NP_LIST(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
              NP_LIST(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
  NP_EXCHANGE(1, NP_LIST(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
              NP_LIST(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#elif LANES == 8
  NP_EXCHANGE(4, NP_LIST(0, 1, 2, 3, 8, 9, 10, 11), NP_LIST(4, 5, 6, 7, 12, 13, 14, 15))
  NP_EXCHANGE(2, NP_LIST(0, 1, 8, 9, 4, 5, 12, 13), NP_LIST(2, 3, 10, 11, 6, 7, 14, 15))
  NP_EXCHANGE(1, NP_LIST(0, 8, 2, 10, 4, 12, 6, 14), NP_LIST(1, 9, 3, 11, 5, 13, 7, 15))
#else
  NP_EXCHANGE(2, NP_LIST(0, 1, 4, 5), NP_LIST(2, 3, 6, 7))
  NP_EXCHANGE(1, NP_LIST(0, 4, 2, 6), NP_LIST(1, 5, 3, 7))
#endif
#undef NP_EXCHANGE
}
