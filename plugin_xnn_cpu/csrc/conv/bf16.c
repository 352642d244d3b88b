/* GEMMs and convolutions with weights of bfloat16; see conv/bf16.h. */
#include "conv/indirection.h"
#include "gemm/bf16/panel.h"

typedef struct {
  np_job job;
  const np_bf16_code *code;
  np_epilogue_plan end;
} bf16_job;

/* The instruction for pairs is taken without asking where it is named: who names it is a test that
 * executes it by other means. */
int32_t np_bf16_code_target(int32_t target) {
#ifdef NP_CHOOSES_CPU
  if (target == NP_TARGET_AVX512BF16) return target;
  const int32_t isa = np_isa_for(target);
  return isa == NP_TARGET_AVX512VNNI ? NP_TARGET_AVX512 : isa;
#else
  (void)target;
  return NP_TARGET_PLAIN;
#endif
}

static const np_bf16_code *fitting(int32_t target) {
#ifdef NP_CHOOSES_CPU
  switch (np_bf16_code_target(target)) {
    case NP_TARGET_AVX512BF16: return &np_bf16_avx512bf16;
    case NP_TARGET_AVX512: return &np_bf16_avx512;
    case NP_TARGET_AVX2: return &np_bf16_avx2;
  }
#else
  (void)target;
#endif
  return &np_bf16_plain;
}

size_t np_bf16_element_size(int32_t target) { return fitting(target)->element; }

static void part(void *context, size_t thread, size_t index) {
  const bf16_job *task = context;
  const struct np_bf16_convolution_params *p = task->job.params;
  const np_bf16_code *code = task->code;
  const size_t outputs = p->outputs / p->groups, inputs = p->image.channels / p->groups;
  const np_convolution_part part = np_convolution_part_of(
      index, p->row_tile, p->row_tiles, p->image.out_height, p->part_columns, p->parts, outputs);
  uint8_t *scratch = task->job.scratch + thread * p->thread_scratch;
  int32_t *pixels = (int32_t *)(scratch + p->pixels_offset);
  int32_t *runs = (int32_t *)(scratch + p->runs_offset);
  const np_indirection indirection = {p->wide_width, p->image.channels, p->kernel,
                                      p->steps,      p->dilations,      p->runs};
  np_indirection_fill(&indirection, part.rows.count, p->image.out_width, pixels, runs);
  const size_t image_size = p->image.height * p->image.width * p->image.channels;
  const np_padded_image source = {
      .pixels = (const float *)task->job.inputs[0] + part.image * image_size,
      .in_element = sizeof(float),
      .sizes = &p->image,
      .pads = p->pads,
      .picks = p->image_steps,
      .wide_width = p->wide_width,
      .element = code->element,
      .convert = code->round,
  };
  np_pad_image_rows(&source, part.rows.first * p->steps[0],
                    np_reach(p->kernel, p->steps, p->dilations, part.rows.count), scratch);

  const size_t pairs = p->runs * np_ceil_div(p->run_length, 2);
  const size_t group_size =
      np_bf16_packed_size(1, outputs, p->runs, p->run_length) / sizeof(uint32_t);
  const size_t skipped =
      part.columns.first / NP_BF16_COLUMNS * np_bf16_panel_size(NP_BF16_COLUMNS, pairs);
  const size_t start =
      (part.image * p->image.out_height + part.rows.first) * p->image.out_width * p->outputs;
  const size_t count = part.rows.count * p->image.out_width;
  const np_epilogue_plan *end = &task->end;
  np_bf16_panel panel = {
      .runs = runs,
      .run_count = p->runs,
      .run_length = p->run_length,
      .out_stride = p->outputs,
      .low = end->low,
      .high = end->high,
      .end = end->tile,
      .epilogue = &end->epilogue,
  };
  for (size_t pixel = 0; pixel < count; pixel += panel.count) {
    panel.pixels = pixels + pixel;
    panel.count = np_min(count - pixel, p->chunk);
    for (size_t group = 0; group < p->groups; group++) {
      panel.image = scratch + group * inputs * code->element;
      panel.panel = (const uint32_t *)p->packed + group * group_size + skipped;
      for (size_t column = part.columns.first; column < part.columns.end; column += panel.columns) {
        const size_t here = start + pixel * p->outputs + group * outputs + column;
        panel.columns = np_min(part.columns.end - column, NP_BF16_COLUMNS);
        panel.out = (float *)task->job.out + here;
        panel.residual = end->before == NULL ? NULL : end->before + here;
        panel.after = end->after == NULL ? NULL : end->after + here;
        code->multiply(&panel);
        panel.panel += np_bf16_panel_size(panel.columns, pairs);
      }
    }
  }
}

int np_bf16_convolution(const void *params, const void *const *inputs, void *out, void *workspace,
                        np_workers *workers) {
  const struct np_bf16_convolution_params *p = params;
  bf16_job task = {
      .job = {params, inputs, out, workspace, 0},
      .code = fitting(p->target),
      .end = np_epilogue_plan_of(&p->epilogue, inputs[1], p->target),
  };
  const double pixels = (double)p->image.batch * (double)(p->image.out_height * p->image.out_width);
  const double work = pixels * (double)p->outputs * (double)(p->runs * p->run_length);
  np_parallel_for(work < NP_SMALL_NARROW ? NULL : workers, part, &task,
                  p->image.batch * p->row_tiles * p->parts, NP_DISABLE_DENORMALS);
  return 0;
}
