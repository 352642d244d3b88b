/* Depthwise convolutions of float32; see depthwise/fp32.h. */
#include <math.h>

#include "depthwise/fp32_tile.h"

/* Multiplications below which waking the workers costs more than it saves. */
#define SMALL_WORK 1e5

typedef struct {
  const struct np_fp32_depthwise_params *params;
  np_fp32_depthwise_rows *rows;
  const float *in;
  const float *before; /* residuals */
  const float *after;
  float *out;
  uint8_t *scratch;
} job;

static size_t block_size(size_t height, size_t width) {
  return (1 + height * width) * NP_FP32_DEPTHWISE_BLOCK;
}

size_t np_fp32_depthwise_packed_size(size_t channels, size_t height, size_t width) {
  const size_t blocks = (channels + NP_FP32_DEPTHWISE_BLOCK - 1) / NP_FP32_DEPTHWISE_BLOCK;
  return blocks * block_size(height, width) * sizeof(float);
}

void np_fp32_depthwise_pack(size_t channels, size_t height, size_t width, const void *weights,
                            const void *bias, void *packed) {
  const float *source = weights, *added = bias;
  float *to = packed;
  for (size_t first = 0; first < channels; first += NP_FP32_DEPTHWISE_BLOCK) {
    const size_t left = channels - first;
    for (size_t i = 0; i < NP_FP32_DEPTHWISE_BLOCK; i++) {
      *to++ = i < left && added != NULL ? added[first + i] : 0.0f;
    }
    for (size_t tap = 0; tap < height * width; tap++) {
      const float *x = source + tap * channels + first;
      for (size_t i = 0; i < NP_FP32_DEPTHWISE_BLOCK; i++) *to++ = i < left ? x[i] : 0.0f;
    }
  }
}

np_fp32_depthwise_tile np_fp32_depthwise_tile_for(const struct np_fp32_depthwise_params *p) {
  struct np_epilogue e = p->epilogue;
  /* What is added before is part of the accumulators already when the epilogue begins. */
  if (e.residual == NP_RESIDUAL_BEFORE) e.residual = NP_RESIDUAL_NONE;
  const int simple = e.function == NP_EPILOGUE_CLAMP && e.residual == NP_RESIDUAL_NONE;
  return (np_fp32_depthwise_tile){
      .width = p->width,
      .out_width = p->out_width,
      .window = {p->window[0], p->window[1]},
      .strides = {p->strides[0], p->strides[1]},
      .dilations = {p->dilations[0], p->dilations[1]},
      .left = p->pads[1],
      .pixel = p->channels,
      .columns = p->channels,
      .packed = p->packed,
      .low = simple ? e.low : -INFINITY,
      .high = simple ? e.high : INFINITY,
      .end = simple ? NULL : np_epilogue_for(p->target),
      .epilogue = e,
  };
}

void np_fp32_depthwise_address(const struct np_fp32_depthwise_params *p, const float *image,
                               size_t first, size_t count, const float **rows) {
  const size_t needed = np_fp32_depthwise_reach(p, count);
  for (size_t i = 0; i < needed; i++) {
    const size_t y = first * p->strides[0] + i; /* counted with the pads */
    const int inside = y >= p->pads[0] && y - p->pads[0] < p->height;
    rows[i] = inside ? image + (y - p->pads[0]) * p->width * p->channels : NULL;
  }
}

static void part(void *context, size_t thread, size_t index) {
  const job *task = context;
  const struct np_fp32_depthwise_params *p = task->params;
  const size_t side = index % p->parts;
  const size_t row_tile = index / p->parts % p->row_tiles;
  const size_t number = index / p->parts / p->row_tiles;
  const size_t first = row_tile * p->row_tile, channel = side * p->part;
  const size_t left = p->channels - channel;
  const float *image = task->in + number * p->height * p->width * p->channels + channel;
  const float **rows = (const float **)(void *)(task->scratch + thread * p->thread_scratch);
  const size_t at = (number * p->out_height + first) * p->out_width * p->channels + channel;
  np_fp32_depthwise_tile tile = np_fp32_depthwise_tile_for(p);
  tile.count = first + p->row_tile < p->out_height ? p->row_tile : p->out_height - first;
  tile.columns = left < p->part ? left : p->part;
  tile.packed += channel / NP_FP32_DEPTHWISE_BLOCK * block_size(p->window[0], p->window[1]);
  tile.out = task->out + at;
  tile.before = task->before == NULL ? NULL : task->before + at;
  tile.after = task->after == NULL ? NULL : task->after + at;
  np_fp32_depthwise_address(p, image, first, tile.count, rows);
  tile.rows = rows;
  task->rows(&tile);
}

int np_fp32_depthwise(const void *params, const void *const *inputs, void *out, void *workspace,
                      np_workers *workers) {
  const struct np_fp32_depthwise_params *p = params;
  job task = {
      .params = p,
      .rows = NP_FOR_ISA(np_fp32_depthwise, p->target),
      .in = inputs[0],
      .before = p->epilogue.residual == NP_RESIDUAL_BEFORE ? inputs[1] : NULL,
      .after = p->epilogue.residual == NP_RESIDUAL_AFTER ? inputs[1] : NULL,
      .out = out,
      .scratch = workspace,
  };
  const double outputs = (double)p->batch * (double)(p->out_height * p->out_width * p->channels);
  const double work = outputs * (double)(p->window[0] * p->window[1]);
  np_parallel_for(work < SMALL_WORK ? NULL : workers, part, &task,
                  p->batch * p->row_tiles * p->parts, NP_DISABLE_DENORMALS);
  return 0;
}
