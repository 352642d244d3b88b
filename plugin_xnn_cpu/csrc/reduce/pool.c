/* Pooling over windows, and the greatest and least elements along axes.
 *
 * XNNPACK's kernels for these lose NaN: the greater of two numbers is the second one where either
 * is NaN, and so is a bound that means are clamped to. Here NaN is what comes of it, as in a
 * sum. */
#include <math.h>

#include "reduce/reduce.h"
#include "runtime/kernel.h"

#define BLOCK 64    /* channels that are kept in registers */
#define COLUMNS 256 /* results of a part, where they lie side by side */

/* NaN once there is one. */
NP_INLINE float greater(float best, float x) { return (x > best) | (x != x) ? x : best; }
NP_INLINE float lesser(float best, float x) { return (x < best) | (x != x) ? x : best; }

enum { GREATEST, TOTAL };

/* Elements of a plane by the strides of its rows and columns, each of which has channels. */
typedef struct {
  size_t rows;
  size_t columns;
  ptrdiff_t row_step;
  ptrdiff_t column_step;
} plane;

/* What all elements of a plane give, for `count` channels, which stay in registers. NaN is kept
 * apart, so that a maximum is one instruction. */
NP_INLINE void channels_of_plane(const float *in, plane p, float *out, const size_t count,
                                 const int kind) {
  float best[BLOCK], nan[BLOCK];
  for (size_t c = 0; c < count; c++) best[c] = kind == TOTAL ? 0.0f : -INFINITY;
  for (size_t c = 0; c < count; c++) nan[c] = 0.0f;
  for (size_t row = 0; row < p.rows; row++) {
    const float *x = in + (ptrdiff_t)row * p.row_step;
    for (size_t column = 0; column < p.columns; column++, x += p.column_step) {
      for (size_t c = 0; c < count; c++) {
        if (kind == TOTAL) {
          best[c] += x[c];
        } else {
          best[c] = x[c] > best[c] ? x[c] : best[c];
          nan[c] = x[c] != x[c] ? x[c] : nan[c];
        }
      }
    }
  }
  for (size_t c = 0; c < count; c++) out[c] = nan[c] != nan[c] ? nan[c] : best[c];
}

/* What all elements of a plane give, for each of the channels. */
NP_INLINE void over_plane(const float *in, plane p, size_t channels, float *out, const int kind) {
  size_t start = 0;
  for (; start + BLOCK <= channels; start += BLOCK) {
    channels_of_plane(in + start, p, out + start, BLOCK, kind);
  }
  for (; start + 16 <= channels; start += 16)
    channels_of_plane(in + start, p, out + start, 16, kind);
  if (start + 8 <= channels) {
    channels_of_plane(in + start, p, out + start, 8, kind);
    start += 8;
  }
  if (start + 4 <= channels) {
    channels_of_plane(in + start, p, out + start, 4, kind);
    start += 4;
  }
  for (; start < channels; start++) channels_of_plane(in + start, p, out + start, 1, kind);
}

typedef struct {
  const struct np_pool_params *params;
  const float *in;
  float *out;
} pool_job;

/* The taps of a window that lie in the image: from which on, and how many. */
NP_INLINE size_t inside(size_t at, size_t pad, size_t stride, size_t dilation, size_t taps,
                        size_t size, size_t *first) {
  const ptrdiff_t start = (ptrdiff_t)(at * stride) - (ptrdiff_t)pad;
  const ptrdiff_t by = (ptrdiff_t)dilation;
  if (start >= 0 && start + (ptrdiff_t)(taps - 1) * by < (ptrdiff_t)size) {
    *first = (size_t)start;
    return taps;
  }
  const size_t skipped = start < 0 ? (size_t)((-start + by - 1) / by) : 0;
  const ptrdiff_t from = start + (ptrdiff_t)skipped * by;
  const size_t room = from < (ptrdiff_t)size ? (size - 1 - (size_t)from) / dilation + 1 : 0;
  const size_t left = skipped < taps ? taps - skipped : 0;
  *first = (size_t)from;
  return left < room ? left : room;
}

/* A row of output pixels. */
NP_INLINE void row_of_pixels(const pool_job *task, size_t index, const int kind) {
  const struct np_pool_params *p = task->params;
  const size_t image = index / p->out_height, y = index % p->out_height;
  const size_t channels = p->channels;
  const ptrdiff_t width = (ptrdiff_t)(p->width * channels);
  size_t top, left;
  plane taps;
  taps.rows = inside(y, p->pads[0], p->strides[0], p->dilations[0], p->window[0], p->height, &top);
  taps.row_step = width * (ptrdiff_t)p->dilations[0];
  taps.column_step = (ptrdiff_t)(channels * p->dilations[1]);
  const float *line = task->in + (image * p->height + (taps.rows ? top : 0)) * (size_t)width;
  float *out = task->out + index * p->out_width * channels;
  for (size_t x = 0; x < p->out_width; x++, out += channels) {
    taps.columns =
        inside(x, p->pads[1], p->strides[1], p->dilations[1], p->window[1], p->width, &left);
    over_plane(line + (taps.columns ? left : 0) * channels, taps, channels, out, kind);
    if (kind == TOTAL) {
      const float count = (float)(taps.rows * taps.columns);
      for (size_t c = 0; c < channels; c++) out[c] /= count;
    }
  }
}

NP_MULTIVERSIONED(void, greatest_pixels, (const pool_job *task, size_t index), (task, index)) {
  row_of_pixels(task, index, GREATEST);
}

NP_MULTIVERSIONED(void, mean_pixels, (const pool_job *task, size_t index), (task, index)) {
  row_of_pixels(task, index, TOTAL);
}

static void pool_row(void *context, size_t thread, size_t index) {
  (void)thread;
  const pool_job *task = context;
  (task->params->maximum ? greatest_pixels : mean_pixels)(task, index);
}

int np_pool(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_pool_params *p = params;
  pool_job task = {p, inputs[0], out};
  const size_t rows = p->batch * p->out_height;
  const size_t read = rows * p->out_width * p->channels * p->window[0] * p->window[1];
  np_workers *const used = read * sizeof(float) < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  np_parallel_for(used, pool_row, &task, rows, 0);
  return 0;
}

/* The extreme of a row and of `best`; see channels_of_plane. The last step halves the lanes. */
NP_INLINE float extreme_of_row(const float *in, size_t count, float best, const int least) {
  float found[BLOCK], nan = best != best ? best : 0.0f, nans[BLOCK];
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

NP_MULTIVERSIONED(float, greatest_of_row, (const float *in, size_t count, float best),
                  (in, count, best)) {
  return extreme_of_row(in, count, best, 0);
}

NP_MULTIVERSIONED(float, least_of_row, (const float *in, size_t count, float best),
                  (in, count, best)) {
  return extreme_of_row(in, count, best, 1);
}

typedef struct {
  const struct np_min_max_params *params;
  const float *in;
  float *out;
} extremes_job;

/* Where element `index` of axes lies. */
static ptrdiff_t place(const struct np_reduction_axes *axes, size_t index) {
  ptrdiff_t at = 0;
  for (size_t dim = axes->rank; dim-- > 0;) {
    at += (ptrdiff_t)(index % axes->sizes[dim]) * axes->strides[dim];
    index /= axes->sizes[dim];
  }
  return at;
}

NP_MULTIVERSIONED(void, greatest_into, (float *best, const float *in, size_t count),
                  (best, in, count)) {
  for (size_t c = 0; c < count; c++) best[c] = greater(best[c], in[c]);
}

NP_MULTIVERSIONED(void, least_into, (float *best, const float *in, size_t count),
                  (best, in, count)) {
  for (size_t c = 0; c < count; c++) best[c] = lesser(best[c], in[c]);
}

/* Results that lie side by side, as their operands do. */
static void extremes_of_columns(const extremes_job *task, size_t index, size_t start, size_t end) {
  const struct np_min_max_params *p = task->params;
  const float *in = task->in + place(&p->kept, index);
  float *out = task->out + index * p->columns;
  for (size_t c = start; c < end; c++) out[c] = p->least ? INFINITY : -INFINITY;
  for (size_t i = 0; i < p->reduced_count; i++) {
    const float *row = in + place(&p->reduced, i);
    (p->least ? least_into : greatest_into)(out + start, row + start, end - start);
  }
}

static void extremes_part(void *context, size_t thread, size_t index) {
  (void)thread;
  const extremes_job *task = context;
  const struct np_min_max_params *p = task->params;
  if (p->columns > 0) {
    const size_t parts = (p->columns + COLUMNS - 1) / COLUMNS;
    const size_t start = index % parts * COLUMNS;
    const size_t end = p->columns - start < COLUMNS ? p->columns : start + COLUMNS;
    extremes_of_columns(task, index / parts, start, end);
    return;
  }
  const size_t first = index * p->tile;
  const size_t last = p->kept_count - first < p->tile ? p->kept_count : first + p->tile;
  for (size_t at = first; at < last; at++) {
    const float *in = task->in + place(&p->kept, at);
    float best = p->least ? INFINITY : -INFINITY;
    for (size_t i = 0; i < p->reduced_count; i++) {
      const float *row = in + place(&p->reduced, i);
      best = (p->least ? least_of_row : greatest_of_row)(row, p->row, best);
    }
    task->out[at] = best;
  }
}

int np_min_max(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_min_max_params *p = params;
  extremes_job task = {p, inputs[0], out};
  const size_t results = p->kept_count * (p->columns > 0 ? p->columns : 1);
  const size_t read = results * p->reduced_count * (p->columns > 0 ? 1 : p->row);
  const size_t parts = p->columns > 0 ? p->kept_count * ((p->columns + COLUMNS - 1) / COLUMNS)
                                      : (p->kept_count + p->tile - 1) / p->tile;
  np_workers *const used = read * sizeof(float) < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  np_parallel_for(used, extremes_part, &task, parts, 0);
  return 0;
}
