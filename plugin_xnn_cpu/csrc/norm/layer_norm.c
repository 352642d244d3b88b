/* Layer normalization and its form without a mean, of a tensor or of the sum of two.
 *
 * The variance is that of the differences from the mean, not E[x²] - E[x]²: no cancellation. Rows
 * are gone over three times while they lie in cache, two at once. Sums are kept in as many lanes as
 * there are in four registers, so that the error grows with a fraction of the columns. */
#include "norm/layer_norm_rows.h"

typedef struct {
  const struct np_layer_norm_params *params;
  const float *in;
  const float *scale;
  const float *bias;
  const float *added;
  float *out;
} job;

static void rows(void *context, size_t start, size_t count) {
  const job *task = context;
  const struct np_layer_norm_params *p = task->params;
  np_normalize_rows *normalize = NP_FOR_ISA(np_normalize_rows, p->target);
  const size_t end = start + count, line = p->sizes[2];
  for (size_t row = start; row < end;) {
    const size_t in_line = row % line, left = line - in_line;
    ptrdiff_t from = (ptrdiff_t)in_line * p->x_strides[2];
    ptrdiff_t added = (ptrdiff_t)in_line * p->added_strides[2];
    size_t rest = row / line;
    for (int axis = 1; axis >= 0; axis--) {
      const ptrdiff_t at = (ptrdiff_t)(rest % p->sizes[axis]);
      rest /= p->sizes[axis];
      from += at * p->x_strides[axis];
      added += at * p->added_strides[axis];
    }
    float *out = task->out + row * p->columns;
    const np_normal_rows some = {
        .x = task->in + from,
        .x_stride = p->x_strides[2],
        .added = task->added == NULL ? NULL : task->added + added,
        .added_stride = p->added_strides[2],
        .scale = task->scale,
        .bias = task->bias,
        .sum = out + p->sum_offset,
        .out = out,
        .rows = end - row < left ? end - row : left,
        .columns = p->columns,
        .epsilon = p->epsilon,
        .root_mean_square = p->root_mean_square,
    };
    normalize(&some);
    row += some.rows;
  }
}

int np_layer_norm(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_layer_norm_params *p = params;
  const size_t count = p->sizes[0] * p->sizes[1] * p->sizes[2];
  if (count == 0 || p->columns == 0) return 0;
  const float *bias = p->has_bias ? inputs[2] : NULL;
  const float *added = p->has_added ? inputs[p->has_bias ? 3 : 2] : NULL;
  job task = {p, inputs[0], inputs[1], bias, added, out};
  np_workers *const used = count * p->columns * 4 < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  const size_t tile = 1 + NP_PARALLEL_MIN_BYTES / 8 / p->columns;
  np_parallel_for_tiles(used, rows, &task, count, tile, NP_DISABLE_DENORMALS);
  return 0;
}
