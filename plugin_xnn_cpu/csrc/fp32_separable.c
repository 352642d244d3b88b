/* Products and a depthwise convolution of float32 in one pass; see fp32_separable_kernels.h. */
#include <math.h>

#include "fp32_code.h"
#include "fp32_depthwise_code.h"
#include "fp32_separable_kernels.h"

typedef struct {
  const struct np_fp32_separable_params *params;
  np_fp32_multiply *multiply;
  np_fp32_depthwise_rows *depthwise;
  np_epilogue_tile *end;
  const float *in;
  const float *residual;
  float *out;
  uint8_t *scratch;
} job;

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Multiply `count` pixels, of which `pixels` says where they start. */
static void multiply(const job *task, const struct np_fp32_pointwise *p, const int32_t *pixels,
                     size_t count, const float *in, float *out, const float *residual) {
  static const int32_t start = 0;
  const size_t lanes = task->params->lanes, panels = np_fp32_panels(lanes, p->outputs);
  const int before = p->epilogue.residual == NP_RESIDUAL_BEFORE;
  const int after = p->epilogue.residual == NP_RESIDUAL_AFTER;
  const int simple = p->epilogue.function == NP_EPILOGUE_CLAMP && !after;
  struct np_epilogue epilogue = p->epilogue;
  /* What is added before is part of the sums already when the epilogue begins. */
  if (before) epilogue.residual = NP_RESIDUAL_NONE;
  for (size_t n = 0; n < panels; n++) {
    const np_fp32_panel_place at = np_fp32_place(lanes, p->outputs, p->inputs, n);
    const np_fp32_panel_place next =
        np_fp32_place(lanes, p->outputs, p->inputs, n + 1 < panels ? n + 1 : 0);
    const float *packed = p->packed;
    const np_fp32_panel panel = {
        .image = in,
        .pixels = pixels,
        .count = count,
        .runs = &start,
        .run_count = 1,
        .run_length = p->inputs,
        .weights = packed + at.offset + at.width,
        .ahead = packed + next.offset,
        .bias = packed + at.offset,
        .residual = before ? residual + at.first : NULL,
        .columns = at.columns,
        .lanes = lanes,
        .out = out + at.first,
        .out_stride = p->outputs,
        .low = simple ? p->epilogue.low : -INFINITY,
        .high = simple ? p->epilogue.high : INFINITY,
        .end = simple ? NULL : task->end,
        .epilogue = &epilogue,
        .after = after ? residual + at.first : NULL,
    };
    task->multiply(&panel);
  }
}

/* Write rows of the expanded image from `first` to `end`, counted in the image, into the ring. */
static void expand(const job *task, const float *image, const int32_t *pixels, size_t first,
                   size_t end, float *ring) {
  const struct np_fp32_separable_params *p = task->params;
  const size_t width = p->depthwise.width;
  while (first < end) {
    const size_t slot = first % p->ring, rows = least(end - first, p->ring - slot);
    multiply(task, &p->expand, pixels, rows * width, image + first * width * p->expand.inputs,
             ring + slot * width * p->expand.outputs, NULL);
    first += rows;
  }
}

/* Put the addresses of rows of the image in the place of those which an image of the whole height
 * would have: `ring` has some of them. */
static void address(const struct np_fp32_separable_params *p, const float *ring, size_t first,
                    size_t count, const float **rows) {
  const struct np_fp32_depthwise_params *d = &p->depthwise;
  const size_t needed = np_fp32_depthwise_reach(d, count);
  for (size_t i = 0; i < needed; i++) {
    const size_t y = first * d->strides[0] + i; /* counted with the pads */
    const int inside = y >= d->pads[0] && y - d->pads[0] < d->height;
    const size_t slot = inside ? (y - d->pads[0]) % p->ring : 0;
    rows[i] = inside ? ring + slot * d->width * d->channels : NULL;
  }
}

static void part(void *context, size_t thread, size_t index) {
  const job *task = context;
  const struct np_fp32_separable_params *p = task->params;
  const struct np_fp32_depthwise_params *d = &p->depthwise;
  const size_t number = index / p->spans, first = index % p->spans * p->span;
  const size_t last = least(first + p->span, d->out_height);
  const int expands = p->expand.packed != NULL;
  const size_t inputs = expands ? p->expand.inputs : d->channels;
  const float *image = task->in + number * d->height * d->width * inputs;

  uint8_t *scratch = task->scratch + thread * p->thread_scratch;
  float *ring = (float *)(void *)scratch;
  float *middle = (float *)(void *)(scratch + p->middle_offset);
  const float **rows = (const float **)(void *)(scratch + p->rows_offset);
  int32_t *narrow = (int32_t *)(void *)(scratch + p->pixels_offset), *wide = narrow;
  if (expands) {
    for (size_t i = 0; i < p->ring * d->width; i++) *wide++ = (int32_t)(i * inputs);
  }
  for (size_t i = 0; i < p->strip * d->out_width; i++) wide[i] = (int32_t)(i * d->channels);

  np_fp32_windows windows = np_fp32_windows_of(d);
  windows.rows = rows;
  windows.out = middle;
  size_t ready = 0; /* rows before this one are in the ring, or are not needed */
  for (size_t row = first; row < last; row += p->strip) {
    windows.count = least(p->strip, last - row);
    if (expands) {
      const size_t top = row * d->strides[0]; /* counted with the pads */
      const size_t bottom = top + np_fp32_depthwise_reach(d, windows.count);
      const size_t start = top < d->pads[0] ? 0 : top - d->pads[0];
      const size_t end = bottom < d->pads[0] ? 0 : least(bottom - d->pads[0], d->height);
      if (start > ready) ready = start;
      if (end > ready) {
        expand(task, image, narrow, ready, end, ring);
        ready = end;
      }
      address(p, ring, row, windows.count, rows);
    } else {
      np_fp32_depthwise_address(d, image, row, windows.count, rows);
    }
    task->depthwise(&windows);
    const size_t pixel = (number * d->out_height + row) * d->out_width;
    const size_t at = pixel * p->project.outputs;
    multiply(task, &p->project, wide, windows.count * d->out_width, middle, task->out + at,
             task->residual == NULL ? NULL : task->residual + at);
  }
}

int np_fp32_separable(const void *params, const void *const *inputs, void *out, void *workspace,
                      pthreadpool_t pool) {
  const struct np_fp32_separable_params *p = params;
  const struct np_fp32_depthwise_params *d = &p->depthwise;
  job task = {
      .params = p,
      .multiply = np_fp32_multiply_for(p->lanes, d->target),
      .depthwise = np_fp32_depthwise_for(d->target),
      .end = np_epilogue_for(d->target),
      .in = inputs[0],
      .residual = p->project.epilogue.residual == NP_RESIDUAL_NONE ? NULL : inputs[1],
      .out = out,
      .scratch = workspace,
  };
  pthreadpool_parallelize_1d_with_thread(pool, part, &task, d->batch * p->spans,
                                         NP_DISABLE_DENORMALS);
  return 0;
}
