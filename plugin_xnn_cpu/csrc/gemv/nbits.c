/* GEMM with matrices of few bits: how threads divide it; gemv/nbits_code.c and
 * gemv/nbits_int8_code.c have the kernels. */
#include "gemv/nbits_panel.h"

/* Multiplications, and bytes, below which waking the workers costs more than it saves. */
#define SMALL_WORK 2e5
#define SMALL_MATRIX (1u << 17)

/* From so many rows on those that may be int8 are bfloat16, where there are tiles for it and weights
 * have no more than 4 bits. */
#define MIN_BF16_ROWS 32

/* Panels of a part of such a matmul at most, and parts of a thread at least. */
#define MOST_PANELS 8
#define MIN_PARTS 4

#define LINE 64

static size_t line(size_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

size_t np_nbits_rows_size(const struct np_nbits_matrix *m, size_t rows, size_t sets) {
  const size_t blocks = np_nbits_blocks(m), stride = np_nbits_row_stride(rows);
  const size_t bf16 = line(sets * rows * np_nbits_bf16_width(m) * sizeof(uint16_t));
  const size_t numbers = line(sets * stride * blocks * sizeof(float));
  const size_t size = line(sets * rows * blocks * m->block) + 2 * numbers;
  return rows < MIN_BF16_ROWS ? size : np_max(size, bf16);
}

size_t np_nbits_scratch_size(const struct np_nbits_matrix *m, size_t rows) {
  if (rows <= NP_NBITS_GEMV_ROWS) return 0;
  const size_t size =
      np_nbits_piece_size(m) + np_nbits_row_stride(rows) * (NP_NBITS_COLUMNS + 1) * sizeof(float);
  return rows < MIN_BF16_ROWS ? size : np_max(size, np_nbits_bf16_scratch_size(rows));
}

/* The code for the rows and the target of a matmul. */
typedef struct {
  np_nbits_few *few;
  np_nbits_many *many;
  np_nbits_quantize *quantize;
  np_nbits_round *round;             /* in place of `quantize`, to bfloat16; or NULL */
  np_nbits_many_panels *many_panels; /* in place of `many`, of these */
} code;

static code code_of(const struct np_nbits_params *p) {
  if (!p->quantized) {
    return (code){NP_FOR_ISA(np_nbits_few, p->target), NP_FOR_ISA(np_nbits_many, p->target), NULL,
                  NULL, NULL};
  }
#if NP_HAS_AVX512AMX
  if (np_isa_for(p->target) >= NP_TARGET_AVX512AMX) {
    if (p->rounds && p->rows >= MIN_BF16_ROWS && p->matrix.bits <= 4) {
      return (code){NULL, NULL, NULL, np_nbits_bf16_round_avx512amx, np_nbits_bf16_many_avx512amx};
    }
    return (code){np_nbits_int8_few_avx512amx, np_nbits_int8_many_avx512amx,
                  np_nbits_quantize_avx512amx, NULL, NULL};
  }
#endif
#if NP_HAS_AVX512VNNI
  if (np_isa_for(p->target) >= NP_TARGET_AVX512VNNI) {
    return (code){np_nbits_int8_few_avx512vnni, np_nbits_int8_many_avx512vnni,
                  np_nbits_quantize_avx512vnni, NULL, NULL};
  }
#endif
#ifdef __aarch64__
  if (p->target == NP_TARGET_BEST && np_isa_has_neon_dot()) {
    return (code){np_nbits_int8_few_neondot, np_nbits_int8_many_neondot,
                  np_nbits_quantize_neondot, NULL, NULL};
  }
#endif
  return (code){NP_FOR_ISA(np_nbits_int8_few, p->target),
                NP_FOR_ISA(np_nbits_int8_many, p->target),
                NP_FOR_ISA(np_nbits_quantize, p->target), NULL, NULL};
}

/* The matmuls of a call, whose panels threads divide as those of one matrix. */
typedef struct {
  const struct np_nbits_params *segments;
  size_t count;
  size_t row_sets;
  size_t panels; /* of all; where gated, of one, and those of the other are computed beside them */
  size_t part_panels;
  size_t many_panels; /* of a part, beyond NP_NBITS_GEMV_ROWS rows */
  size_t own_scratch;
  const float *in;
  float *out;
  int gated;
  float *other;         /* where gated: the second result, of two that have a function each */
  const float *before;  /* residuals, of a single matmul, or NULL */
  const float *after;
  np_nbits_rows rows;   /* all sets, where they are quantized */
  uint8_t *scratch;     /* of the threads */
  code code;
} task;

/* A panel of one of the matmuls. */
typedef struct {
  size_t segment;
  size_t panel;
  float *out; /* of the matmul */
} position;

static position position_of(const task *t, size_t panel) {
  position at = {0, panel, t->out};
  for (size_t panels;; at.segment++) {
    const struct np_nbits_params *p = &t->segments[at.segment];
    panels = np_nbits_panels(&p->matrix);
    if (at.panel < panels) return at;
    at.panel -= panels;
    at.out += p->rows * p->matrix.outputs;
  }
}

static np_nbits_job job_of(const task *t, size_t segment, float *out) {
  const struct np_nbits_params *p = &t->segments[segment];
  const size_t set = t->row_sets == 1 ? 0 : segment, row = set * p->rows;
  const size_t blocks = np_nbits_blocks(&p->matrix);
  np_nbits_job job = {p, t->in + row * p->matrix.inputs, out, t->before, {NULL, NULL, NULL}, 0};
  if (t->code.round != NULL) {
    job.rows.q = t->rows.q + row * np_nbits_bf16_width(&p->matrix) * sizeof(uint16_t);
  } else if (p->quantized) {
    const size_t at = set * blocks * np_nbits_row_stride(p->rows);
    job.rows = (np_nbits_rows){t->rows.q + row * blocks * p->matrix.block, t->rows.scales + at,
                               t->rows.row_sums + at};
  }
  return job;
}

/* What is left of the epilogue for some columns of rows that are stored. */
static void finish(const np_nbits_job *job, const float *after, size_t row, size_t rows,
                   size_t first, size_t last) {
  const struct np_nbits_params *p = job->params;
  if (p->epilogue.function == NP_EPILOGUE_CLAMP && after == NULL) return;
  const struct np_epilogue end = {
      .function = p->epilogue.function,
      .residual = after == NULL ? NP_RESIDUAL_NONE : NP_RESIDUAL_AFTER,
      .low = p->epilogue.low,
      .high = p->epilogue.high,
  };
  const size_t outputs = p->matrix.outputs, column = first * NP_NBITS_COLUMNS;
  const size_t ends = np_min(last * NP_NBITS_COLUMNS, outputs);
  const size_t at = row * outputs + column;
  np_epilogue_for(p->target)(&end, job->out + at, outputs, after == NULL ? NULL : after + at,
                             outputs, rows, ends - column);
}

/* Multiply `count` columns of rows by those of others; rows lie `stride` apart. */
NP_MULTIVERSIONED(void, multiply_rows,
                  (float *restrict out, const float *restrict factor, size_t stride, size_t rows,
                   size_t count),
                  (out, factor, stride, rows, count)) {
  for (size_t r = 0; r < rows; r++, out += stride, factor += stride) {
    for (size_t i = 0; i < count; i++) out[i] *= factor[i];
  }
}

/* Multiply some columns of the first matmul's results by those of the second. */
static void multiply(const task *t, size_t row, size_t rows, size_t first, size_t last) {
  const size_t outputs = t->segments[0].matrix.outputs, column = first * NP_NBITS_COLUMNS;
  const size_t count = np_min(last * NP_NBITS_COLUMNS, outputs) - column;
  const size_t at = row * outputs + column;
  multiply_rows(t->out + at, t->other + at, outputs, rows, count);
}

/* Of two matmuls whose results are multiplied, the one whose epilogue only clamps: its results can be
 * multiplied as they are stored. 2 where there is none. */
static size_t plain_of(const task *t) {
  for (size_t i = 2; i-- > 0;) {
    if (t->segments[i].epilogue.function == NP_EPILOGUE_CLAMP) return i;
  }
  return 2;
}

/* Weights, and panels, that are multiplied between two looks at whether the run is stopped. */
#define STREAMED_WEIGHTS ((size_t)1 << 24)
#define STREAMED_PANELS ((size_t)64)

/* Panels `first` to `last` of one matmul, times up to NP_NBITS_GEMV_ROWS rows. */
static void few(const task *t, size_t segment, float *out, size_t first, size_t last,
                int multiplies) {
  np_nbits_job job = job_of(t, segment, out);
  job.multiplies = multiplies;
  const size_t inputs = np_max(1, job.params->matrix.inputs);
  const size_t some = np_max(STREAMED_PANELS, STREAMED_WEIGHTS / NP_NBITS_COLUMNS / inputs);
  for (size_t i = first; i < last; i += some) {
    if (i > first && np_cancel_check()) return;
    t->code.few(&job, i, np_min(i + some, last));
  }
  finish(&job, t->after, 0, job.params->rows, first, last);
}

static void few_part(void *context, size_t thread, size_t index) {
  (void)thread;
  const task *t = context;
  const size_t first = index * t->part_panels;
  size_t left = np_min(t->part_panels, t->panels - first);
  if (t->gated) {
    const size_t plain = plain_of(t), last = first + left;
    few(t, plain == 0, t->out, first, last, 0);
    few(t, plain != 0, plain < 2 ? t->out : t->other, first, last, plain < 2);
    if (plain == 2) multiply(t, 0, t->segments[0].rows, first, last);
    return;
  }
  position at = position_of(t, first);
  for (; left > 0; at.segment++, at.panel = 0) {
    const struct np_nbits_params *p = &t->segments[at.segment];
    const size_t count = np_min(left, np_nbits_panels(&p->matrix) - at.panel);
    few(t, at.segment, at.out, at.panel, at.panel + count, 0);
    at.out += p->rows * p->matrix.outputs;
    left -= count;
  }
}

/* Panels `first` to `last` of one matmul, times rows. */
static void many(const task *t, size_t segment, float *out, size_t first, size_t last, size_t row,
                 size_t rows, uint8_t *scratch, int multiplies) {
  np_nbits_job job = job_of(t, segment, out);
  job.multiplies = multiplies;
  if (t->code.many_panels != NULL) {
    t->code.many_panels(&job, first, last, row, rows, scratch);
  } else {
    for (size_t i = first; i < last; i++) t->code.many(&job, i, row, rows, scratch);
  }
  finish(&job, t->after, row, rows, first, last);
}

static void many_part(void *context, size_t thread, size_t index) {
  const task *t = context;
  const struct np_nbits_params *p = t->segments;
  const size_t parts = np_ceil_div(t->panels, t->many_panels);
  const size_t row = index / parts * p->row_tile;
  const size_t rows = np_min(p->rows - row, p->row_tile);
  const size_t first = index % parts * t->many_panels;
  size_t left = np_min(t->many_panels, t->panels - first);
  uint8_t *scratch = t->scratch + thread * t->own_scratch;
  if (t->gated) {
    const size_t plain = plain_of(t), last = first + left;
    many(t, plain == 0, t->out, first, last, row, rows, scratch, 0);
    many(t, plain != 0, plain < 2 ? t->out : t->other, first, last, row, rows, scratch, plain < 2);
    if (plain == 2) multiply(t, row, rows, first, last);
    return;
  }
  position at = position_of(t, first);
  for (size_t count; left > 0; left -= count, at.segment++, at.panel = 0) {
    const struct np_nbits_matrix *m = &t->segments[at.segment].matrix;
    count = np_min(left, np_nbits_panels(m) - at.panel);
    many(t, at.segment, at.out, at.panel, at.panel + count, row, rows, scratch, 0);
    at.out += p->rows * m->outputs;
  }
}

static void quantize_part(void *context, size_t thread, size_t row) {
  (void)thread;
  const task *t = context;
  const struct np_nbits_matrix *m = &t->segments[0].matrix;
  if (t->code.round != NULL) {
    const size_t width = np_nbits_bf16_width(m);
    t->code.round(t->in + row * m->inputs, m->inputs, width,
                  (uint16_t *)(void *)t->rows.q + row * width);
    return;
  }
  const size_t blocks = np_nbits_blocks(m), rows = t->segments[0].rows;
  const size_t stride = np_nbits_row_stride(rows), at = row / rows * blocks * stride + row % rows;
  t->code.quantize(t->in + row * m->inputs, m->inputs, m->block,
                   t->rows.q + row * blocks * m->block, t->rows.scales + at,
                   t->rows.row_sums + at, stride);
}

/* Quantize all rows to the start of the workspace. */
static void quantize(task *t, uint8_t *to, np_workers *workers) {
  const struct np_nbits_matrix *m = &t->segments[0].matrix;
  const size_t rows = t->segments[0].rows * t->row_sets, blocks = np_nbits_blocks(m);
  const size_t numbers = t->row_sets * np_nbits_row_stride(t->segments[0].rows) * blocks;
  t->rows.q = (int8_t *)to;
  to += line(rows * blocks * m->block);
  t->rows.scales = (float *)to;
  t->rows.row_sums = (int32_t *)(to + line(numbers * sizeof(float)));
  const size_t bytes = rows * m->inputs * sizeof(float);
  np_parallel_for(np_workers_for(bytes, workers), quantize_part, t, rows, NP_DISABLE_DENORMALS);
}

/* Panels of a part: of code that dequantizes one panel while it multiplies another, as many as leave
 * each thread a few parts. */
static size_t many_panels_of(const task *t, size_t tiles, size_t threads) {
  if (t->code.many_panels == NULL) return 1;
  const size_t each = t->panels * tiles / (threads * MIN_PARTS);
  return threads == 1 ? np_min(t->panels, MOST_PANELS) : np_max(1, np_min(each, MOST_PANELS));
}

static int run(task *t, np_job *job) {
  const struct np_nbits_params *p = t->segments;
  np_workers *const workers = job->workers;
  t->code = code_of(p);
  if (p->quantized) quantize(t, job->scratch, workers);
  size_t bytes = 0, outputs = 0;
  for (size_t i = 0; i < t->count; i++) {
    bytes += np_nbits_packed_size(&t->segments[i].matrix);
    outputs += t->segments[i].matrix.outputs;
  }
  if (p->rows <= NP_NBITS_GEMV_ROWS) {
    np_parallel_for(bytes < SMALL_MATRIX ? NULL : workers, few_part, t,
                    np_ceil_div(t->panels, t->part_panels), NP_DISABLE_DENORMALS);
    return 0;
  }
  const double work = (double)p->rows * (double)p->matrix.inputs * (double)outputs;
  const size_t tiles = np_ceil_div(p->rows, p->row_tile);
  t->many_panels = many_panels_of(t, tiles, np_workers_threads(workers));
  np_parallel_for(work < SMALL_WORK ? NULL : workers, many_part, t,
                  tiles * np_ceil_div(t->panels, t->many_panels), NP_DISABLE_DENORMALS);
  return 0;
}

int np_nbits(np_job *job) {
  const struct np_nbits_params *p = job->params;
  const int32_t residual = p->epilogue.residual;
  task t = {
      .segments = p,
      .count = 1,
      .row_sets = 1,
      .panels = np_nbits_panels(&p->matrix),
      .part_panels = p->part_panels,
      .own_scratch = p->own_scratch,
      .in = job->inputs[0],
      .out = job->out,
      .before = residual == NP_RESIDUAL_BEFORE ? job->inputs[1] : NULL,
      .after = residual == NP_RESIDUAL_AFTER ? job->inputs[1] : NULL,
      .scratch = job->scratch + p->shared_scratch,
  };
  return run(&t, job);
}

int np_nbits_joined(np_job *job) {
  const struct np_nbits_joined_params *p = job->params;
  const struct np_nbits_params *first = p->segment;
  task t = {
      .segments = first,
      .count = p->segments,
      .row_sets = p->row_sets,
      .part_panels = p->part_panels,
      .own_scratch = p->own_scratch,
      .in = job->inputs[0],
      .out = job->out,
      .scratch = job->scratch + p->shared_scratch,
  };
  if (p->gated) {
    const size_t rows =
        first->quantized ? np_nbits_rows_size(&first->matrix, first->rows, 1) : 0;
    t.gated = 1;
    t.panels = np_nbits_panels(&first->matrix);
    t.other = (float *)(void *)(job->scratch + rows);
  } else {
    for (size_t i = 0; i < p->segments; i++) t.panels += np_nbits_panels(&first[i].matrix);
  }
  return run(&t, job);
}
