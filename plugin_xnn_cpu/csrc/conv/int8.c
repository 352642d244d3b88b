/* Convolutions of int8; see gemm/int8/int8.h. */
#include "conv/indirection.h"
#include "gemm/int8/panel.h"

/* Multiplications below which waking the workers costs more than it saves. */
#define SMALL_WORK 4e5

typedef struct {
  const struct np_int8_convolution_params *params;
  const np_int8_micro_kernels *code;
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
  const size_t row_tile = index / p->parts % p->row_tiles;
  const size_t image = index / p->parts / p->row_tiles;
  const size_t first = row_tile * p->row_tile;
  const size_t rows = first + p->row_tile < p->out_height ? p->row_tile : p->out_height - first;
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
      .u8 = p->in_u8,
  };
  const size_t reach = (p->window[0] - 1) * p->dilations[0] + 1;
  const np_indirection indirection = {p->wide_width, p->channels,  p->window,
                                      p->steps,      p->dilations, p->runs};
  const uint8_t *wide = scratch;
  if (p->in_place) {
    wide = (const uint8_t *)source.pixels + first * p->steps[0] * p->width * p->channels;
  } else {
    np_int8_pad_rows(task->code, &source, first * p->steps[0], (rows - 1) * p->steps[0] + reach,
                     scratch);
  }
  np_indirection_fill(&indirection, rows, p->out_width, pixels, runs);

  const size_t outputs = p->outputs / p->groups, inputs = p->channels / p->groups;
  const size_t last = columns + p->part_columns < outputs ? columns + p->part_columns : outputs;
  const np_int8_micro_kernels *code = task->code;
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
      .sum = p->has_residual ? &p->residual : NULL,
      .out_xor = p->out_u8 ? 0x80 : 0,
      .other_xor = p->other_u8 ? 0x80 : 0,
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
      int32_t *acc = (int32_t *)(scratch + p->sums_offset);
      np_int8_row_sums(code, panel.image, pixels, panel.count, runs, p->runs, p->run_length,
                       panel.row_zeros, acc);
      panel.row_sums = acc;
    }
    for (size_t column = columns; column < last; column += panel.columns) {
      panel.columns = last - column < code->most ? last - column : code->most;
      panel.panel = packed + column / code->columns * panel_size;
      const size_t place = start + group * outputs + column;
      panel.out = task->out + place * element;
      if (p->has_residual) panel.other = task->other + place;
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
              .code = np_int8_micro_kernels_for(p->target, p->vnni),
              .in = inputs[0],
              .other = inputs[1],
              .in_scale = 1.0f,
              .in_zero = p->in_zero,
              .out = out,
              .scratch = workspace};
  if (p->to != NP_INT8_OUT_INT8) np_int8_read_quantization(inputs, &task.in_scale, &task.in_zero);
  const double pixels = (double)p->batch * (double)(p->out_height * p->out_width);
  const double work = pixels * (double)p->outputs * (double)(p->runs * p->run_length);
  np_parallel_for(work < SMALL_WORK ? NULL : workers, part, &task,
                  p->batch * p->row_tiles * p->parts, 0);
  return 0;
}
