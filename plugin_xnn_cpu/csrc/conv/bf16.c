/* GEMMs and convolutions with weights of bfloat16; see conv/bf16.h. */
#include "conv/indirection.h"
#include "gemm/bf16/panel.h"

/* The instruction for pairs is taken without asking where it is named: who names it is a test that
 * executes it by other means. */
int32_t np_bf16_code_target(int32_t target) {
#ifdef NP_CHOOSES_CPU
  if (target == NP_TARGET_AVX512BF16) return target;
  const int32_t isa = np_isa_for(target);
  return isa == NP_TARGET_AVX512VNNI ? NP_TARGET_AVX512 : isa;
#else
  return NP_TARGET_PLAIN;
#endif
}

static const np_bf16_code *fitting(int32_t target) {
  switch (np_bf16_code_target(target)) {
#if NP_HAS_AVX512AMX
    case NP_TARGET_AVX512AMX: return &np_bf16_avx512amx;
#endif
#if NP_HAS_AVX512BF16
    case NP_TARGET_AVX512BF16: return &np_bf16_avx512bf16;
#endif
#if NP_HAS_AVX512
    case NP_TARGET_AVX512: return &np_bf16_avx512;
#endif
#if NP_HAS_AVX2
    case NP_TARGET_AVX2: return &np_bf16_avx2;
#endif
    default: return &np_bf16_plain;
  }
}

size_t np_bf16_element_size(int32_t target) { return fitting(target)->element; }

static void part(np_job *job, size_t thread, size_t index) {
  const struct np_bf16_convolution_params *p = job->params;
  const struct np_convolution_geometry *g = &p->geometry;
  const np_bf16_code *code = fitting(p->target);
  const np_epilogue_plan end = np_epilogue_plan_of(&p->epilogue, job->inputs[1], p->target);
  const size_t outputs = g->outputs / g->groups, inputs = g->image.channels / g->groups;
  const np_convolution_part part = np_indirect_part_of(g, index);
  uint8_t *scratch = job->scratch + thread * p->thread_scratch;
  int32_t *pixels = (int32_t *)(scratch + g->pixels_offset);
  int32_t *runs = (int32_t *)(scratch + g->runs_offset);
  np_indirection_fill(g, part.rows.count, pixels, runs);
  const size_t image_size = g->image.height * g->image.width * g->image.channels;
  const np_padded_image source = {
      .pixels = (const float *)job->inputs[0] + part.image * image_size,
      .in_element = sizeof(float),
      .geometry = g,
      .element = code->element,
      .convert = code->round,
  };
  np_pad_image_rows(&source, part.rows.first, part.rows.count, scratch);

  const size_t pairs = g->runs * np_ceil_div(g->run_length, 2);
  const size_t group_size =
      np_bf16_packed_size(1, outputs, g->runs, g->run_length) / sizeof(uint32_t);
  const size_t panel_size = np_bf16_panel_size(NP_BF16_COLUMNS, pairs);
  const size_t skipped = part.columns.first / NP_BF16_COLUMNS * panel_size;
  const size_t start =
      (part.image * g->image.out_height + part.rows.first) * g->image.out_width * g->outputs;
  const size_t count = part.rows.count * g->image.out_width;
  np_bf16_panel panel = {
      .runs = runs,
      .run_count = g->runs,
      .run_length = g->run_length,
      .out_stride = g->outputs,
      .low = end.low,
      .high = end.high,
      .end = end.tile,
      .epilogue = &end.epilogue,
  };
  const int slow = np_min(count, p->chunk) * g->runs * g->run_length > NP_SLOW;
  for (size_t pixel = 0; pixel < count; pixel += panel.count) {
    panel.pixels = pixels + pixel;
    panel.count = np_min(count - pixel, p->chunk);
    for (size_t group = 0; group < g->groups; group++) {
      panel.image = scratch + group * inputs * code->element;
      panel.panel = (const uint32_t *)p->packed + group * group_size + skipped;
      for (size_t column = part.columns.first; column < part.columns.end; column += panel.columns) {
        if (slow && np_cancel_check()) return;
        const size_t here = start + pixel * g->outputs + group * outputs + column;
        panel.columns = np_min(part.columns.end - column, code->most);
        panel.out = (float *)job->out + here;
        panel.residual = end.before == NULL ? NULL : end.before + here;
        panel.after = end.after == NULL ? NULL : end.after + here;
        code->multiply(&panel);
        panel.panel += panel.columns / NP_BF16_COLUMNS * panel_size;
      }
    }
  }
}

int np_bf16_convolution(np_job *job) {
  const struct np_bf16_convolution_params *p = job->params;
  return np_indirect_convolution(job, &p->geometry, part, NP_SMALL_NARROW, NP_DISABLE_DENORMALS);
}
