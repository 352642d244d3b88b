/* Depthwise convolutions of float32; see depthwise/fp32.h. */
#include "depthwise/fp32_tile.h"

static size_t block_size(size_t height, size_t width) {
  return (1 + height * width) * NP_FP32_DEPTHWISE_BLOCK;
}

size_t np_fp32_depthwise_packed_size(size_t channels, size_t height, size_t width) {
  return np_ceil_div(channels, NP_FP32_DEPTHWISE_BLOCK) * block_size(height, width) * sizeof(float);
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

np_fp32_depthwise_tile np_fp32_depthwise_tile_for(const struct np_fp32_depthwise_params *p,
                                                  const np_epilogue_plan *end) {
  return (np_fp32_depthwise_tile){
      .width = p->image.width,
      .out_width = p->image.out_width,
      .kernel = {p->kernel[0], p->kernel[1]},
      .strides = {p->strides[0], p->strides[1]},
      .dilations = {p->dilations[0], p->dilations[1]},
      .left = p->pads[1],
      .pixel = p->image.channels,
      .columns = p->image.channels,
      .packed = p->packed,
      .low = end->low,
      .high = end->high,
      .end = end->tile,
      .epilogue = end->epilogue,
  };
}

void np_fp32_depthwise_row_pointers(const struct np_fp32_depthwise_params *p, const float *image,
                                    size_t first, size_t count, const float **rows) {
  const size_t needed = np_reach(p->kernel, p->strides, p->dilations, count);
  for (size_t i = 0; i < needed; i++) {
    const size_t y = first * p->strides[0] + i; /* counted with the pads */
    const int inside = y >= p->pads[0] && y - p->pads[0] < p->image.height;
    rows[i] = inside ? image + (y - p->pads[0]) * p->image.width * p->image.channels : NULL;
  }
}

static void part(np_job *job, size_t thread, size_t index) {
  const struct np_fp32_depthwise_params *p = job->params;
  const np_epilogue_plan end = np_epilogue_plan_of(&p->epilogue, job->inputs[1], p->target);
  const struct np_image_sizes *sizes = &p->image;
  const np_convolution_part part = np_convolution_part_of(
      index, p->row_tile, p->row_tiles, sizes->out_height, p->part, p->parts, sizes->channels);
  const size_t channel = part.columns.first;
  const float *image = (const float *)job->inputs[0] + channel +
                       part.image * sizes->height * sizes->width * sizes->channels;
  const float **rows = (const float **)(void *)(job->scratch + thread * p->thread_scratch);
  const size_t row = part.image * sizes->out_height + part.rows.first;
  const size_t at = row * sizes->out_width * sizes->channels + channel;
  np_fp32_depthwise_tile tile = np_fp32_depthwise_tile_for(p, &end);
  tile.count = part.rows.count;
  tile.columns = part.columns.count;
  tile.packed += channel / NP_FP32_DEPTHWISE_BLOCK * block_size(p->kernel[0], p->kernel[1]);
  tile.out = (float *)job->out + at;
  tile.before = end.before == NULL ? NULL : end.before + at;
  tile.after = end.after == NULL ? NULL : end.after + at;
  np_fp32_depthwise_row_pointers(p, image, part.rows.first, tile.count, rows);
  tile.rows = rows;
  NP_FOR_ISA(np_fp32_depthwise, p->target)(&tile);
}

int np_fp32_depthwise(np_job *job) {
  const struct np_fp32_depthwise_params *p = job->params;
  const struct np_image_sizes *sizes = &p->image;
  const size_t outputs = sizes->out_height * sizes->out_width * sizes->channels;
  const double work =
      (double)sizes->batch * (double)outputs * (double)(p->kernel[0] * p->kernel[1]);
  return np_for_parts(job, part, sizes->batch * p->row_tiles * p->parts, work < NP_SMALL_DEPTHWISE,
                      NP_DISABLE_DENORMALS);
}
