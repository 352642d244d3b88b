/* Layer normalization and its form without a mean, of a tensor or of the sum of two.
 *
 * The variance is that of the differences from the mean, not E[x²] - E[x]²: no cancellation. Rows
 * are gone over three times while they lie in cache, two at once. Accumulators have 32 lanes, so that
 * the error grows with a fraction of the columns, and is the same with every instruction set. */
#include "norm/layer_norm_rows.h"

/* out = (x - mean) / sqrt(variance + epsilon) · scale + bias over rows of `columns`, dense, of
 * which there are as many as `sizes` multiply to; x may be the sum of x and `added`. Where the
 * sum is wanted too it goes to `sum_offset` behind the result, which else is 0. */
struct np_layer_norm_params {
  size_t sizes[3];
  size_t columns;
  ptrdiff_t x_strides[3];
  ptrdiff_t added_strides[3];
  size_t sum_offset;
  float epsilon;
  int32_t has_bias;
  int32_t has_added;
  int32_t root_mean_square; /* no mean is taken away */
  int32_t target;           /* NP_TARGET_* */
};

static void rows(np_job *job, size_t start, size_t count) {
  const struct np_layer_norm_params *p = job->params;
  np_normalize_rows *normalize = NP_FROM_SSE4(np_normalize_rows, p->target);
  const ptrdiff_t *const strides[] = {p->x_strides, p->added_strides};
  const float *added = p->has_added ? job->inputs[p->has_bias ? 3 : 2] : NULL;
  const size_t end = start + count, line = p->sizes[2];
  for (size_t row = start; row < end;) {
    const size_t left = line - row % line;
    ptrdiff_t at[2];
    np_offsets(row, 3, p->sizes, 2, strides, at);
    float *out = (float *)job->out + row * p->columns;
    const np_normal_rows some = {
        .x = (const float *)job->inputs[0] + at[0],
        .x_stride = p->x_strides[2],
        .added = added == NULL ? NULL : added + at[1],
        .added_stride = p->added_strides[2],
        .scale = job->inputs[1],
        .bias = p->has_bias ? job->inputs[2] : NULL,
        .sum = out + p->sum_offset,
        .out = out,
        .rows = np_min(end - row, left),
        .columns = p->columns,
        .epsilon = p->epsilon,
        .root_mean_square = p->root_mean_square,
    };
    normalize(&some);
    row += some.rows;
  }
}

int np_layer_norm(np_job *job) {
  const struct np_layer_norm_params *p = job->params;
  const size_t count = np_element_count(3, p->sizes);
  if (count == 0 || p->columns == 0) return 0;
  return np_for_tiles(job, rows, count, 1 + NP_PARALLEL_MIN_BYTES / 8 / p->columns,
                      count * p->columns * 4, NP_DISABLE_DENORMALS);
}
