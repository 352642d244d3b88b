/* GEMMs and convolutions of float32; see conv/fp32.h. */
#include <math.h>

#include "conv/indirection.h"
#include "gemm/fp32/panel.h"

typedef struct {
  const struct np_fp32_convolution_params *params;
  np_fp32_multiply *multiply;
  np_epilogue_plan end;
  float *out;
} conv_job;

size_t np_fp32_lanes(void) {
  if (np_isa() >= NP_TARGET_AVX512) return 16;
#ifdef __x86_64__
  return np_isa() >= NP_TARGET_PLAIN ? 8 : 0;
#else
  return 0;
#endif
}

np_fp32_multiply *np_fp32_multiply_for(size_t lanes, int32_t target) {
  const int32_t isa = np_isa_for(target);
#if NP_HAS_AVX2
  if (lanes == 8 && isa >= NP_TARGET_AVX2) return np_fp32_multiply_avx2;
#endif
#if NP_HAS_AVX512
  if (lanes == 16 && isa >= NP_TARGET_AVX512) return np_fp32_multiply_avx512;
#endif
  (void)lanes, (void)isa;
  return np_fp32_multiply_plain;
}

/* Copies have the elements as they are. */
static void copy(const void *in, size_t count, int32_t zero, void *out) {
  memcpy(out, in, count * sizeof(float));
}

/* A part of the inputs: some whole runs, or a piece of one. */
typedef struct {
  size_t run;
  size_t runs;
  size_t start; /* in the run */
  size_t length;
} inputs_part;

/* The part that follows another one; the first one follows one of no runs. 0 after the last. */
static int next_part(const struct np_fp32_convolution_params *p, inputs_part *part) {
  const size_t pieces = np_ceil_div(p->geometry.run_length, p->depth); /* of a run */
  if (pieces > 1) {
    const size_t piece = (np_ceil_div(p->geometry.run_length, pieces) + 7) / 8 * 8;
    part->start += part->length;
    part->run += part->start == p->geometry.run_length;
    part->start %= p->geometry.run_length;
    part->runs = 1;
    part->length = np_min(p->geometry.run_length - part->start, piece);
    return part->run < p->geometry.runs;
  }
  const size_t together = np_ceil_div(
      p->geometry.runs, np_ceil_div(p->geometry.runs * p->geometry.run_length, p->depth));
  part->run += part->runs;
  part->length = p->geometry.run_length;
  part->runs = np_min(p->geometry.runs - part->run, together);
  return part->run < p->geometry.runs;
}

static np_fp32_panel_extent place(const struct np_fp32_convolution_params *p, size_t number) {
  return np_fp32_panel_at(p->lanes, p->geometry.outputs / p->geometry.groups,
                          p->geometry.runs * p->geometry.run_length, number);
}

static const float *weights_of(const struct np_fp32_convolution_params *p, const float *packed,
                               np_fp32_panel_extent panel, inputs_part part) {
  const size_t before = part.run * p->geometry.run_length + part.start;
  return packed + panel.offset + panel.width * (1 + before);
}

/* Multiply a part of the inputs of all output pixels with a panel; `panel` knows the output
 * pixels. */
static void multiply(const conv_job *task, np_fp32_panel panel, const float *packed,
                     np_fp32_panel_extent at, inputs_part part, int last) {
  const struct np_fp32_convolution_params *p = task->params;
  const np_epilogue_plan *end = &task->end;
  const int first = part.run == 0 && part.start == 0;
  panel.image += part.start;
  panel.runs += part.run;
  panel.run_count = part.runs;
  panel.run_length = part.length;
  panel.weights = weights_of(p, packed, at, part);
  panel.bias = first ? packed + at.offset : NULL;
  panel.columns = at.columns;
  panel.out += at.first;
  const ptrdiff_t offset = panel.out - task->out;
  panel.residual = first && end->before != NULL ? end->before + offset : NULL;
  panel.low = last ? end->low : -INFINITY;
  panel.high = last ? end->high : INFINITY;
  panel.end = last ? end->tile : NULL;
  panel.after = end->after == NULL ? NULL : end->after + offset;
  task->multiply(&panel);
}

/* Multiply all output pixels with the panels of a group from `first` to `end`. */
static void multiply_group(const conv_job *task, np_fp32_panel panel, const float *packed,
                           size_t first, size_t end) {
  const struct np_fp32_convolution_params *p = task->params;
  const int slow = panel.count * p->geometry.runs * p->geometry.run_length > NP_SLOW;
  if (!p->panels_within) {
    for (size_t n = first; n < end; n++) {
      if (slow && np_cancel_check()) return;
      const np_fp32_panel_extent at = place(p, n);
      inputs_part part = {0}, next = {0};
      for (int more = next_part(p, &part); more; part = next) {
        next = part;
        more = next_part(p, &next);
        panel.prefetch = weights_of(p, packed, at, part) + part.runs * part.length * at.width;
        multiply(task, panel, packed, at, part, !more);
      }
    }
    return;
  }
  inputs_part part = {0}, next = {0};
  for (int more = next_part(p, &part); more; part = next) {
    next = part;
    more = next_part(p, &next);
    for (size_t n = first; n < end; n++) {
      if (slow && np_cancel_check()) return;
      const int within = n + 1 < end;
      const np_fp32_panel_extent after = place(p, within ? n + 1 : first);
      panel.prefetch = weights_of(p, packed, after, within || !more ? part : next);
      multiply(task, panel, packed, place(p, n), part, !more);
    }
  }
}

/* `rows` rows of the output from `first` on, of the panels of each group from `panel` to `end`. */
static void some_rows(const conv_job *task, const float *image, size_t first, size_t rows,
                      size_t panel, size_t end, float *out, uint8_t *scratch) {
  const struct np_fp32_convolution_params *p = task->params;
  const struct np_convolution_geometry *g = &p->geometry;
  const size_t channels = g->image.channels, out_width = g->image.out_width;
  int32_t *pixels = (int32_t *)(scratch + g->pixels_offset);
  int32_t *runs = (int32_t *)(scratch + g->runs_offset);
  const int side_by_side =
      g->runs == 1 && g->steps[1] == 1 && (rows == 1 || g->steps[0] * g->wide_width == out_width);
  np_indirection_fill(g, side_by_side ? 0 : rows, pixels, runs);
  if (p->copies) {
    const np_padded_image source = {
        .pixels = image,
        .in_element = sizeof(float),
        .geometry = g,
        .element = sizeof(float),
        .convert = copy,
    };
    np_pad_image_rows(&source, first, rows, scratch);
    image = (const float *)scratch;
  } else {
    image += first * g->steps[0] * g->wide_width * channels;
  }

  const size_t outputs = g->outputs / g->groups, inputs = channels / g->groups;
  const size_t group_size = np_fp32_packed_size(p->lanes, 1, outputs, g->runs * g->run_length);
  np_fp32_panel given = {
      .pixels = pixels,
      .row_stride = side_by_side ? channels : 0,
      .count = rows * out_width,
      .runs = runs,
      .lanes = p->lanes,
      .out_stride = g->outputs,
      .epilogue = &task->end.epilogue,
  };
  for (size_t group = 0; group < g->groups; group++) {
    given.image = image + group * inputs;
    given.out = out + group * outputs;
    const float *packed = (const float *)p->packed + group * (group_size / sizeof(float));
    multiply_group(task, given, packed, panel, end);
  }
}

static conv_job job_of(const struct np_fp32_convolution_params *p, const float *residual,
                       float *out) {
  return (conv_job){
      .params = p,
      .multiply = np_fp32_multiply_for(p->lanes, p->target),
      .end = np_epilogue_plan_of(&p->epilogue, residual, p->target),
      .out = out,
  };
}

static void part(np_job *job, size_t thread, size_t index) {
  const struct np_fp32_convolution_params *p = job->params;
  const struct np_convolution_geometry *g = &p->geometry;
  const struct np_image_sizes *sizes = &g->image;
  const conv_job task = job_of(p, job->inputs[1], job->out);
  const np_convolution_part part = np_convolution_part_of(index, g->row_tile, g->row_tiles,
                                                          sizes->out_height, 1, g->parts, g->parts);
  const float *image =
      (const float *)job->inputs[0] + part.image * sizes->height * sizes->width * sizes->channels;
  const size_t row = part.image * sizes->out_height + part.rows.first;
  const size_t panels = np_fp32_panels(p->lanes, g->outputs / g->groups);
  some_rows(&task, image, part.rows.first, part.rows.count, part.columns.first * panels / g->parts,
            part.columns.end * panels / g->parts, task.out + row * sizes->out_width * g->outputs,
            job->scratch + thread * p->thread_scratch);
}

void np_fp32_convolution_rows(const struct np_fp32_convolution_params *p, const float *image,
                              size_t first, size_t rows, const float *residual, float *out,
                              uint8_t *scratch) {
  const conv_job task = job_of(p, residual, out);
  const size_t panels = np_fp32_panels(p->lanes, p->geometry.outputs / p->geometry.groups);
  some_rows(&task, image, first, rows, 0, panels, out, scratch);
}

int np_fp32_convolution(np_job *job) {
  const struct np_fp32_convolution_params *p = job->params;
  return np_indirect_convolution(job, &p->geometry, part, NP_SMALL_FLOAT32, NP_DISABLE_DENORMALS);
}
