/* Convolutions of int8; see gemm/int8/int8.h. */
#include "conv/indirection.h"
#include "gemm/int8/panel.h"

/* Multiplications below which waking the workers costs more than it saves. */
#define SMALL_WORK 4e5

typedef struct {
  const struct np_int8_convolution_params *params;
  const np_int8_code *code;
  const int8_t *in;
  const int8_t *other;
  float in_scale;
  int32_t in_zero;
  uint8_t *out;
  uint8_t *scratch;
} job;

static void part(void *context, size_t thread, size_t index) {
  const job *task = context;
  const struct np_int8_convolution_params *p = task->params;
  const size_t columns = index % p->parts * p->part_columns;
  const size_t band = index / p->parts % p->bands;
  const size_t image = index / p->parts / p->bands;
  const size_t first = band * p->band;
  const size_t rows = first + p->band < p->out_height ? p->band : p->out_height - first;
  uint8_t *scratch = task->scratch + thread * p->thread_scratch;
  int32_t *pixels = (int32_t *)(scratch + p->pixels_offset);
  int32_t *runs = (int32_t *)(scratch + p->runs_offset);
  const np_int8_image source = {
      .pixels = task->in + image * p->height * p->width * p->channels,
      .height = p->height,
      .width = p->width,
      .channels = p->channels,
      .pads = p->pads,
      .picks = p->picks,
      .wide_width = p->wide_width,
      .zero = task->in_zero,
      .raised = p->in_raised,
  };
  const size_t reach = (p->window[0] - 1) * p->dilations[0] + 1;
  const np_windows windows = {p->wide_width, p->channels,  p->window,
                              p->steps,      p->dilations, p->runs};
  const uint8_t *wide = scratch;
  if (p->in_place) {
    wide = (const uint8_t *)source.pixels + first * p->steps[0] * p->width * p->channels;
  } else {
    np_int8_widen_rows(task->code, &source, first * p->steps[0],
                       (rows - 1) * p->steps[0] + reach, scratch);
  }
  np_windows_address(&windows, rows, p->out_width, pixels, runs);

  const size_t outputs = p->outputs / p->groups, inputs = p->channels / p->groups;
  const size_t last = columns + p->part_columns < outputs ? columns + p->part_columns : outputs;
  const np_int8_code *code = task->code;
  const size_t steps = (p->run_length + code->group - 1) / code->group;
  const size_t panel_size = code->panel_size(code->columns, p->runs * steps);
  const size_t group_size = code->packed_size(1, outputs, p->runs, p->run_length);
  const size_t element = p->to == NP_INT8_OUT_INT8 ? 1 : sizeof(float);
  const size_t start = (image * p->out_height + first) * p->out_width * p->outputs;
  np_int8_panel panel = {
      .kind = p->to == NP_INT8_OUT_INT8 ? NP_INT8_TO_INT8 : NP_INT8_TO_FLOAT,
      .raw = p->to == NP_INT8_OUT_INT32,
      .low = p->float_low,
      .high = p->float_high,
      .pixels = pixels,
      .count = rows * p->out_width,
      .line = p->out_width > 1 ? p->out_width : rows,
      .step = (p->out_width > 1 ? p->steps[1] : p->steps[0] * p->wide_width) * p->channels,
      .runs = runs,
      .run_count = p->runs,
      .groups = steps,
      .out_stride = p->outputs,
      .range = {p->out_zero, p->low, p->high},
      .zero = task->in_zero + 128,
      .sum = p->adds ? &p->sum : NULL,
      .turned = p->out_raised ? 0x80 : 0,
      .other_turned = p->other_raised ? 0x80 : 0,
  };
  if (p->to != NP_INT8_OUT_INT8 || p->weight_zeros != NULL) {
    float *scales = (float *)(scratch + p->scales_offset);
    int32_t *zeros = (int32_t *)(scratch + p->zeros_offset);
    for (size_t i = 0; i < panel.count; i++) {
      scales[i] = task->in_scale;
      zeros[i] = task->in_zero + 128;
    }
    panel.row_scales = scales;
    panel.row_zeros = zeros;
  }
  for (size_t group = 0; group < p->groups; group++) {
    const uint8_t *packed = (const uint8_t *)p->packed + group * group_size;
    panel.image = wide + group * inputs * code->element;
    if (p->weight_zeros != NULL) {
      int32_t *sums = (int32_t *)(scratch + p->sums_offset);
      np_int8_window_sums(code, panel.image, pixels, panel.count, runs, p->runs, p->run_length,
                          panel.row_zeros, sums);
      panel.row_sums = sums;
    }
    for (size_t column = columns; column < last; column += panel.columns) {
      panel.columns = last - column < code->most ? last - column : code->most;
      panel.panel = packed + column / code->columns * panel_size;
      const size_t place = start + group * outputs + column;
      panel.out = task->out + place * element;
      if (p->adds) panel.other = task->other + place;
      if (p->weight_zeros != NULL) {
        panel.weight_zeros = p->weight_zeros + group * p->zeros_stride + column;
      }
      code->multiply(&panel);
    }
  }
}

int np_int8_convolution(const void *params, const void *const *inputs, void *out, void *workspace,
                        np_workers *workers) {
  const struct np_int8_convolution_params *p = params;
  job task = {.params = p,
              .code = np_int8_code_for(p->target, p->quads),
              .in = inputs[0],
              .other = inputs[1],
              .in_scale = 1.0f,
              .in_zero = p->in_zero,
              .out = out,
              .scratch = workspace};
  if (p->to != NP_INT8_OUT_INT8) np_int8_given(inputs, &task.in_scale, &task.in_zero);
  const double pixels = (double)p->batch * (double)(p->out_height * p->out_width);
  const double work = pixels * (double)p->outputs * (double)(p->runs * p->run_length);
  np_divide(work < SMALL_WORK ? NULL : workers, part, &task, p->batch * p->bands * p->parts, 0);
  return 0;
}
