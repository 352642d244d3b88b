/* Elementwise operators of any element type, with broadcasting. */
#include <math.h>

#include "elementwise/typed_binary.h"

#define TILE 8192

static size_t size_of(int32_t type) {
  static const uint8_t sizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8};
  return sizes[type];
}

static np_binary_row *row_for(const struct np_typed_binary_params *p) {
  return (p->type >= NP_TYPE_FLOAT32 ? np_float_row : np_integer_row)(p->op, p->type);
}

static void binary_rows(np_job *job, size_t thread, size_t index) {
  const struct np_typed_binary_params *p = job->params;
  const size_t last = p->rank - 1, size = p->sizes[last], tiles = np_ceil_div(size, TILE);
  const np_range columns = np_range_of(index % tiles, TILE, size);
  const ptrdiff_t *const strides[] = {p->strides[0], p->strides[1]};
  const ptrdiff_t as = strides[0][last], bs = strides[1][last];
  const size_t in_size = size_of(p->type), out_size = p->op >= NP_BINARY_EQUAL ? 1 : in_size;
  ptrdiff_t at[2];
  np_offsets(index / tiles, last, p->sizes, 2, strides, at);
  for (int i = 0; i < 2; i++) {
    at[i] = (at[i] + (ptrdiff_t)columns.first * strides[i][last]) * (ptrdiff_t)in_size;
  }
  row_for(p)((const char *)job->inputs[0] + at[0], as, (const char *)job->inputs[1] + at[1], bs,
             (char *)job->out + (index / tiles * size + columns.first) * out_size, columns.count);
}

int np_typed_binary(np_job *job) {
  const struct np_typed_binary_params *p = job->params;
  const size_t outer = np_element_count(p->rank - 1, p->sizes), inner = p->sizes[p->rank - 1];
  if (outer * inner == 0) return 0;
  if (row_for(p) == NULL) return NP_STATUS_CALL;
  const size_t bytes = outer * inner * size_of(p->type);
  return np_for_parts(job, binary_rows, outer * np_ceil_div(inner, TILE),
                      bytes < NP_PARALLEL_MIN_BYTES, 0);
}

#define NP_EACH(type, result, expression)                  \
  {                                                        \
    const type *in = (const type *)job->inputs[0] + start; \
    result *out = (result *)job->out + start;              \
    for (size_t i = 0; i < count; i++) {                   \
      const type x = in[i];                                \
      out[i] = (result)(expression);                       \
    }                                                      \
    return;                                                \
  }

#define NP_INTEGER(name, type)                                                      \
  static void each_##name(np_job *job, size_t start, size_t count) {                \
    switch (((const struct np_typed_unary_params *)job->params)->op) {              \
      case NP_UNARY_NEG: NP_EACH(type, type, 0 - (uint64_t)x)                       \
      case NP_UNARY_ABS: NP_EACH(type, type, x < 0 ? 0 - (uint64_t)x : (uint64_t)x) \
      case NP_UNARY_SIGN: NP_EACH(type, type, (x > 0) - (x < 0))                    \
      case NP_UNARY_NOT: NP_EACH(type, uint8_t, x == 0)                             \
      default: NP_EACH(type, type, ~x)                                              \
    }                                                                               \
  }

NP_EACH_INTEGER(NP_INTEGER)

#define NP_FLOAT(name, type, magnitude)                                                      \
  static void each_##name(np_job *job, size_t start, size_t count) {                         \
    const struct np_typed_unary_params *p = job->params;                                     \
    const int above = p->positive, below = p->negative;                                      \
    switch (p->op) {                                                                         \
      case NP_UNARY_NEG: NP_EACH(type, type, -x)                                             \
      case NP_UNARY_ABS: NP_EACH(type, type, magnitude(x))                                   \
      case NP_UNARY_SIGN: NP_EACH(type, type, x > 0 ? 1 : x < 0 ? -1 : x)                    \
      case NP_UNARY_NOT: NP_EACH(type, uint8_t, x == 0)                                      \
      case NP_UNARY_ISNAN: NP_EACH(type, uint8_t, x != x)                                    \
      default: NP_EACH(type, uint8_t, (above && x == INFINITY) || (below && x == -INFINITY)) \
    }                                                                                        \
  }

NP_FLOAT(f32, float, fabsf)
NP_FLOAT(f64, double, fabs)

int np_typed_unary(np_job *job) {
  static np_tile *const each[] = NP_BY_TYPE(each_);
  const struct np_typed_unary_params *p = job->params;
  return np_for_tiles(job, each[p->type], p->count, TILE, p->count * size_of(p->type), 0);
}
