/* Layer normalization and its form without a mean, of a tensor or of the sum of two.
 *
 * The variance is that of the differences from the mean, not E[x²] - E[x]²: no cancellation. A row
 * is gone over three times while it lies in cache. Sums are kept in as many lanes as there are in
 * four registers, so that the error grows with a fraction of the columns. */
#include "layer_norm.h"

typedef struct {
  const struct np_layer_norm_params *params;
  const float *in;
  const float *scale;
  const float *bias;
  const float *added;
  float *out;
} job;

/* The one for this CPU. */
static np_normalize_row *fitting(int32_t target) {
#ifdef NP_CHOOSES_CPU
  const int32_t isa = np_isa_for(target);
  if (isa >= NP_TARGET_AVX512) return np_normalize_row_avx512;
  if (isa == NP_TARGET_AVX2) return np_normalize_row_avx2;
#else
  (void)target;
#endif
  return np_normalize_row_plain;
}

static void rows(void *context, size_t start, size_t count) {
  const job *task = context;
  const struct np_layer_norm_params *p = task->params;
  np_normalize_row *normalize = fitting(p->target);
  for (size_t row = start; row < start + count; row++) {
    ptrdiff_t from = 0, added = 0;
    size_t rest = row;
    for (int axis = 2; axis >= 0; axis--) {
      const ptrdiff_t at = (ptrdiff_t)(rest % p->sizes[axis]);
      rest /= p->sizes[axis];
      from += at * p->x_strides[axis];
      added += at * p->added_strides[axis];
    }
    float *out = task->out + row * p->columns;
    normalize(task->in + from, task->added == NULL ? NULL : task->added + added, task->scale,
              task->bias, out + p->sum_offset, out, p->columns, p->epsilon, p->root_mean_square);
  }
}

int np_layer_norm(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_layer_norm_params *p = params;
  const size_t count = p->sizes[0] * p->sizes[1] * p->sizes[2];
  if (count == 0 || p->columns == 0) return 0;
  const float *bias = p->has_bias ? inputs[2] : NULL;
  const float *added = p->has_added ? inputs[p->has_bias ? 3 : 2] : NULL;
  job task = {p, inputs[0], inputs[1], bias, added, out};
  np_workers *const used = count * p->columns * 4 < NP_SMALL ? NULL : workers;
  const size_t tile = 1 + NP_SMALL / 8 / p->columns;
  np_divide_tiles(used, rows, &task, count, tile, NP_DISABLE_DENORMALS);
  return 0;
}
