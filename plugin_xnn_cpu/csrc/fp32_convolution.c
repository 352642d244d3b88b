/* Products and convolutions of float32; see fp32_kernels.h. */
#include <math.h>

#include "fp32_code.h"

/* Multiplications below which waking the workers costs more than it saves. */
#define SMALL_WORK 2e5

typedef struct {
  const struct np_fp32_convolution_params *params;
  np_fp32_multiply *multiply;
  np_epilogue_tile *end;
  struct np_epilogue epilogue;
  const float *in;
  const float *before; /* residuals */
  const float *after;
  float *out;
  uint8_t *scratch;
} job;

size_t np_fp32_lanes(void) {
#ifdef NP_CHOOSES_CPU
  if (__builtin_cpu_supports("x86-64-v4")) return 16;
  if (__builtin_cpu_supports("x86-64-v3")) return 8;
#endif
  return 0;
}

/* Code for the lanes that weights are packed for. */
static np_fp32_multiply *fitting(size_t lanes, int32_t target) {
#ifdef NP_CHOOSES_CPU
  if (target != NP_TARGET_PLAIN && lanes <= np_fp32_lanes()) {
    if (lanes == 8) return np_fp32_multiply_avx2;
    if (lanes == 16 && target != NP_TARGET_AVX2) return np_fp32_multiply_avx512;
  }
#else
  (void)lanes;
  (void)target;
#endif
  return np_fp32_multiply_plain;
}

/* Copy `rows` rows from `first` on, which are counted in the padded image, with zeros around. */
static void copy_rows(const struct np_fp32_convolution_params *p, const float *image, size_t first,
                      size_t rows, float *wide) {
  const size_t before = p->pads[1] < p->wide_width ? p->pads[1] : p->wide_width;
  const size_t room = p->wide_width - before;
  const size_t width = p->width < room ? p->width : room;
  const size_t left = before * p->channels, inside = width * p->channels;
  const size_t row_size = p->wide_width * p->channels;
  for (size_t row = 0; row < rows; row++, wide += row_size) {
    const size_t y = first + row;
    if (y < p->pads[0] || y - p->pads[0] >= p->height) {
      memset(wide, 0, row_size * sizeof *wide);
      continue;
    }
    memset(wide, 0, left * sizeof *wide);
    memcpy(wide + left, image + (y - p->pads[0]) * p->width * p->channels, inside * sizeof *wide);
    memset(wide + left + inside, 0, (row_size - left - inside) * sizeof *wide);
  }
}

/* Where windows start in a band, and where runs start in a window. */
static void address(const struct np_fp32_convolution_params *p, size_t rows, int32_t *pixels,
                    int32_t *runs) {
  for (size_t y = 0; y < rows; y++) {
    for (size_t x = 0; x < p->out_width; x++) {
      *pixels++ = (int32_t)((y * p->steps[0] * p->wide_width + x * p->steps[1]) * p->channels);
    }
  }
  const size_t in_row = p->runs / p->window[0];
  for (size_t q = 0; q < p->runs; q++) {
    const size_t row = q / in_row * p->dilations[0], column = q % in_row * p->dilations[1];
    runs[q] = (int32_t)((row * p->wide_width + column) * p->channels);
  }
}

/* Multiply a panel with all windows, a part of the inputs at a time. */
static void multiply(const job *task, np_fp32_panel *panel, const float *packed) {
  const struct np_fp32_convolution_params *p = task->params;
  const struct np_epilogue *e = &p->epilogue;
  const size_t width = (panel->columns + p->lanes - 1) / p->lanes * p->lanes;
  const size_t pieces = (p->run_length + p->depth - 1) / p->depth; /* of a run */
  const size_t piece = ((p->run_length + pieces - 1) / pieces + 7) / 8 * 8;
  const size_t blocks = (p->runs * p->run_length + p->depth - 1) / p->depth;
  const size_t together = pieces > 1 ? 1 : (p->runs + blocks - 1) / blocks; /* runs */
  const int simple = e->function == NP_EPILOGUE_CLAMP && e->residual != NP_RESIDUAL_AFTER;
  const float *image = panel->image;
  const int32_t *runs = panel->runs;
  panel->weights = packed + width;
  panel->bias = packed;
  panel->residual = task->before == NULL ? NULL : task->before + (panel->out - task->out);
  panel->low = -INFINITY;
  panel->high = INFINITY;
  panel->end = NULL;
  for (size_t q = 0; q < p->runs; q += together) {
    panel->runs = runs + q;
    panel->run_count = p->runs - q < together ? p->runs - q : together;
    for (size_t k = 0; k < p->run_length; k += piece) {
      panel->image = image + k;
      panel->run_length = p->run_length - k < piece ? p->run_length - k : piece;
      const int last = q + together >= p->runs && k + piece >= p->run_length;
      if (last && simple) {
        panel->low = e->low;
        panel->high = e->high;
      } else if (last) {
        panel->end = task->end;
        panel->after = task->after == NULL ? NULL : task->after + (panel->out - task->out);
      }
      task->multiply(panel);
      panel->weights += panel->run_count * panel->run_length * width;
      panel->bias = NULL;
      panel->residual = NULL;
    }
  }
  panel->image = image;
  panel->runs = runs;
}

static void part(void *context, size_t thread, size_t index) {
  const job *task = context;
  const struct np_fp32_convolution_params *p = task->params;
  const size_t side = index % p->parts;
  const size_t band = index / p->parts % p->bands;
  const size_t number = index / p->parts / p->bands;
  const size_t first = band * p->band;
  const size_t rows = first + p->band < p->out_height ? p->band : p->out_height - first;
  const float *image = task->in + number * p->height * p->width * p->channels;
  uint8_t *scratch = task->scratch + thread * p->thread_scratch;
  int32_t *pixels = (int32_t *)(scratch + p->pixels_offset);
  int32_t *runs = (int32_t *)(scratch + p->runs_offset);
  address(p, rows, pixels, runs);
  if (p->copies) {
    const size_t reach = (p->window[0] - 1) * p->dilations[0] + 1;
    float *wide = (float *)scratch;
    copy_rows(p, image, first * p->steps[0], (rows - 1) * p->steps[0] + reach, wide);
    image = wide;
  } else {
    image += first * p->steps[0] * p->wide_width * p->channels;
  }

  const size_t outputs = p->outputs / p->groups, inputs = p->channels / p->groups;
  const size_t vectors = (outputs + p->lanes - 1) / p->lanes;
  const size_t panels = np_fp32_panels(p->lanes, outputs);
  const size_t first_panel = side * panels / p->parts, end = (side + 1) * panels / p->parts;
  const size_t vector_size = p->lanes * (1 + p->runs * p->run_length);
  float *out = task->out + (number * p->out_height + first) * p->out_width * p->outputs;
  np_fp32_panel panel = {
      .pixels = pixels,
      .count = rows * p->out_width,
      .runs = runs,
      .lanes = p->lanes,
      .out_stride = p->outputs,
      .epilogue = &task->epilogue,
  };
  for (size_t group = 0; group < p->groups; group++) {
    const float *packed = (const float *)p->packed + group * vectors * vector_size;
    panel.image = image + group * inputs;
    for (size_t n = first_panel; n < end; n++) {
      const size_t vector = n * vectors / panels, column = vector * p->lanes;
      const size_t after = (n + 1) * vectors / panels * p->lanes;
      panel.columns = (after < outputs ? after : outputs) - column;
      panel.out = out + group * outputs + column;
      multiply(task, &panel, packed + vector * vector_size);
    }
  }
}

int np_fp32_convolution(const void *params, const void *const *inputs, void *out, void *workspace,
                        pthreadpool_t pool) {
  const struct np_fp32_convolution_params *p = params;
  job task = {
      .params = p,
      .multiply = fitting(p->lanes, p->target),
      .end = np_epilogue_for(p->target),
      .epilogue = p->epilogue,
      .in = inputs[0],
      .before = p->epilogue.residual == NP_RESIDUAL_BEFORE ? inputs[1] : NULL,
      .after = p->epilogue.residual == NP_RESIDUAL_AFTER ? inputs[1] : NULL,
      .out = out,
      .scratch = workspace,
  };
  /* What is added before is part of the sums already when the epilogue begins. */
  if (task.before != NULL) task.epilogue.residual = NP_RESIDUAL_NONE;
  const double pixels = (double)p->batch * (double)(p->out_height * p->out_width);
  const double work = pixels * (double)p->outputs * (double)(p->runs * p->run_length);
  pthreadpool_parallelize_1d_with_thread(work < SMALL_WORK ? NULL : pool, part, &task,
                                         p->batch * p->bands * p->parts, NP_DISABLE_DENORMALS);
  return 0;
}
