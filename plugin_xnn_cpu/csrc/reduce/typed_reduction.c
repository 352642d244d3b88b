/* Reductions along axes of any element type. Sums of integers wrap; a mean of integers is rounded
 * towards 0. NaN comes of NaN in extremes. */
#include <math.h>

#include "elementwise/typed.h"
#include "reduce/reduce.h"
#include "runtime/kernel.h"

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wtype-limits" /* one text for all types */
#endif

#define COLUMNS 256 /* results of a part, where they lie side by side */
#define LANES 16

typedef struct {
  const struct np_typed_reduction_params *params;
  const char *in;
  char *out;
} job;

/* Where element `index` of axes lies. */
static ptrdiff_t place(const struct np_reduction_axes *axes, size_t index) {
  ptrdiff_t at = 0;
  for (size_t dim = axes->rank; dim-- > 0;) {
    at += (ptrdiff_t)(index % axes->sizes[dim]) * axes->strides[dim];
    index /= axes->sizes[dim];
  }
  return at;
}

#define NP_ONCE(type, name, params, args) static type name params

/* `acc` with the element x, and two partial results a and b, of one operator and type; ACC is what
 * partial results are kept in. */
#define NP_REDUCTION(name, type, ACC, WIDE, start, TAKE, JOIN, EACH)                               \
  EACH(void, columns_##name, (ACC *acc, const type *in, size_t count), (acc, in, count)) {         \
    for (size_t c = 0; c < count; c++) {                                                           \
      const ACC a = acc[c];                                                                        \
      const type x = in[c];                                                                        \
      acc[c] = TAKE;                                                                               \
    }                                                                                              \
  }                                                                                                \
  EACH(ACC, row_##name, (const type *in, size_t count), (in, count)) {                             \
    ACC lanes[LANES], a = start;                                                                   \
    for (size_t c = 0; c < LANES; c++) lanes[c] = start;                                           \
    size_t i = 0;                                                                                  \
    for (; i + LANES <= count; i += LANES) {                                                       \
      for (size_t c = 0; c < LANES; c++) {                                                         \
        const ACC a = lanes[c];                                                                    \
        const type x = in[i + c];                                                                  \
        lanes[c] = TAKE;                                                                           \
      }                                                                                            \
    }                                                                                              \
    for (; i < count; i++) {                                                                       \
      const type x = in[i];                                                                        \
      a = TAKE;                                                                                    \
    }                                                                                              \
    for (size_t c = 0; c < LANES; c++) {                                                           \
      const ACC b = lanes[c];                                                                      \
      a = JOIN;                                                                                    \
    }                                                                                              \
    return a;                                                                                      \
  }                                                                                                \
  static void reduce_##name(const job *task, size_t index, size_t first, size_t count, int mean) { \
    const struct np_typed_reduction_params *p = task->params;                                      \
    const type *in = (const type *)task->in + place(&p->kept, index);                              \
    const size_t elements = p->reduced_count * (p->columns > 0 ? 1 : p->row);                      \
    if (p->columns > 0) {                                                                          \
      ACC acc[COLUMNS];                                                                            \
      for (size_t c = 0; c < count; c++) acc[c] = start;                                           \
      for (size_t i = 0; i < p->reduced_count; i++) {                                              \
        columns_##name(acc, in + place(&p->reduced, i) + first, count);                            \
      }                                                                                            \
      type *out = (type *)task->out + index * p->columns + first;                                  \
      for (size_t c = 0; c < count; c++) out[c] = (type)(mean ? (WIDE)acc[c] / (WIDE)elements : (WIDE)acc[c]); \
      return;                                                                                      \
    }                                                                                              \
    ACC a = start;                                                                                 \
    for (size_t i = 0; i < p->reduced_count; i++) {                                                \
      const ACC b = row_##name(in + place(&p->reduced, i), p->row);                                \
      a = JOIN;                                                                                    \
    }                                                                                              \
    ((type *)task->out)[index] = (type)(mean ? a / (ACC)elements : a);                             \
  }

#define NP_MAGNITUDE(ACC) ((ACC)(x < 0 ? 0 - (ACC)x : (ACC)x))

/* Sums of integers are kept in unsigned ones, which wrap; WIDE is what a mean is divided in. */
#define NP_REDUCTIONS(name, type, ACC, WIDE, least, most, EACH)                                    \
  NP_REDUCTION(sum_##name, type, ACC, WIDE, 0, (ACC)(a + (ACC)x), (ACC)(a + b), EACH)              \
  NP_REDUCTION(prod_##name, type, ACC, WIDE, 1, (ACC)(a * (ACC)x), (ACC)(a * b), EACH)             \
  NP_REDUCTION(max_##name, type, type, type, least, (x > a || x != x ? x : a), (b > a || b != b ? b : a), EACH) \
  NP_REDUCTION(min_##name, type, type, type, most, (x < a || x != x ? x : a), (b < a || b != b ? b : a), EACH) \
  NP_REDUCTION(abs_##name, type, ACC, WIDE, 0, (ACC)(a + NP_MAGNITUDE(ACC)), (ACC)(a + b), EACH)   \
  NP_REDUCTION(squares_##name, type, ACC, WIDE, 0, (ACC)(a + (ACC)x * (ACC)x), (ACC)(a + b), EACH)

NP_REDUCTIONS(u8, uint8_t, uint32_t, uint32_t, 0, UINT8_MAX, NP_ONCE)
NP_REDUCTIONS(i8, int8_t, uint32_t, int32_t, INT8_MIN, INT8_MAX, NP_ONCE)
NP_REDUCTIONS(i32, int32_t, uint64_t, int64_t, INT32_MIN, INT32_MAX, NP_ONCE)
NP_REDUCTIONS(i64, int64_t, uint64_t, int64_t, INT64_MIN, INT64_MAX, NP_ONCE)
NP_REDUCTIONS(f32, float, float, float, -INFINITY, INFINITY, NP_MULTIVERSIONED)
NP_REDUCTIONS(f64, double, double, double, -INFINITY, INFINITY, NP_ONCE)

typedef void reduce(const job *, size_t, size_t, size_t, int);

#define NP_OF(name)                                                              \
  {                                                                              \
    reduce_sum_##name, reduce_prod_##name, reduce_max_##name, reduce_min_##name, \
        reduce_abs_##name, reduce_squares_##name, reduce_sum_##name              \
  }
#define NP_NONE \
  { NULL }

static reduce *const REDUCE[][NP_REDUCTION_MEAN + 1] = {NP_OF(u8),  NP_OF(u8),  NP_OF(i8), NP_NONE,
                                                        NP_NONE,    NP_NONE,    NP_OF(i32), NP_NONE,
                                                        NP_OF(i64), NP_OF(f32), NP_OF(f64)};

static void part(void *context, size_t thread, size_t index) {
  (void)thread;
  const job *task = context;
  const struct np_typed_reduction_params *p = task->params;
  reduce *run = REDUCE[p->type][p->op];
  const int mean = p->op == NP_REDUCTION_MEAN;
  if (p->columns > 0) {
    const size_t parts = (p->columns + COLUMNS - 1) / COLUMNS;
    const size_t start = index % parts * COLUMNS;
    run(task, index / parts, start, p->columns - start < COLUMNS ? p->columns - start : COLUMNS,
        mean);
    return;
  }
  const size_t first = index * p->tile;
  const size_t last = p->kept_count - first < p->tile ? p->kept_count : first + p->tile;
  for (size_t at = first; at < last; at++) run(task, at, 0, 1, mean);
}

int np_typed_reduction(const void *params, const void *const *inputs, void *out,
                       np_workers *workers) {
  const struct np_typed_reduction_params *p = params;
  job task = {p, inputs[0], out};
  if (REDUCE[p->type][p->op] == NULL) return NP_STATUS_CALL;
  const size_t results = p->kept_count * (p->columns > 0 ? p->columns : 1);
  const size_t read = results * p->reduced_count * (p->columns > 0 ? 1 : p->row);
  const size_t parts = p->columns > 0 ? p->kept_count * ((p->columns + COLUMNS - 1) / COLUMNS)
                                      : (p->kept_count + p->tile - 1) / p->tile;
  np_workers *const used = read * sizeof(float) < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  np_parallel_for(used, part, &task, parts, 0);
  return 0;
}
