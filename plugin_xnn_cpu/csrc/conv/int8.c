/* Convolutions of int8; see gemm/int8/int8.h. */
#include "conv/indirection.h"
#include "gemm/int8/panel.h"

static void part(np_job *job, size_t thread, size_t index) {
  const struct np_int8_convolution_params *p = job->params;
  const struct np_convolution_geometry *g = &p->geometry;
  const struct np_image_sizes *sizes = &g->image;
  const np_int8_micro_kernels *code = np_int8_micro_kernels_for(p->target, p->vnni);
  const size_t outputs = g->outputs / g->groups, inputs = sizes->channels / g->groups;
  const np_convolution_part part = np_indirect_part_of(g, index);
  float in_scale = 1.0f;
  int32_t in_zero = p->in_zero;
  if (p->to != NP_INT8_OUT_INT8) np_int8_read_quantization(job->inputs, &in_scale, &in_zero);
  uint8_t *scratch = job->scratch + thread * p->thread_scratch;
  int32_t *pixels = (int32_t *)(scratch + g->pixels_offset);
  int32_t *runs = (int32_t *)(scratch + g->runs_offset);
  const size_t row_size = sizes->width * sizes->channels;
  const int8_t *image = (const int8_t *)job->inputs[0] + part.image * sizes->height * row_size;
  const uint8_t *wide = scratch;
  if (p->in_place) {
    wide = (const uint8_t *)image + part.rows.first * g->steps[0] * row_size;
  } else {
    const np_padded_image source = np_int8_padded_image(code, image, g, in_zero, p->in_u8);
    np_pad_image_rows(&source, part.rows.first, part.rows.count, scratch);
  }
  np_indirection_fill(g, part.rows.count, pixels, runs);

  const size_t steps = np_ceil_div(g->run_length, code->group);
  const size_t panel_size = np_int8_panel_size(code->group, code->columns, g->runs * steps);
  const size_t group_size = np_int8_packed_size(code->group, 1, outputs, g->runs, g->run_length);
  const size_t element = p->to == NP_INT8_OUT_INT8 ? 1 : sizeof(float);
  const size_t start =
      (part.image * sizes->out_height + part.rows.first) * sizes->out_width * g->outputs;
  np_int8_panel panel = {
      .kind = p->to == NP_INT8_OUT_INT8 ? NP_INT8_TO_INT8 : NP_INT8_TO_FLOAT,
      .raw = p->to == NP_INT8_OUT_INT32,
      .low = p->float_low,
      .high = p->float_high,
      .pixels = pixels,
      .count = part.rows.count * sizes->out_width,
      .line = sizes->out_width > 1 ? sizes->out_width : part.rows.count,
      .step = (sizes->out_width > 1 ? g->steps[1] : g->steps[0] * g->wide_width) * sizes->channels,
      .runs = runs,
      .run_count = g->runs,
      .groups = steps,
      .out_stride = g->outputs,
      .range = {p->out_zero, p->low, p->high},
      .zero = in_zero + 128,
      .sum = p->has_residual ? &p->residual : NULL,
      .out_xor = p->out_u8 ? 0x80 : 0,
      .other_xor = p->other_u8 ? 0x80 : 0,
  };
  if (p->to != NP_INT8_OUT_INT8 || p->weight_zeros != NULL) {
    float *scales = (float *)(scratch + p->scales_offset);
    int32_t *zeros = (int32_t *)(scratch + p->zeros_offset);
    for (size_t i = 0; i < panel.count; i++) {
      scales[i] = in_scale;
      zeros[i] = in_zero + 128;
    }
    panel.row_scales = scales;
    panel.row_zeros = zeros;
  }
  const int slow = panel.count * g->runs * g->run_length > NP_SLOW;
  for (size_t group = 0; group < g->groups; group++) {
    const uint8_t *packed = (const uint8_t *)p->packed + group * group_size;
    panel.image = wide + group * inputs * code->element;
    if (p->weight_zeros != NULL) {
      int32_t *acc = (int32_t *)(scratch + p->acc_offset);
      np_int8_row_sums(code, panel.image, pixels, panel.count, runs, g->runs, g->run_length,
                       panel.row_zeros, acc);
      panel.row_sums = acc;
    }
    for (size_t column = part.columns.first; column < part.columns.end; column += panel.columns) {
      if (slow && np_cancel_check()) return;
      panel.columns = np_min(part.columns.end - column, code->most);
      panel.panel = packed + column / code->columns * panel_size;
      const size_t place = start + group * outputs + column;
      panel.out = (uint8_t *)job->out + place * element;
      if (p->has_residual) panel.other = (const int8_t *)job->inputs[1] + place;
      if (p->weight_zeros != NULL) {
        panel.weight_zeros = p->weight_zeros + group * p->zeros_stride + column;
      }
      code->multiply(&panel);
    }
  }
}

int np_int8_convolution(np_job *job) {
  const struct np_int8_convolution_params *p = job->params;
  return np_indirect_convolution(job, &p->geometry, part, NP_SMALL_NARROW, 0);
}
