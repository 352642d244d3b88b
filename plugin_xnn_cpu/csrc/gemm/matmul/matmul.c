/* Matmul of two computed operands; see gemm/matmul/matmul.h. */
#include <math.h>

#include "gemm/matmul/micro_kernel.h"

size_t np_matmul_lanes(int32_t target) { return NP_FROM_SSE4(&np_matmul_code, target)->lanes; }

typedef struct {
  const struct np_matmul_params *params;
  const np_matmul_code *code;
  np_matmul_multiply *multiply;
  np_epilogue_tile *end; /* NULL where bounds are all that there is */
  int scaled; /* an alpha or a bias */
  int plain;  /* neither them nor bounds */
  const float *a;
  const float *b;
  const float *bias;
  const float *residual;
  float *out;
  float *scratch;
} matmul_job;

/* Where a matrix of the batch starts. */
static size_t start(const struct np_matmul_params *p, const size_t *strides, size_t number) {
  size_t at = 0;
  for (size_t i = NP_MATMUL_BATCH; i-- > 0; number /= p->batch[i]) {
    at += number % p->batch[i] * strides[i];
  }
  return at;
}

/* Multiply with packed panels. Where alpha or a bias follow, bounds and epilogue follow them. */
static void multiply_panels(const matmul_job *task, const np_matmul_block *block, float *scratch) {
  const struct np_matmul_params *p = task->params;
  static const int32_t start_of_run = 0;
  static const float zeros[NP_FP32_MAX_NR];
  const int ends = block->last && !block->scaled;
  int32_t *pixels = (int32_t *)(scratch + p->pixels_offset);
  for (size_t row = 0; row < block->rows; row++) pixels[row] = (int32_t)(row * block->a_row);
  const size_t lanes = task->code->lanes;
  const size_t vectors = np_ceil_div(block->columns, lanes);
  const size_t panels = np_ceil_div(vectors, task->code->most_vectors);
  size_t first = 0;
  for (size_t n = 0; n < panels; n++) {
    const size_t next = (n + 1) * vectors / panels * lanes;
    const size_t columns = np_min(next, block->columns) - first;
    const np_fp32_panel panel = {
        .image = block->a,
        .pixels = pixels,
        .row_stride = block->a_row,
        .count = block->rows,
        .runs = &start_of_run,
        .run_count = 1,
        .run_length = block->depth,
        .weights = block->b + first * block->depth,
        .prefetch = block->b + (n + 1 < panels ? next * block->depth : 0),
        .bias = block->first ? zeros : NULL,
        .columns = columns,
        .lanes = lanes,
        .out = block->out + first,
        .out_stride = block->out_row,
        .low = ends ? block->low : -INFINITY,
        .high = ends ? block->high : INFINITY,
        .end = ends ? block->end : NULL,
        .epilogue = block->epilogue,
        .after = block->residual == NULL ? NULL : block->residual + first,
    };
    task->code->panel(&panel);
    first = next;
  }
  if (block->last && !ends) task->code->finish(block);
}

/* Some rows and columns of one matrix. `packed` says whether B's panels are in scratch memory. */
static void compute(const matmul_job *task, np_matmul_block block, np_range rows, np_range columns,
                    float *scratch, int packed) {
  const struct np_matmul_params *p = task->params;
  const float *a = block.a + rows.first * block.a_row,
              *b = block.b + columns.first * block.b_column;
  const ptrdiff_t at = (ptrdiff_t)(rows.first * block.out_row + columns.first);
  float *out = block.out + at;
  const float *residual = block.residual == NULL ? NULL : block.residual + at;
  block.columns = columns.count;
  if (block.bias != NULL) block.bias += columns.first;
  size_t k = 0;
  do {
    block.depth = np_min(p->depth - k, p->depth_block);
    block.first = k == 0;
    block.last = k + block.depth == p->depth;
    block.end = block.last ? task->end : NULL;
    block.plain = !block.last || task->plain;
    block.b = b + k * p->b_strides[0];
    if (block.packed) {
      if (!packed) {
        task->code->pack(block.b, p->b_strides[0], p->b_strides[1], block.depth, columns.count,
                        scratch);
      }
      block.b = scratch;
    }
    for (size_t row = 0; row < rows.count; row += p->row_block) {
      block.rows = np_min(rows.count - row, p->row_block);
      block.a = a + row * block.a_row + k * block.a_depth;
      block.out = out + row * block.out_row;
      block.residual = residual == NULL ? NULL : residual + row * block.out_row;
      if (p->panels) {
        multiply_panels(task, &block, scratch);
      } else {
        task->multiply(&block);
      }
    }
    k += block.depth;
  } while (k < p->depth);
}

static size_t matrices_of(const struct np_matmul_params *p) {
  return p->batch[0] * p->batch[1] * p->batch[2] * p->batch[3];
}

static void part(void *context, size_t thread, size_t index) {
  const matmul_job *task = context;
  const struct np_matmul_params *p = task->params;
  const size_t row_parts = np_ceil_div(p->rows, p->part_rows);
  const size_t column_parts = np_ceil_div(p->columns, p->part_columns);
  const np_range columns = np_range_of(index % column_parts, p->part_columns, p->columns);
  const np_range rows = np_range_of(index / column_parts % row_parts, p->part_rows, p->rows);
  const np_range matrices =
      np_range_of(index / column_parts / row_parts, p->part_matrices, matrices_of(p));
  float *scratch = task->scratch + thread * p->thread_scratch;
  const int simple = task->end == NULL;
  np_matmul_block block = {
      .a_row = p->a_strides[0],
      .a_depth = p->a_strides[1],
      .b_depth = p->b_strides[0],
      .b_column = p->b_strides[1],
      .packed = p->form == NP_MATMUL_PACKED,
      .out_row = p->out_stride,
      .scaled = task->scaled,
      .alpha = p->alpha,
      .bias = task->bias,
      .low = simple ? p->epilogue.low : -INFINITY,
      .high = simple ? p->epilogue.high : INFINITY,
      .epilogue = &p->epilogue,
  };
  const float *packed = NULL; /* the matrix whose panels are in scratch memory */
  for (size_t i = 0; i < matrices.count; i++) {
    const size_t number = matrices.first + i, at = start(p, p->out_batch, number);
    block.a = task->a + start(p, p->a_batch, number);
    block.b = task->b + start(p, p->b_batch, number);
    block.out = task->out + at;
    block.residual = task->residual == NULL ? NULL : task->residual + at;
    compute(task, block, rows, columns, scratch, block.b == packed);
    packed = p->depth <= p->depth_block ? block.b : NULL;
  }
}

int np_matmul(np_job *job) {
  const struct np_matmul_params *p = job->params;
  const struct np_epilogue *e = &p->epilogue;
  const np_matmul_code *code = NP_FROM_SSE4(&np_matmul_code, p->target);
  const int simple = e->function == NP_EPILOGUE_CLAMP && e->residual == NP_RESIDUAL_NONE;
  const int scaled = p->alpha != 1.0f || p->has_bias;
  matmul_job task = {
      .params = p,
      .code = code,
      .multiply = p->form == NP_MATMUL_DOTS ? code->dots : code->multiply,
      .end = simple ? NULL : np_epilogue_for(p->target),
      .scaled = scaled,
      .plain = !scaled && (!simple || (e->low == -INFINITY && e->high == INFINITY)),
      .a = job->inputs[p->swapped ? 1 : 0],
      .b = job->inputs[p->swapped ? 0 : 1],
      .bias = p->has_bias ? job->inputs[2] : NULL,
      .residual = e->residual == NP_RESIDUAL_NONE ? NULL : job->inputs[p->has_bias ? 3 : 2],
      .out = job->out,
      .scratch = (float *)(void *)job->scratch,
  };
  const size_t matrices = matrices_of(p);
  const double work = (double)matrices * (double)p->rows * (double)p->columns * (double)p->depth;
  const size_t parts = np_ceil_div(matrices, p->part_matrices) *
                       np_ceil_div(p->rows, p->part_rows) *
                       np_ceil_div(p->columns, p->part_columns);
  np_parallel_for(work < NP_SMALL_FLOAT32 ? NULL : job->workers, part, &task, parts,
                  NP_DISABLE_DENORMALS);
  return 0;
}
