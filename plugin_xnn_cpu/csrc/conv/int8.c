/* Convolutions of int8; see gemm/int8/int8.h. */
#include "conv/indirection.h"
#include "gemm/int8/panel.h"

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
  const struct np_image_sizes *sizes = &p->image;
  const np_int8_micro_kernels *code = task->code;
  const size_t outputs = p->outputs / p->groups, inputs = sizes->channels / p->groups;
  const np_convolution_part part = np_convolution_part_of(
      index, p->row_tile, p->row_tiles, sizes->out_height, p->part_columns, p->parts, outputs);
  uint8_t *scratch = task->scratch + thread * p->thread_scratch;
  int32_t *pixels = (int32_t *)(scratch + p->pixels_offset);
  int32_t *runs = (int32_t *)(scratch + p->runs_offset);
  const size_t row_size = sizes->width * sizes->channels;
  const int8_t *image = task->in + part.image * sizes->height * row_size;
  const uint8_t *wide = scratch;
  if (p->in_place) {
    wide = (const uint8_t *)image + part.rows.first * p->steps[0] * row_size;
  } else {
    const np_padded_image source = np_int8_padded_image(code, image, sizes, p->pads, p->picks,
                                                        p->wide_width, task->in_zero, p->in_u8);
    np_pad_image_rows(&source, part.rows.first * p->steps[0],
                      np_reach(p->kernel, p->steps, p->dilations, part.rows.count), scratch);
  }
  const np_indirection indirection = {p->wide_width, sizes->channels, p->kernel,
                                      p->steps,      p->dilations,    p->runs};
  np_indirection_fill(&indirection, part.rows.count, sizes->out_width, pixels, runs);

  const size_t steps = np_ceil_div(p->run_length, code->group);
  const size_t panel_size = np_int8_panel_size(code->group, code->columns, p->runs * steps);
  const size_t group_size = np_int8_packed_size(code->group, 1, outputs, p->runs, p->run_length);
  const size_t element = p->to == NP_INT8_OUT_INT8 ? 1 : sizeof(float);
  const size_t start =
      (part.image * sizes->out_height + part.rows.first) * sizes->out_width * p->outputs;
  np_int8_panel panel = {
      .kind = p->to == NP_INT8_OUT_INT8 ? NP_INT8_TO_INT8 : NP_INT8_TO_FLOAT,
      .raw = p->to == NP_INT8_OUT_INT32,
      .low = p->float_low,
      .high = p->float_high,
      .pixels = pixels,
      .count = part.rows.count * sizes->out_width,
      .line = sizes->out_width > 1 ? sizes->out_width : part.rows.count,
      .step = (sizes->out_width > 1 ? p->steps[1] : p->steps[0] * p->wide_width) * sizes->channels,
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
      int32_t *acc = (int32_t *)(scratch + p->acc_offset);
      np_int8_row_sums(code, panel.image, pixels, panel.count, runs, p->runs, p->run_length,
                       panel.row_zeros, acc);
      panel.row_sums = acc;
    }
    for (size_t column = part.columns.first; column < part.columns.end; column += panel.columns) {
      panel.columns = np_min(part.columns.end - column, code->most);
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
  const double pixels = (double)p->image.batch * (double)(p->image.out_height * p->image.out_width);
  const double work = pixels * (double)p->outputs * (double)(p->runs * p->run_length);
  np_parallel_for(work < NP_SMALL_NARROW ? NULL : workers, part, &task,
                  p->image.batch * p->row_tiles * p->parts, 0);
  return 0;
}
