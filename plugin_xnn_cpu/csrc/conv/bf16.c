/* GEMMs and convolutions with weights of bfloat16; see conv/bf16.h. */
#include <math.h>

#include "conv/indirection.h"
#include "gemm/bf16/panel.h"

/* Multiplications below which waking the workers costs more than it saves. */
#define SMALL_WORK 4e5

typedef struct {
  const struct np_bf16_convolution_params *params;
  const np_bf16_code *code;
  np_epilogue_tile *end;
  struct np_epilogue epilogue;
  const float *in;
  const float *before; /* residuals */
  const float *after;
  float *out;
  uint8_t *scratch;
} job;

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
    case NP_TARGET_AVX512BF16:
      return &np_bf16_avx512bf16;
    case NP_TARGET_AVX512:
      return &np_bf16_avx512;
    case NP_TARGET_AVX2:
      return &np_bf16_avx2;
  }
#else
  (void)target;
#endif
  return &np_bf16_plain;
}

size_t np_bf16_element_size(int32_t target) { return fitting(target)->element; }

static void part(void *context, size_t thread, size_t index) {
  const job *task = context;
  const struct np_bf16_convolution_params *p = task->params;
  const size_t columns = index % p->parts * p->part_columns;
  const size_t row_tile = index / p->parts % p->row_tiles;
  const size_t number = index / p->parts / p->row_tiles;
  const size_t first = row_tile * p->row_tile;
  const size_t rows = first + p->row_tile < p->out_height ? p->row_tile : p->out_height - first;
  uint8_t *scratch = task->scratch + thread * p->thread_scratch;
  int32_t *pixels = (int32_t *)(scratch + p->pixels_offset);
  int32_t *runs = (int32_t *)(scratch + p->runs_offset);
  const np_indirection indirection = {p->wide_width, p->channels,  p->window,
                                      p->steps,      p->dilations, p->runs};
  np_indirection_fill(&indirection, rows, p->out_width, pixels, runs);
  const np_padded_image source = {
      .pixels = task->in + number * p->height * p->width * p->channels,
      .height = p->height,
      .width = p->width,
      .channels = p->channels,
      .pads = p->pads,
      .picks = p->image_steps,
      .wide_width = p->wide_width,
      .element = task->code->element,
      .write = task->code->round,
  };
  const size_t reach = (p->window[0] - 1) * p->dilations[0] + 1;
  np_pad_image_rows(&source, first * p->steps[0], (rows - 1) * p->steps[0] + reach, scratch);

  const size_t outputs = p->outputs / p->groups, inputs = p->channels / p->groups;
  const size_t last = columns + p->part_columns < outputs ? columns + p->part_columns : outputs;
  const size_t pairs = p->runs * ((p->run_length + 1) / 2);
  const size_t group_size =
      np_bf16_packed_size(1, outputs, p->runs, p->run_length) / sizeof(uint32_t);
  const size_t skipped = columns / NP_BF16_COLUMNS * np_bf16_panel_size(NP_BF16_COLUMNS, pairs);
  const size_t place = (number * p->out_height + first) * p->out_width * p->outputs;
  const size_t count = rows * p->out_width;
  np_bf16_panel panel = {
      .runs = runs,
      .run_count = p->runs,
      .run_length = p->run_length,
      .out_stride = p->outputs,
      .low = task->end == NULL ? task->epilogue.low : -INFINITY,
      .high = task->end == NULL ? task->epilogue.high : INFINITY,
      .end = task->end,
      .epilogue = &task->epilogue,
  };
  for (size_t window = 0; window < count; window += panel.count) {
    panel.pixels = pixels + window;
    panel.count = count - window < p->chunk ? count - window : p->chunk;
    for (size_t group = 0; group < p->groups; group++) {
      panel.image = scratch + group * inputs * task->code->element;
      panel.panel = (const uint32_t *)p->packed + group * group_size + skipped;
      for (size_t column = columns; column < last; column += panel.columns) {
        const size_t here = place + window * p->outputs + group * outputs + column;
        panel.columns = last - column < NP_BF16_COLUMNS ? last - column : NP_BF16_COLUMNS;
        panel.out = task->out + here;
        panel.residual = task->before == NULL ? NULL : task->before + here;
        panel.after = task->after == NULL ? NULL : task->after + here;
        task->code->multiply(&panel);
        panel.panel += np_bf16_panel_size(panel.columns, pairs);
      }
    }
  }
}

int np_bf16_convolution(const void *params, const void *const *inputs, void *out, void *workspace,
                        np_workers *workers) {
  const struct np_bf16_convolution_params *p = params;
  const int32_t residual = p->epilogue.residual;
  /* Bounds alone, and what is added before, are done in registers. */
  const bool ends = residual == NP_RESIDUAL_AFTER || p->epilogue.function != NP_EPILOGUE_CLAMP;
  job task = {
      .params = p,
      .code = fitting(p->target),
      .end = ends ? np_epilogue_for(p->target) : NULL,
      .epilogue = p->epilogue,
      .in = inputs[0],
      .before = residual == NP_RESIDUAL_BEFORE ? inputs[1] : NULL,
      .after = residual == NP_RESIDUAL_AFTER ? inputs[1] : NULL,
      .out = out,
      .scratch = workspace,
  };
  if (residual == NP_RESIDUAL_BEFORE) task.epilogue.residual = NP_RESIDUAL_NONE;
  const double pixels = (double)p->batch * (double)(p->out_height * p->out_width);
  const double work = pixels * (double)p->outputs * (double)(p->runs * p->run_length);
  np_parallel_for(work < SMALL_WORK ? NULL : workers, part, &task,
                  p->batch * p->row_tiles * p->parts, NP_DISABLE_DENORMALS);
  return 0;
}
