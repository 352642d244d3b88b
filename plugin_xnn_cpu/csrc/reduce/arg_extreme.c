/* Indices of the greatest or least elements of float32 along an axis: ArgMax, ArgMin. NaN counts as
 * more extreme than any number, as in numpy. */
#include "runtime/kernel.h"

struct np_arg_extreme_params {
  size_t outer;      /* of the axes before the reduced one */
  size_t count;      /* elements along the axis; not 0 */
  size_t inner;      /* of the axes after it */
  int32_t least;     /* ArgMin */
  int32_t last;      /* of equal elements the last one, otherwise the first */
};

#define COLUMNS 256 /* of one tile: their best values and indices stay in L1 */
#define ROWS 1024   /* of them between two looks at whether the run is stopped */
#define LANES 32

/* Whether a value takes the place of the best one before it. */
NP_INLINE int is_better(float value, float best, int last) {
  const int is_nan = value != value, was_nan = best != best;
  return last ? is_nan | (value >= best) : (!was_nan) & ((value > best) | is_nan);
}

/* The index in a dense row: its greatest element in lanes, then where that is. */
NP_INLINE size_t index_in_row(const float *x, size_t count, float sign, int last) {
  float lanes[LANES], best = sign * x[0];
  int32_t unordered[LANES], any = 0;
  for (size_t c = 0; c < LANES; c++) lanes[c] = best, unordered[c] = 0;
  size_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    for (size_t c = 0; c < LANES; c++) {
      const float value = sign * x[i + c];
      lanes[c] = value > lanes[c] ? value : lanes[c];
      unordered[c] |= value != value;
    }
  }
  for (; i < count; i++) {
    const float value = sign * x[i];
    best = value > best ? value : best;
    any |= value != value;
  }
  for (size_t c = 0; c < LANES; c++) {
    best = lanes[c] > best ? lanes[c] : best;
    any |= unordered[c];
  }
  for (i = 0; i < count; i++) {
    const size_t at = last ? count - 1 - i : i;
    if (any ? x[at] != x[at] : sign * x[at] == best) return at;
  }
  return 0; /* not reached: the row has `best`, or NaN */
}

/* The same of a row of any length, stretch by stretch. */
NP_INLINE size_t index_in_long_row(const float *x, size_t count, float sign, int last) {
  size_t best = 0;
  for (size_t start = 0, next; start < count; start = next) {
    if (start > 0 && np_cancel_check()) return 0;
    next = np_stretch(start, count);
    const size_t found = start + index_in_row(x + start, next - start, sign, last);
    if (start == 0 || is_better(sign * x[found], sign * x[best], last)) best = found;
  }
  return best;
}

/* The indices of a tile of columns, whose elements are `stride` apart along the axis. */
NP_INLINE void index_in_columns(const float *x, size_t count, size_t stride, size_t columns,
                                float sign, int last, int64_t *out) {
  float best[COLUMNS];
  for (size_t c = 0; c < columns; c++) best[c] = sign * x[c], out[c] = 0;
  for (size_t k = 1; k < count; k++) {
    if (k % ROWS == 0 && np_cancel_check()) return;
    const float *row = x + k * stride;
    for (size_t c = 0; c < columns; c++) {
      const float value = sign * row[c];
      const int better = is_better(value, best[c], last);
      best[c] = better ? value : best[c];
      out[c] = better ? (int64_t)k : out[c];
    }
  }
}

NP_TILE(part) {
  const struct np_arg_extreme_params *p = job->params;
  const float sign = p->least ? -1.0f : 1.0f;
  const size_t tiles = np_ceil_div(p->inner, COLUMNS); /* of the columns of one outer index */
  for (size_t tile = start; tile < start + count; tile++) {
    const size_t outer = tile / tiles;
    const np_range columns = np_range_of(tile % tiles, COLUMNS, p->inner);
    const float *x = (const float *)job->inputs[0] + outer * p->count * p->inner + columns.first;
    int64_t *out = (int64_t *)job->out + outer * p->inner + columns.first;
    if (p->inner == 1) {
      *out = (int64_t)index_in_long_row(x, p->count, sign, p->last);
    } else {
      index_in_columns(x, p->count, p->inner, columns.count, sign, p->last, out);
    }
  }
}

int np_arg_extreme(np_job *job) {
  const struct np_arg_extreme_params *p = job->params;
  if (p->outer == 0 || p->inner == 0) return 0;
  const size_t bytes = p->count * np_min(p->inner, COLUMNS) * sizeof(float);
  return np_for_tiles(job, part, p->outer * np_ceil_div(p->inner, COLUMNS),
                      1 + NP_PARALLEL_MIN_BYTES / 4 / bytes,
                      p->outer * p->count * p->inner * sizeof(float), 0);
}
