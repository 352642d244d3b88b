/* Max and average pooling.
 *
 * XNNPACK's kernels lose NaN: the greater of two numbers is the second one where either is NaN, and
 * so is a bound that means are clamped to. Here the result is NaN, as that of a sum is. */
#include <math.h>

#include "reduce/reduce.h"
#include "runtime/kernel.h"

#define BLOCK 64    /* channels that are kept in registers */
#define PIECE ((size_t)1 << 14) /* elements of a plane between two looks whether to stop */

enum { MAXIMUM, SUM };

/* Elements of a plane by the strides of its rows and columns, each of which has channels. */
typedef struct {
  size_t rows;
  size_t columns;
  ptrdiff_t row_step;
  ptrdiff_t column_step;
} plane;

/* The pool of all elements of a plane, for `count` channels, which stay in registers. NaN is kept
 * apart, so that a maximum is one instruction. */
NP_INLINE void channels_of_plane(const float *in, plane p, float *out, const size_t count,
                                 const int kind) {
  float best[BLOCK], nan[BLOCK];
  for (size_t c = 0; c < count; c++) best[c] = kind == SUM ? 0.0f : -INFINITY;
  for (size_t c = 0; c < count; c++) nan[c] = 0.0f;
  for (size_t row = 0; row < p.rows; row++) {
    const float *x = in + (ptrdiff_t)row * p.row_step;
    for (size_t column = 0; column < p.columns; column++, x += p.column_step) {
      for (size_t c = 0; c < count; c++) {
        if (kind == SUM) {
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

/* The pool of all elements of a plane, for each of the channels. */
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

/* The same of many elements, some at a time. */
NP_INLINE void over_large_plane(const float *in, plane p, size_t channels, float *out,
                                const int kind) {
  const size_t wide = np_min(p.columns, PIECE), high = np_max(1, PIECE / wide);
  for (size_t start = 0; start < channels; start += BLOCK) {
    const size_t count = np_min(BLOCK, channels - start);
    float *to = out + start, some[BLOCK];
    for (size_t c = 0; c < count; c++) to[c] = kind == SUM ? 0.0f : -INFINITY;
    for (size_t row = 0; row < p.rows; row += high) {
      for (size_t column = 0; column < p.columns; column += wide) {
        if (np_cancel_check()) return;
        const plane piece = {np_min(high, p.rows - row), np_min(wide, p.columns - column),
                             p.row_step, p.column_step};
        const float *x =
            in + start + (ptrdiff_t)row * p.row_step + (ptrdiff_t)column * p.column_step;
        over_plane(x, piece, count, some, kind);
        for (size_t c = 0; c < count; c++) {
          const int greater = (some[c] > to[c]) | (some[c] != some[c]);
          to[c] = kind == SUM ? to[c] + some[c] : greater ? some[c] : to[c];
        }
      }
    }
  }
}

/* The taps of a kernel window that lie in the image: from which on, and how many. */
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
NP_INLINE void pool_output_row(const np_job *job, size_t index, const int kind) {
  const struct np_pool_params *p = job->params;
  const size_t image = index / p->image.out_height, y = index % p->image.out_height;
  const size_t channels = p->image.channels;
  const ptrdiff_t width = (ptrdiff_t)(p->image.width * channels);
  size_t top, left;
  plane taps;
  taps.rows =
      inside(y, p->pads[0], p->strides[0], p->dilations[0], p->kernel[0], p->image.height, &top);
  taps.row_step = width * (ptrdiff_t)p->dilations[0];
  taps.column_step = (ptrdiff_t)(channels * p->dilations[1]);
  const size_t row = image * p->image.height + (taps.rows ? top : 0);
  const float *line = (const float *)job->inputs[0] + row * (size_t)width;
  float *out = (float *)job->out + index * p->image.out_width * channels;
  size_t since = 0; /* elements since the last look at whether the run is stopped */
  for (size_t x = 0; x < p->image.out_width; x++, out += channels) {
    taps.columns =
        inside(x, p->pads[1], p->strides[1], p->dilations[1], p->kernel[1], p->image.width, &left);
    const float *in = line + (taps.columns ? left : 0) * channels;
    const size_t elements = taps.rows * taps.columns;
    if (elements > PIECE) {
      over_large_plane(in, taps, channels, out, kind);
    } else {
      over_plane(in, taps, channels, out, kind);
    }
    since += elements * channels;
    if (since > NP_STRETCH) {
      if (np_cancel_check()) return;
      since = 0;
    }
    if (kind == SUM) {
      const float count = (float)elements;
      for (size_t c = 0; c < channels; c++) out[c] /= count;
    }
  }
}

NP_TILE(max_pool) {
  for (size_t row = start; row < start + count; row++) pool_output_row(job, row, MAXIMUM);
}

NP_TILE(average_pool) {
  for (size_t row = start; row < start + count; row++) pool_output_row(job, row, SUM);
}

int np_pool(np_job *job) {
  const struct np_pool_params *p = job->params;
  const size_t rows = p->image.batch * p->image.out_height;
  const size_t read = rows * p->image.out_width * p->image.channels * p->kernel[0] * p->kernel[1];
  return np_for_tiles(job, p->maximum ? max_pool : average_pool, rows, 1, read * sizeof(float), 0);
}
