/* Prefix sum along an axis: CumSum. Elements are added one after the other, as in numpy, so that
 * results are the same bit for bit; integers wrap around. */
#include "runtime/kernel.h"

struct np_cumulative_sum_params {
  size_t outer;      /* of the axes before that of the sum */
  size_t count;      /* elements along the axis */
  size_t inner;      /* of the axes after it */
  int32_t exclusive; /* without the element itself */
  int32_t reverse;   /* from the last element to the first */
  int32_t type;      /* NP_CUMULATIVE_SUM_* */
};

#define NP_CUMULATIVE_SUM_FLOAT32 0
#define NP_CUMULATIVE_SUM_INT32 1
#define NP_CUMULATIVE_SUM_INT64 2

#define COLUMNS 256 /* of one tile: the row before stays in L1 */
#define ROWS 1024   /* of them between two looks at whether the run is stopped */

/* Prefix sum of a row, whose elements are `stride` apart, and of a tile of columns. */
#define PREFIX_SUM(name, type)                                                                 \
  NP_INLINE void name##_row(const type *x, size_t count, ptrdiff_t stride, int exclusive,      \
                            type *out) {                                                       \
    type total = 0;                                                                            \
    for (size_t k = 0; k < count;) {                                                           \
      if (k > 0 && np_cancel_check()) return;                                                  \
      for (const size_t next = np_stretch(k, count); k < next; k++, x += stride, out += stride) {\
        const type with = k ? total + *x : *x; /* 0 + -0 is 0 */                               \
        *out = exclusive ? total : with;                                                       \
        total = with;                                                                          \
      }                                                                                        \
    }                                                                                          \
  }                                                                                            \
  NP_INLINE void name##_columns(const type *x, size_t count, ptrdiff_t stride, size_t columns, \
                                int exclusive, type *out) {                                    \
    for (size_t c = 0; c < columns; c++) out[c] = exclusive ? 0 : x[c];                        \
    size_t k = 1;                                                                              \
    if (exclusive && count > 1) { /* 0 + -0 is 0 */                                            \
      out += stride, k = 2;                                                                    \
      for (size_t c = 0; c < columns; c++) out[c] = x[c];                                      \
      x += stride;                                                                             \
    }                                                                                          \
    for (; k < count; k++) {                                                                   \
      const type *last = out, *added = exclusive ? x : x + stride;                             \
      x += stride, out += stride;                                                              \
      for (size_t c = 0; c < columns; c++) out[c] = last[c] + added[c];                        \
      if (k % ROWS == 0 && np_cancel_check()) return;                                          \
    }                                                                                          \
  }

PREFIX_SUM(float32, float)
PREFIX_SUM(int32, uint32_t)
PREFIX_SUM(int64, uint64_t)

NP_TILE(part) {
  const struct np_cumulative_sum_params *p = job->params;
  const size_t tiles = np_ceil_div(p->inner, COLUMNS); /* of the columns of one outer index */
  const size_t last = p->reverse ? (p->count - 1) * p->inner : 0;
  const ptrdiff_t stride = p->reverse ? -(ptrdiff_t)p->inner : (ptrdiff_t)p->inner;
  for (size_t tile = start; tile < start + count; tile++) {
    const np_range columns = np_range_of(tile % tiles, COLUMNS, p->inner);
    const size_t at = tile / tiles * p->count * p->inner + last + columns.first;
#define DO(name, type)                                                       \
  {                                                                          \
    const type *x = (const type *)job->inputs[0] + at;                       \
    type *out = (type *)job->out + at;                                       \
    if (p->inner == 1) {                                                     \
      name##_row(x, p->count, stride, p->exclusive, out);                    \
    } else {                                                                 \
      name##_columns(x, p->count, stride, columns.count, p->exclusive, out); \
    }                                                                        \
  }
    switch (p->type) {
      case NP_CUMULATIVE_SUM_FLOAT32: DO(float32, float) break;
      case NP_CUMULATIVE_SUM_INT32: DO(int32, uint32_t) break;
      default: DO(int64, uint64_t)
    }
#undef DO
  }
}

int np_cumulative_sum(np_job *job) {
  const struct np_cumulative_sum_params *p = job->params;
  if (p->outer == 0 || p->count == 0 || p->inner == 0) return 0;
  const size_t size = p->type == NP_CUMULATIVE_SUM_INT64 ? 8 : 4;
  const size_t bytes = p->count * np_min(p->inner, COLUMNS) * size;
  return np_for_tiles(job, part, p->outer * np_ceil_div(p->inner, COLUMNS),
                      1 + NP_PARALLEL_MIN_BYTES / 4 / bytes, p->outer * p->count * p->inner * size,
                      0);
}
