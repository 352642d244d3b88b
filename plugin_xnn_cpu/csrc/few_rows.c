/* Products of a few rows with a large matrix: few_rows_code.h says how they are computed.
 *
 * Each thread has panels that lie one after the other, a part of memory of its own. */
#include "few_rows.h"

/* Bytes of a matrix below which waking the workers costs more than it saves. */
#define SMALL_MATRIX (1u << 18)

typedef struct {
  np_few_rows_job job;
  const float *after; /* a residual that is added to results, or NULL */
} task;

static np_few_rows_code *fitting(int32_t target, int32_t layout) {
#ifdef NP_CHOOSES_CPU
  if (target == NP_TARGET_PLAIN) return np_few_rows_plain;
  if (layout == NP_PANELS_INT8_BY_4) {
    const int fast = target != NP_TARGET_AVX2 && __builtin_cpu_supports("x86-64-v4") &&
                     __builtin_cpu_supports("avx512vnni");
    return fast ? np_few_rows_vnni : np_few_rows_plain;
  }
  if (target != NP_TARGET_AVX2 && __builtin_cpu_supports("x86-64-v4")) return np_few_rows_avx512;
  if (__builtin_cpu_supports("x86-64-v3")) return np_few_rows_avx2;
#else
  (void)target, (void)layout;
#endif
  return np_few_rows_plain;
}

size_t np_few_rows_width(int32_t layout) {
  np_few_rows_code *code = fitting(NP_TARGET_BEST, layout);
  if (code == np_few_rows_plain) return 0;
  if (layout == NP_TABLE_F32) return 1;
  if (layout == NP_PANELS_INT8_BY_4) return 64;
#ifdef NP_CHOOSES_CPU
  if (code == np_few_rows_avx512 && layout != NP_PANELS_F32) return 32;
#endif
  return 16;
}

bool np_few_rows_reads(size_t width) {
#ifdef NP_CHOOSES_CPU
  np_few_rows_code *code = fitting(NP_TARGET_BEST, NP_PANELS_F32);
  if (code == np_few_rows_avx512) return width == 48 || width == 64;
  if (code == np_few_rows_avx2) return width == 16;
#endif
  return false;
}

static void part(void *context, size_t index) {
  const task *all = context;
  const struct np_few_rows_params *p = all->job.params;
  const size_t panels = (p->outputs + p->width - 1) / p->width;
  const size_t first = index * p->part_panels;
  const size_t last = first + p->part_panels < panels ? first + p->part_panels : panels;
  fitting(p->target, p->layout)(&all->job, first, last);
  if (p->epilogue.function == NP_EPILOGUE_CLAMP && all->after == NULL) return;
  const struct np_epilogue end = {
      .function = p->epilogue.function,
      .residual = all->after == NULL ? NP_RESIDUAL_NONE : NP_RESIDUAL_AFTER,
      .low = p->epilogue.low,
      .high = p->epilogue.high,
  };
  const size_t column = first * p->width;
  const size_t columns = (last * p->width < p->outputs ? last * p->width : p->outputs) - column;
  np_epilogue_for(p->target)(&end, all->job.out + column, p->outputs,
                             all->after == NULL ? NULL : all->after + column, p->outputs, p->rows,
                             columns);
}

static int run(const task *all, pthreadpool_t pool) {
  const struct np_few_rows_params *p = all->job.params;
  const size_t bytes = p->outputs / p->width * p->panel_bytes;
  pthreadpool_parallelize_1d(bytes < SMALL_MATRIX ? NULL : pool, part, (void *)all, p->parts,
                             NP_DISABLE_DENORMALS);
  return 0;
}

int np_few_rows(const void *params, const void *const *inputs, void *out, pthreadpool_t pool) {
  const struct np_few_rows_params *p = params;
  const int32_t residual = p->epilogue.residual;
  const task all = {
      {p, inputs[0], NULL, residual == NP_RESIDUAL_BEFORE ? inputs[1] : NULL, out},
      residual == NP_RESIDUAL_AFTER ? inputs[1] : NULL,
  };
  return run(&all, pool);
}

int np_few_rows_of_bytes(const struct np_few_rows_params *params, const uint8_t *rows,
                         const struct xnn_quantization_params *ranges, float *out,
                         pthreadpool_t pool) {
  const task all = {{params, rows, ranges, NULL, out}, NULL};
  return run(&all, pool);
}
