/* A depthwise convolution of float32 and the convolutions around it, in one pass. */
#include "depthwise/fp32_tile.h"
#include "gemm/fp32/panel.h"

/* out = project(depthwise(expand(in))): convolutions, of which the first one may be missing, and
 * the last one is pointwise. Images are [N, H, W, C]. The second input is the residual of
 * the last one, if any, which may be the first input too; the output may lie where it does if that
 * is added before the function, and it is not the first input.
 *
 * A thread goes over a span of output rows, a strip of them at a time: the rows of the expanded
 * image that these need, and the rows that the depthwise convolution writes, are in the
 * thread's scratch memory only. What divides each of the convolutions into tasks is not read. */
struct np_fp32_separable_params {
  struct np_fp32_convolution_params expand; /* packed is NULL where there is none */
  struct np_fp32_depthwise_params depthwise;
  struct np_fp32_convolution_params project;
  size_t span;          /* output rows */
  size_t spans;         /* of an image */
  size_t strip;         /* output rows at a time */
  size_t ring;          /* rows of the expanded image that are kept: what a strip needs */
  size_t middle_offset; /* bytes, in a thread's scratch memory: rows of the depthwise result */
  size_t rows_offset;   /* row pointers */
  size_t inner_offset;  /* scratch memory of the other convolutions */
  size_t thread_scratch;
};

/* Write rows of the expanded image from `first` to `end` into the ring. */
static void expand(const struct np_fp32_separable_params *p, const float *image, size_t first,
                   size_t end, float *ring, uint8_t *scratch) {
  const size_t row = p->depthwise.image.width * p->depthwise.image.channels;
  while (first < end) {
    const size_t slot = first % p->ring, rows = np_min(end - first, p->ring - slot);
    np_fp32_convolution_rows(&p->expand, image, first, rows, NULL, ring + slot * row, scratch);
    first += rows;
  }
}

/* Write the pointer into the ring buffer of each expanded row that output rows from `first` on read;
 * NULL for pads. */
static void fill_row_pointers(const struct np_fp32_separable_params *p, const float *ring,
                              size_t first, size_t count, const float **rows) {
  const struct np_fp32_depthwise_params *d = &p->depthwise;
  const size_t needed = np_reach(d->kernel, d->strides, d->dilations, count);
  for (size_t i = 0; i < needed; i++) {
    const size_t y = first * d->strides[0] + i; /* counted with the pads */
    const int inside = y >= d->pads[0] && y - d->pads[0] < d->image.height;
    const size_t slot = inside ? (y - d->pads[0]) % p->ring : 0;
    rows[i] = inside ? ring + slot * d->image.width * d->image.channels : NULL;
  }
}

static void part(np_job *job, size_t thread, size_t index) {
  const struct np_fp32_separable_params *p = job->params;
  const struct np_fp32_depthwise_params *d = &p->depthwise;
  const np_epilogue_plan end = np_epilogue_plan_of(&d->epilogue, NULL, d->target);
  const size_t number = index / p->spans;
  const np_range span = np_range_of(index % p->spans, p->span, d->image.out_height);
  const int expands = p->expand.packed != NULL;
  const struct np_image_sizes *given = expands ? &p->expand.geometry.image : &d->image;
  const float *image =
      (const float *)job->inputs[0] + number * given->height * given->width * given->channels;
  const int adds = p->project.epilogue.residual != NP_RESIDUAL_NONE;

  uint8_t *scratch = job->scratch + thread * p->thread_scratch;
  uint8_t *inner = scratch + p->inner_offset;
  float *ring = (float *)(void *)scratch;
  float *middle = (float *)(void *)(scratch + p->middle_offset);
  const float **rows = (const float **)(void *)(scratch + p->rows_offset);
  np_fp32_depthwise_tile tile = np_fp32_depthwise_tile_for(d, &end);
  tile.rows = rows;
  tile.out = middle;
  size_t ready = 0; /* rows before this one are in the ring, or are not needed */
  for (size_t row = span.first; row < span.end; row += p->strip) {
    if (np_cancel_check()) return;
    tile.count = np_min(p->strip, span.end - row);
    if (expands) {
      const size_t top = row * d->strides[0]; /* counted with the pads */
      const size_t bottom = top + np_reach(d->kernel, d->strides, d->dilations, tile.count);
      const size_t start = top < d->pads[0] ? 0 : top - d->pads[0];
      const size_t end = bottom < d->pads[0] ? 0 : np_min(bottom - d->pads[0], d->image.height);
      if (start > ready) ready = start;
      if (end > ready) {
        expand(p, image, ready, end, ring, inner);
        ready = end;
      }
      fill_row_pointers(p, ring, row, tile.count, rows);
    } else {
      np_fp32_depthwise_row_pointers(d, image, row, tile.count, rows);
    }
    NP_FOR_ISA(np_fp32_depthwise, d->target)(&tile);
    const size_t pixel = (number * d->image.out_height + row) * d->image.out_width;
    const size_t at = pixel * p->project.geometry.outputs;
    np_fp32_convolution_rows(&p->project, middle, 0, tile.count,
                             adds ? (const float *)job->inputs[1] + at : NULL,
                             (float *)job->out + at, inner);
  }
}

int np_fp32_separable(np_job *job) {
  const struct np_fp32_separable_params *p = job->params;
  return np_for_parts(job, part, p->depthwise.image.batch * p->spans, 0, NP_DISABLE_DENORMALS);
}
