/* A row of an operator of two operands: strides are 0 or 1. */
#pragma once

#include "elementwise/typed.h"
#include "runtime/kernel.h"

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wtype-limits" /* one text for all types */
#endif

typedef void np_binary_row(const void *a, ptrdiff_t as, const void *b, ptrdiff_t bs, void *out,
                           size_t count);

/* For NP_BINARY_* and NP_TYPE_*; NULL where there is none. */
np_binary_row *np_integer_row(int32_t op, int32_t type);
np_binary_row *np_float_row(int32_t op, int32_t type);

#define NP_ROW_PARAMETERS                                                        \
  (const void *first, ptrdiff_t as, const void *second, ptrdiff_t bs, void *out, \
   size_t count)

/* `expression` of x and y; the loops for each pair of strides become vector code of their own. */
#define NP_ROW_LOOPS(type, result, expression)       \
  const type *a = first;                             \
  const type *b = second;                            \
  result *r = out;                                   \
  if (as == 1 && bs == 1) {                          \
    for (size_t i = 0; i < count; i++) {             \
      const type x = a[i], y = b[i];                 \
      r[i] = (result)(expression);                   \
    }                                                \
  } else if (as == 1) {                              \
    const type y = b[0];                             \
    for (size_t i = 0; i < count; i++) {             \
      const type x = a[i];                           \
      r[i] = (result)(expression);                   \
    }                                                \
  } else if (bs == 1) {                              \
    const type x = a[0];                             \
    for (size_t i = 0; i < count; i++) {             \
      const type y = b[i];                           \
      r[i] = (result)(expression);                   \
    }                                                \
  } else {                                           \
    const type x = a[0], y = b[0];                   \
    const result value = (result)(expression);       \
    for (size_t i = 0; i < count; i++) r[i] = value; \
  }

/* For code that vectors of newer processors gain little in. */
#define NP_ROW(name, type, result, expression) \
  static void name NP_ROW_PARAMETERS { NP_ROW_LOOPS(type, result, expression) }

#define NP_ROW_MULTIVERSIONED(name, type, result, expression)                             \
  NP_MULTIVERSIONED(void, name, NP_ROW_PARAMETERS, (first, as, second, bs, out, count)) { \
    NP_ROW_LOOPS(type, result, expression)                                                \
  }
