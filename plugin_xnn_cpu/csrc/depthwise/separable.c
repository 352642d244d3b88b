/* A depthwise convolution of float32 and those around it in one pass; see depthwise/separable.h. */
#include "depthwise/fp32_tile.h"
#include "depthwise/separable.h"
#include "gemm/fp32/panel.h"

typedef struct {
  const struct np_fp32_separable_params *params;
  np_fp32_depthwise_rows *depthwise;
  const float *in;
  const float *residual;
  float *out;
  uint8_t *scratch;
} job;

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Write rows of the expanded image from `first` to `end` into the ring. */
static void expand(const struct np_fp32_separable_params *p, const float *image, size_t first,
                   size_t end, float *ring, uint8_t *scratch) {
  const size_t row = p->depthwise.width * p->depthwise.channels;
  while (first < end) {
    const size_t slot = first % p->ring, rows = least(end - first, p->ring - slot);
    np_fp32_convolution_rows(&p->expand, image, first, rows, NULL, ring + slot * row, scratch);
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
  const size_t size = expands ? p->expand.height * p->expand.width * p->expand.channels
                              : d->height * d->width * d->channels;
  const float *image = task->in + number * size;

  uint8_t *scratch = task->scratch + thread * p->thread_scratch;
  uint8_t *inner = scratch + p->inner_offset;
  float *ring = (float *)(void *)scratch;
  float *middle = (float *)(void *)(scratch + p->middle_offset);
  const float **rows = (const float **)(void *)(scratch + p->rows_offset);
  np_fp32_depthwise_tile tile = np_fp32_depthwise_tile_for(d);
  tile.rows = rows;
  tile.out = middle;
  size_t ready = 0; /* rows before this one are in the ring, or are not needed */
  for (size_t row = first; row < last; row += p->strip) {
    tile.count = least(p->strip, last - row);
    if (expands) {
      const size_t top = row * d->strides[0]; /* counted with the pads */
      const size_t bottom = top + np_fp32_depthwise_reach(d, tile.count);
      const size_t start = top < d->pads[0] ? 0 : top - d->pads[0];
      const size_t end = bottom < d->pads[0] ? 0 : least(bottom - d->pads[0], d->height);
      if (start > ready) ready = start;
      if (end > ready) {
        expand(p, image, ready, end, ring, inner);
        ready = end;
      }
      address(p, ring, row, tile.count, rows);
    } else {
      np_fp32_depthwise_address(d, image, row, tile.count, rows);
    }
    task->depthwise(&tile);
    const size_t pixel = (number * d->out_height + row) * d->out_width;
    const size_t at = pixel * p->project.outputs;
    const float *residual = task->residual == NULL ? NULL : task->residual + at;
    np_fp32_convolution_rows(&p->project, middle, 0, tile.count, residual, task->out + at, inner);
  }
}

int np_fp32_separable(const void *params, const void *const *inputs, void *out, void *workspace,
                      np_workers *workers) {
  const struct np_fp32_separable_params *p = params;
  const struct np_fp32_depthwise_params *d = &p->depthwise;
  job task = {
      .params = p,
      .depthwise = NP_FOR_ISA(np_fp32_depthwise, d->target),
      .in = inputs[0],
      .residual = p->project.epilogue.residual == NP_RESIDUAL_NONE ? NULL : inputs[1],
      .out = out,
      .scratch = workspace,
  };
  np_parallel_for(workers, part, &task, d->batch * p->spans, NP_DISABLE_DENORMALS);
  return 0;
}
