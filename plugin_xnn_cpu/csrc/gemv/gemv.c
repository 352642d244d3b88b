/* GEMV and skinny GEMM with a large matrix: gemv/code.h says how they are computed.
 *
 * Each thread has panels that lie one after the other, a part of memory of its own. */
#include "gemv/job.h"

/* Bytes of a matrix below which waking the workers costs more than it saves. */
#define SMALL_MATRIX (1u << 18)

typedef struct {
  np_gemv_job job;
  const float *after; /* a residual that is added to results, or NULL */
} task;

/* Whether code is written for panels of this width. */
static bool reads(np_gemv_code *code, int32_t layout, size_t width) {
  if (np_isa() == NP_TARGET_SSE4) return false; /* where XNNPACK's kernels are faster */
  if (layout == NP_TABLE_F32) return width == 1;
  if (code == np_gemv_plain) return layout == NP_PANELS_INT8 && width == 8;
#if NP_HAS_AVX2
  if (code == np_gemv_avx2) return width == 16;
#endif
  return layout == NP_PANELS_F32 ? width == 48 || width == 64 : width == 32;
}

static np_gemv_code *fitting(int32_t target, int32_t layout, size_t width) {
  np_gemv_code *code = NP_FOR_ISA(np_gemv, target);
  return reads(code, layout, width) ? code : np_gemv_plain; /* which reads any */
}

size_t np_gemv_panel_width(int32_t layout) {
  static const size_t widths[] = {1, 8, 16, 32, 64};
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
    if (reads(NP_FOR_ISA(np_gemv, NP_TARGET_BEST), layout, widths[i])) return widths[i];
  }
  return 0;
}

bool np_gemv_reads_width(size_t width) {
  return reads(NP_FOR_ISA(np_gemv, NP_TARGET_BEST), NP_PANELS_F32, width);
}

/* The first column of a panel. */
static size_t column_of(const struct np_gemv_params *p, size_t panel) {
  const size_t wide = p->panels - p->narrow;
  return panel <= wide ? panel * p->width : wide * p->width + (panel - wide) * p->narrow_width;
}

static void part(void *context, size_t thread, size_t index) {
  const task *all = context;
  const struct np_gemv_params *p = all->job.params;
  const size_t first = index * p->part_panels;
  const size_t last = np_min(first + p->part_panels, p->panels);
  fitting(p->target, p->layout, p->width)(&all->job, first, last);
  if (p->epilogue.function == NP_EPILOGUE_CLAMP && all->after == NULL) return;
  const struct np_epilogue end = {
      .function = p->epilogue.function,
      .residual = all->after == NULL ? NP_RESIDUAL_NONE : NP_RESIDUAL_AFTER,
      .low = p->epilogue.low,
      .high = p->epilogue.high,
  };
  const size_t column = column_of(p, first), columns = np_min(column_of(p, last), p->outputs) - column;
  np_epilogue_for(p->target)(&end, all->job.out + column, p->outputs,
                             all->after == NULL ? NULL : all->after + column, p->outputs, p->rows,
                             columns);
}

int np_gemv(np_job *job) {
  const struct np_gemv_params *p = job->params;
  const int32_t residual = p->epilogue.residual;
  task all = {
      {p, job->inputs[0], residual == NP_RESIDUAL_BEFORE ? job->inputs[1] : NULL, job->out},
      residual == NP_RESIDUAL_AFTER ? job->inputs[1] : NULL,
  };
  const size_t bytes = p->panels * p->panel_bytes;
  np_parallel_for(bytes < SMALL_MATRIX ? NULL : job->workers, part, &all, p->parts,
                  NP_DISABLE_DENORMALS);
  return 0;
}
