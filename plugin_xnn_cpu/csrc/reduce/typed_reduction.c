/* Reductions along axes of any element type. Integers wrap when they are added; a mean of integers
 * is rounded towards 0. An extreme of elements with a NaN is NaN, which XNNPACK's kernels lose. */
#include <math.h>

#include "elementwise/typed.h"
#include "reduce/floats.h"
#include "runtime/kernel.h"

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wtype-limits" /* one text for all types */
#endif

#define COLUMNS 256 /* results of a part, where they lie side by side */
#define ROWS 256 /* rows that are reduced between two looks at whether the run is stopped */
#define LANES 16
#define BLOCK 64 /* lanes of extremes of float32 */

/* Where element `index` of axes lies. */
NP_INLINE ptrdiff_t place(const struct np_reduction_axes *axes, size_t index) {
  const ptrdiff_t *const strides[] = {axes->strides};
  ptrdiff_t at;
  np_offsets(index, axes->rank, axes->sizes, 1, strides, &at);
  return at;
}

#define NP_ONCE(type, name, params, args) static type name params

/* Dense rows: accumulated element by element, and to one result. TAKE is `a`, an accumulator, with
 * the element x; JOIN is a with another accumulator b; ACC is the type of both. */
#define NP_DENSE_ROWS(name, type, ACC, start, TAKE, JOIN, EACH)                                    \
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
    for (size_t c = 0; i + c < count; c++) {                                                       \
      const ACC a = lanes[c];                                                                      \
      const type x = in[i + c];                                                                    \
      lanes[c] = TAKE;                                                                             \
    }                                                                                              \
    for (size_t c = 0; c < LANES; c++) {                                                           \
      const ACC b = lanes[c];                                                                      \
      a = JOIN;                                                                                    \
    }                                                                                              \
    return a;                                                                                      \
  }

/* Results from `first` on, of one index of the kept axes; WIDE is what a mean is divided in. */
#define NP_REDUCE(name, type, ACC, WIDE, start, JOIN)                                              \
  static void reduce_##name(const np_job *job, size_t index, size_t first, size_t count,           \
                            int mean) {                                                            \
    const struct np_typed_reduction_params *p = job->params;                                       \
    const type *in = (const type *)job->inputs[0] + place(&p->kept, index);                        \
    const size_t elements = p->reduced_count * (p->columns > 0 ? 1 : p->row);                      \
    if (p->columns > 0) {                                                                          \
      ACC acc[COLUMNS];                                                                            \
      for (size_t c = 0; c < count; c++) acc[c] = start;                                           \
      for (size_t i = 0; i < p->reduced_count; i++) {                                              \
        columns_##name(acc, in + place(&p->reduced, i) + first, count);                            \
        if (i % ROWS == ROWS - 1 && np_cancel_check()) return;                                     \
      }                                                                                            \
      type *out = (type *)job->out + index * p->columns + first;                                   \
      for (size_t c = 0; c < count; c++) {                                                         \
        out[c] = (type)(mean ? (WIDE)acc[c] / (WIDE)elements : (WIDE)acc[c]);                      \
      }                                                                                            \
      return;                                                                                      \
    }                                                                                              \
    ACC a = start;                                                                                 \
    for (size_t i = 0; i < p->reduced_count; i++) {                                                \
      const type *row = in + place(&p->reduced, i);                                                \
      for (size_t at = 0, next; at < p->row; at = next) {                                          \
        if ((at > 0 || i % ROWS == ROWS - 1) && np_cancel_check()) return;                         \
        next = np_stretch(at, p->row);                                                             \
        const ACC b = row_##name(row + at, next - at);                                             \
        a = JOIN;                                                                                  \
      }                                                                                            \
    }                                                                                              \
    ((type *)job->out)[index] = (type)(mean ? (WIDE)a / (WIDE)elements : (WIDE)a);                 \
  }

#define NP_REDUCTION(name, type, ACC, WIDE, start, TAKE, JOIN, EACH) \
  NP_DENSE_ROWS(name, type, ACC, start, TAKE, JOIN, EACH)            \
  NP_REDUCE(name, type, ACC, WIDE, start, JOIN)

#define NP_MAGNITUDE(ACC) ((ACC)(x < 0 ? 0 - (ACC)x : (ACC)x))

/* Integers are added in unsigned ones, which wrap. */
#define NP_TOTALS(name, type, ACC, WIDE, EACH)                                                       \
  NP_REDUCTION(sum_##name, type, ACC, WIDE, 0, (ACC)(a + (ACC)x), (ACC)(a + b), EACH)              \
  NP_REDUCTION(prod_##name, type, ACC, WIDE, 1, (ACC)(a * (ACC)x), (ACC)(a * b), EACH)             \
  NP_REDUCTION(abs_##name, type, ACC, WIDE, 0, (ACC)(a + NP_MAGNITUDE(ACC)), (ACC)(a + b), EACH)   \
  NP_REDUCTION(squares_##name, type, ACC, WIDE, 0, (ACC)(a + (ACC)x * (ACC)x), (ACC)(a + b), EACH)

#define NP_GREATER(x, a) ((x > a) | (x != x) ? x : a)
#define NP_LESS(x, a) ((x < a) | (x != x) ? x : a)
#define NP_EXTREMES(name, type, least, most, EACH)                                                 \
  NP_REDUCTION(max_##name, type, type, type, least, NP_GREATER(x, a), NP_GREATER(b, a), EACH)      \
  NP_REDUCTION(min_##name, type, type, type, most, NP_LESS(x, a), NP_LESS(b, a), EACH)

#define NP_INTEGERS(name, type, ACC, WIDE, least, most) \
  NP_TOTALS(name, type, ACC, WIDE, NP_ONCE)               \
  NP_EXTREMES(name, type, least, most, NP_ONCE)

NP_INTEGERS(u8, uint8_t, uint32_t, uint32_t, 0, UINT8_MAX)
NP_INTEGERS(i8, int8_t, uint32_t, int32_t, INT8_MIN, INT8_MAX)
NP_INTEGERS(i32, int32_t, uint64_t, int64_t, INT32_MIN, INT32_MAX)
NP_INTEGERS(i64, int64_t, uint64_t, int64_t, INT64_MIN, INT64_MAX)
NP_TOTALS(f32, float, float, float, NP_MULTIVERSIONED)
NP_TOTALS(f64, double, double, double, NP_ONCE)
NP_EXTREMES(f64, double, -INFINITY, INFINITY, NP_ONCE)

/* The extreme of a dense row of float32. NaN is kept apart, so that a maximum is one instruction;
 * the last step halves the lanes. */
NP_INLINE float extreme_of_row(const float *in, size_t count, const int least) {
  float best = least ? INFINITY : -INFINITY, found[BLOCK], nan = 0.0f, nans[BLOCK];
  size_t i = 0;
  if (count >= BLOCK) {
    for (size_t c = 0; c < BLOCK; c++) found[c] = best;
    for (size_t c = 0; c < BLOCK; c++) nans[c] = 0.0f;
    for (; i + BLOCK <= count; i += BLOCK) {
      for (size_t c = 0; c < BLOCK; c++) {
        const float x = in[i + c];
        found[c] = (least ? x < found[c] : x > found[c]) ? x : found[c];
        nans[c] = x != x ? x : nans[c];
      }
    }
    for (size_t half = BLOCK / 2; half > 0; half /= 2) {
      for (size_t c = 0; c < half; c++) {
        const float x = found[c + half], y = nans[c + half];
        found[c] = (least ? x < found[c] : x > found[c]) ? x : found[c];
        nans[c] = y != y ? y : nans[c];
      }
    }
    best = found[0];
    nan = nans[0] != nans[0] ? nans[0] : nan;
  }
  for (; i < count; i++) {
    best = (least ? in[i] < best : in[i] > best) ? in[i] : best;
    nan = in[i] != in[i] ? in[i] : nan;
  }
  return nan != nan ? nan : best;
}

#define NP_FLOAT_EXTREME(name, least, start, CHOOSE)                                       \
  NP_MULTIVERSIONED(void, columns_##name, (float *acc, const float *in, size_t count),     \
                    (acc, in, count)) {                                                    \
    for (size_t c = 0; c < count; c++) acc[c] = CHOOSE(in[c], acc[c]);                     \
  }                                                                                        \
  NP_MULTIVERSIONED(float, row_##name, (const float *in, size_t count), (in, count)) {     \
    return extreme_of_row(in, count, least);                                               \
  }                                                                                        \
  NP_REDUCE(name, float, float, float, start, CHOOSE(b, a))

NP_FLOAT_EXTREME(max_f32, 0, -INFINITY, NP_GREATER)
NP_FLOAT_EXTREME(min_f32, 1, INFINITY, NP_LESS)

typedef void reduce(const np_job *, size_t, size_t, size_t, int);

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

/* Whether a reduction of float32 adds, over rows or columns that are evenly apart. */
static int adds_floats(const struct np_typed_reduction_params *p) {
  const int adds = p->op == NP_REDUCTION_SUM || p->op == NP_REDUCTION_MEAN ||
                   p->op == NP_REDUCTION_L1 || p->op == NP_REDUCTION_SUM_SQUARES;
  const int even = p->columns > 0 ? p->reduced.rank <= 1 : p->reduced_count == 1 && p->kept.rank <= 1;
  return p->type == NP_TYPE_FLOAT32 && adds && even;
}

static void part_of_floats(np_job *job, size_t thread, size_t index) {
  const struct np_typed_reduction_params *p = job->params;
  const int mean = p->op == NP_REDUCTION_MEAN;
  np_float_reduction some = {.op = mean ? NP_REDUCTION_SUM : p->op, .divisor = 1.0f};
  if (p->columns > 0) {
    const size_t parts = np_ceil_div(p->columns, COLUMNS), kept = index / parts;
    const np_range columns = np_range_of(index % parts, COLUMNS, p->columns);
    some.x = (const float *)job->inputs[0] + place(&p->kept, kept) + columns.first;
    some.stride = p->reduced.rank > 0 ? p->reduced.strides[0] : 0;
    some.rows = p->reduced_count;
    some.columns = columns.count;
    some.out = (float *)job->out + kept * p->columns + columns.first;
    if (mean) some.divisor = (float)some.rows;
    NP_FROM_SSE4(np_reduce_columns, p->target)(&some);
    return;
  }
  const np_range results = np_range_of(index, p->tile, p->kept_count);
  some.x = (const float *)job->inputs[0] + place(&p->kept, results.first);
  some.stride = p->kept.rank > 0 ? p->kept.strides[0] : 0;
  some.rows = results.count;
  some.columns = p->row;
  some.out = (float *)job->out + results.first;
  if (mean) some.divisor = (float)p->row;
  NP_FROM_SSE4(np_reduce_rows, p->target)(&some);
}

static void part(np_job *job, size_t thread, size_t index) {
  const struct np_typed_reduction_params *p = job->params;
  reduce *run = REDUCE[p->type][p->op];
  const int mean = p->op == NP_REDUCTION_MEAN;
  if (p->columns > 0) {
    const size_t parts = np_ceil_div(p->columns, COLUMNS);
    const np_range columns = np_range_of(index % parts, COLUMNS, p->columns);
    run(job, index / parts, columns.first, columns.count, mean);
    return;
  }
  const np_range results = np_range_of(index, p->tile, p->kept_count);
  for (size_t at = results.first; at < results.end; at++) run(job, at, 0, 1, mean);
}

int np_typed_reduction(np_job *job) {
  const struct np_typed_reduction_params *p = job->params;
  if (REDUCE[p->type][p->op] == NULL) return NP_STATUS_CALL;
  const size_t results = p->kept_count * (p->columns > 0 ? p->columns : 1);
  const size_t read = results * p->reduced_count * (p->columns > 0 ? 1 : p->row);
  const size_t parts = p->columns > 0 ? p->kept_count * np_ceil_div(p->columns, COLUMNS)
                                      : np_ceil_div(p->kept_count, p->tile);
  np_job_part *run = adds_floats(p) ? part_of_floats : part;
  return np_for_parts(job, run, parts, read * sizeof(float) < NP_PARALLEL_MIN_BYTES, 0);
}
