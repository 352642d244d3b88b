/* GEMM with a matrix of few bits: packing, and how threads divide it; gemv/nbits_code.c and
 * gemv/nbits_int8_code.c have the kernels. */
#include <string.h>

#include "gemv/nbits_panel.h"

/* Multiplications, and bytes, below which waking the workers costs more than it saves. */
#define SMALL_WORK 2e5
#define SMALL_MATRIX (1u << 17)

#define LINE 64

static size_t line(size_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

size_t np_nbits_packed_size(const struct np_nbits_matrix *m) {
  return np_nbits_panels(m) * np_nbits_panel_size(m);
}

size_t np_nbits_rows_size(const struct np_nbits_matrix *m, size_t rows) {
  const size_t blocks = np_nbits_blocks(m);
  return line(rows * blocks * m->block) + 2 * line(rows * blocks * sizeof(float));
}

size_t np_nbits_scratch_size(const struct np_nbits_matrix *m, size_t rows) {
  if (rows <= NP_NBITS_GEMV_ROWS) return 0;
  const size_t k = m->block > NP_NBITS_K_BLOCK ? m->block : NP_NBITS_K_BLOCK;
  return line((k + rows) * NP_NBITS_COLUMNS * sizeof(float));
}

/* Rows of words of a block: see nbits_panel.h. */
static uint8_t *pack_words(const struct np_nbits_matrix *m, const uint8_t *block, size_t stride,
                           size_t columns, uint8_t *to) {
  const size_t bits = (size_t)m->bits, together = 32 / bits;
  for (size_t k = 0; k < m->block; k += together) {
    for (size_t n = 0; n < NP_NBITS_COLUMNS; n++, to += sizeof(uint32_t)) {
      uint32_t word = 0;
      for (size_t i = 0; i < together && n < columns; i++) {
        word |= (uint32_t)block[n * stride + k + i] << (i % 4 * 8 + i / 4 * bits);
      }
      memcpy(to, &word, sizeof word);
    }
  }
  return to;
}

/* Numbers of `size` bytes of block `number` for each column; 0 for columns that are not there. */
static uint8_t *pack_numbers(const uint8_t *from, size_t size, size_t number, size_t stride,
                             size_t columns, uint8_t *to) {
  memset(to, 0, NP_NBITS_COLUMNS * size);
  for (size_t n = 0; n < columns; n++) {
    memcpy(to + n * size, from + (n * stride + number) * size, size);
  }
  return to + NP_NBITS_COLUMNS * size;
}

void np_nbits_pack(const struct np_nbits_matrix *m, const void *weights, const void *numbers,
                   const void *bias, void *packed) {
  const size_t blocks = np_nbits_blocks(m), width = blocks * m->block;
  const size_t scale = np_nbits_scales_size(m) / NP_NBITS_COLUMNS;
  const size_t zero = np_nbits_zeros_size(m) / NP_NBITS_COLUMNS;
  const uint8_t *scales = numbers, *zeros = scales + m->outputs * blocks * scale;
  uint8_t *to = packed;
  for (size_t first = 0; first < m->outputs; first += NP_NBITS_COLUMNS) {
    const size_t left = m->outputs - first;
    const size_t columns = left < NP_NBITS_COLUMNS ? left : NP_NBITS_COLUMNS;
    memset(to, 0, NP_NBITS_COLUMNS * sizeof(float));
    if (bias != NULL) memcpy(to, (const float *)bias + first, columns * sizeof(float));
    to += NP_NBITS_COLUMNS * sizeof(float);
    for (size_t b = 0; b < blocks; b++) {
      to = pack_numbers(scales + first * blocks * scale, scale, b, blocks, columns, to);
      to = pack_numbers(zeros + first * blocks * zero, zero, b, blocks, columns, to);
      const uint8_t *block = (const uint8_t *)weights + first * width + b * m->block;
      to = pack_words(m, block, width, columns, to);
    }
  }
}

typedef struct {
  np_nbits_job job;
  np_nbits_few *few;
  np_nbits_many *many;
  np_nbits_quantize *quantize;
  const float *after; /* a residual that is added to results, or NULL */
  uint8_t *scratch;   /* of the threads */
  /* Where quantized rows are written. */
  int8_t *q;
  float *scales;
  int32_t *row_sums;
} task;

static task task_of(const struct np_nbits_params *p) {
  task t = {.job = {.params = p}};
  if (!p->quantized) {
    t.few = NP_FOR_ISA(np_nbits_few, p->target);
    t.many = NP_FOR_ISA(np_nbits_many, p->target);
    return t;
  }
#ifdef NP_CHOOSES_CPU
  if (np_isa_for(p->target) >= NP_TARGET_AVX512VNNI) {
    t.few = np_nbits_int8_few_avx512vnni;
    t.many = np_nbits_int8_many_avx512vnni;
    t.quantize = np_nbits_quantize_avx512vnni;
    return t;
  }
#endif
  t.few = NP_FOR_ISA(np_nbits_int8_few, p->target);
  t.many = NP_FOR_ISA(np_nbits_int8_many, p->target);
  t.quantize = NP_FOR_ISA(np_nbits_quantize, p->target);
  return t;
}

/* What is left of the epilogue for some columns of rows that are stored. */
static void finish(const task *t, size_t row, size_t rows, size_t first, size_t last) {
  const struct np_nbits_params *p = t->job.params;
  if (p->epilogue.function == NP_EPILOGUE_CLAMP && t->after == NULL) return;
  const struct np_epilogue end = {
      .function = p->epilogue.function,
      .residual = t->after == NULL ? NP_RESIDUAL_NONE : NP_RESIDUAL_AFTER,
      .low = p->epilogue.low,
      .high = p->epilogue.high,
  };
  const size_t outputs = p->matrix.outputs, column = first * NP_NBITS_COLUMNS;
  const size_t ends = last * NP_NBITS_COLUMNS < outputs ? last * NP_NBITS_COLUMNS : outputs;
  const size_t at = row * outputs + column;
  np_epilogue_for(p->target)(&end, t->job.out + at, outputs,
                             t->after == NULL ? NULL : t->after + at, outputs, rows,
                             ends - column);
}

static void few_part(void *context, size_t thread, size_t index) {
  (void)thread;
  const task *t = context;
  const struct np_nbits_params *p = t->job.params;
  const size_t panels = np_nbits_panels(&p->matrix), first = index * p->part_panels;
  const size_t last = first + p->part_panels < panels ? first + p->part_panels : panels;
  t->few(&t->job, first, last);
  finish(t, 0, p->rows, first, last);
}

static void many_part(void *context, size_t thread, size_t index) {
  const task *t = context;
  const struct np_nbits_params *p = t->job.params;
  const size_t panels = np_nbits_panels(&p->matrix), panel = index % panels;
  const size_t row = index / panels * p->row_tile;
  const size_t rows = p->rows - row < p->row_tile ? p->rows - row : p->row_tile;
  t->many(&t->job, panel, row, rows, t->scratch + thread * p->own_scratch);
  finish(t, row, rows, panel, panel + 1);
}

static void quantize_part(void *context, size_t thread, size_t row) {
  (void)thread;
  const task *t = context;
  const struct np_nbits_matrix *m = &t->job.params->matrix;
  const size_t blocks = np_nbits_blocks(m);
  t->quantize(t->job.in + row * m->inputs, m->inputs, m->block, t->q + row * blocks * m->block,
              t->scales + row * blocks, t->row_sums + row * blocks);
}

/* Quantize all rows to the start of the workspace. */
static void quantize(task *t, uint8_t *to, np_workers *workers) {
  const struct np_nbits_params *p = t->job.params;
  const size_t blocks = np_nbits_blocks(&p->matrix);
  t->q = (int8_t *)to;
  to += line(p->rows * blocks * p->matrix.block);
  t->scales = (float *)to;
  t->row_sums = (int32_t *)(to + line(p->rows * blocks * sizeof(float)));
  t->job.rows = (np_nbits_rows){t->q, t->scales, t->row_sums};
  const size_t bytes = p->rows * p->matrix.inputs * sizeof(float);
  np_parallel_for(bytes < NP_PARALLEL_MIN_BYTES ? NULL : workers, quantize_part, t, p->rows,
                  NP_DISABLE_DENORMALS);
}

int np_nbits(const void *params, const void *const *inputs, void *out, void *workspace,
             np_workers *workers) {
  const struct np_nbits_params *p = params;
  const struct np_nbits_matrix *m = &p->matrix;
  task t = task_of(p);
  t.job.in = inputs[0];
  t.job.out = out;
  t.job.before = p->epilogue.residual == NP_RESIDUAL_BEFORE ? inputs[1] : NULL;
  t.after = p->epilogue.residual == NP_RESIDUAL_AFTER ? inputs[1] : NULL;
  t.scratch = (uint8_t *)workspace + p->shared_scratch;
  if (p->quantized) quantize(&t, workspace, workers);
  if (p->rows <= NP_NBITS_GEMV_ROWS) {
    const int small = np_nbits_packed_size(m) < SMALL_MATRIX;
    np_parallel_for(small ? NULL : workers, few_part, &t, p->parts, NP_DISABLE_DENORMALS);
    return 0;
  }
  const double work = (double)p->rows * (double)m->inputs * (double)m->outputs;
  const size_t row_tiles = (p->rows + p->row_tile - 1) / p->row_tile;
  np_parallel_for(work < SMALL_WORK ? NULL : workers, many_part, &t,
                  row_tiles * np_nbits_panels(m), NP_DISABLE_DENORMALS);
  return 0;
}
