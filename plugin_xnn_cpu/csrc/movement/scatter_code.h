/* Updates of elements of any type, by a reduction; see enum np_scatter. */
#pragma once

#include <string.h>

#include "movement/index.h"
#include "runtime/kernel.h"

/* Integers wrap around. A NaN that is there stays only where updates are added or multiplied:
 * comparisons with it are false, so that a minimum or maximum is the update, as in onnxruntime. */
#define NP_UPDATES(name, type, sum)                                                        \
  static void np_update_##name(int32_t reduction, type *to, const type *from, size_t n) {  \
    switch (reduction) {                                                                   \
      case NP_SCATTER_ADD:                                                                 \
        for (size_t i = 0; i < n; i++) to[i] = (type)((sum)to[i] + (sum)from[i]);          \
        return;                                                                            \
      case NP_SCATTER_MUL:                                                                 \
        for (size_t i = 0; i < n; i++) to[i] = (type)((sum)to[i] * (sum)from[i]);          \
        return;                                                                            \
      case NP_SCATTER_MIN:                                                                 \
        for (size_t i = 0; i < n; i++) to[i] = to[i] < from[i] ? to[i] : from[i];          \
        return;                                                                            \
      default:                                                                             \
        for (size_t i = 0; i < n; i++) to[i] = to[i] > from[i] ? to[i] : from[i];          \
    }                                                                                      \
  }
NP_UPDATES(f32, float, float)
NP_UPDATES(f64, double, double)
NP_UPDATES(i32, int32_t, uint32_t)
NP_UPDATES(i64, int64_t, uint64_t)

NP_INLINE void np_scatter_update(int32_t reduction, int32_t type, size_t size, char *to,
                                 const char *from, size_t count) {
  if (reduction == NP_SCATTER_NONE) {
    if (size * count == 4) {
      memcpy(to, from, 4);
    } else if (size * count == 8) {
      memcpy(to, from, 8);
    } else {
      memcpy(to, from, size * count);
    }
    return;
  }
  switch (type) {
    case NP_TYPE_FLOAT32:
      np_update_f32(reduction, (float *)to, (const float *)from, count);
      return;
    case NP_TYPE_FLOAT64:
      np_update_f64(reduction, (double *)to, (const double *)from, count);
      return;
    case NP_TYPE_INT32:
      np_update_i32(reduction, (int32_t *)to, (const int32_t *)from, count);
      return;
    default:
      np_update_i64(reduction, (int64_t *)to, (const int64_t *)from, count);
  }
}
