/* Convolutions of float32; see fp32_kernels.h. */
#include "fp32_code.h"

/* Multiplications below which waking the workers costs more than it saves. */
#define SMALL_WORK 2e5

typedef struct {
  const struct np_fp32_convolution_params *params;
  np_fp32_multiply *multiply;
  const float *in;
  float *out;
  uint8_t *scratch;
} job;

bool np_fp32_is_fast(void) {
#ifdef NP_CHOOSES_CPU
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

static np_fp32_multiply *fitting(int32_t target) {
#ifdef NP_CHOOSES_CPU
  if (target != NP_TARGET_PLAIN && np_fp32_is_fast()) return np_fp32_multiply_avx2;
#else
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

static void part(void *context, size_t thread, size_t index) {
  const job *task = context;
  const struct np_fp32_convolution_params *p = task->params;
  const size_t columns = index % p->parts * p->part_columns;
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
  const size_t last = columns + p->part_columns < outputs ? columns + p->part_columns : outputs;
  const size_t depth = p->runs * p->run_length;
  const size_t group_size = np_fp32_packed_size(1, outputs, depth) / sizeof(float);
  const size_t skipped = columns / NP_FP32_COLUMNS * np_fp32_panel_size(NP_FP32_COLUMNS, depth);
  float *out = task->out + (number * p->out_height + first) * p->out_width * p->outputs;
  np_fp32_panel panel = {
      .pixels = pixels,
      .count = rows * p->out_width,
      .runs = runs,
      .run_count = p->runs,
      .run_length = p->run_length,
      .out_stride = p->outputs,
      .low = p->low,
      .high = p->high,
  };
  for (size_t group = 0; group < p->groups; group++) {
    panel.image = image + group * inputs;
    panel.panel = (const float *)p->packed + group * group_size + skipped;
    for (size_t column = columns; column < last; column += panel.columns) {
      panel.columns = last - column < NP_FP32_COLUMNS ? last - column : NP_FP32_COLUMNS;
      panel.out = out + group * outputs + column;
      task->multiply(&panel);
      panel.panel += np_fp32_panel_size(panel.columns, depth);
    }
  }
}

int np_fp32_convolution(const void *params, const void *const *inputs, void *out, void *workspace,
                        pthreadpool_t pool) {
  const struct np_fp32_convolution_params *p = params;
  job task = {p, fitting(p->target), inputs[0], out, workspace};
  const double pixels = (double)p->batch * (double)(p->out_height * p->out_width);
  const double work = pixels * (double)p->outputs * (double)(p->runs * p->run_length);
  pthreadpool_parallelize_1d_with_thread(work < SMALL_WORK ? NULL : pool, part, &task,
                                         p->batch * p->bands * p->parts, NP_DISABLE_DENORMALS);
  return 0;
}
