/* Convolutions of float32 by 3 x 3 with fewer multiplications (Winograd, F(m x m, 3 x 3)).
 *
 * A tile of m x m outputs, m being 2 or 4, takes (m + 2)² multiplications for each channel in place
 * of 9 m²: inputs d and weights g are transformed, multiplied element by element, and transformed
 * back, A [ (G g G') * (B d B') ] A'. Along an axis two polynomials are multiplied: the result is
 * known by its values at m + 2 points, infinity among them: 0, 1, -1 for m = 2, and 0, a, -a, b, -b
 * for m = 4, a being NP_WINOGRAD_NEAR and b NP_WINOGRAD_FAR.
 *
 * B = | a²b²   0    -(a²+b²)   0     1  0 |    A = | 1  1    1   1    1   0 | |  0   -ab²     -b²
 * a     1  0 |        | 0  a   -a   b   -b   0 | |  0    ab²     -b²     -a     1  0 |        | 0
 * a²   a²  b²   b²  0 | |  0   -a²b     -a²      b     1  0 |        | 0  a³  -a³  b³  -b³  1 | |
 * 0    a²b     -a²     -b     1  0 | |  0    a²b²     0   -(a²+b²)  0  1 |
 *
 * A block of tiles is transformed; then, for each element of a tile, its channels are multiplied
 * with a panel of weights as rows and a matrix, by the code that multiplies output pixels; and what
 * comes of a panel is transformed back, ended, and written. Both lie in the L2 cache meanwhile. */
#include <math.h>

#include "winograd/fp32_tile.h"

/* A tile of an image. */
typedef struct {
  size_t image;
  size_t y; /* of its first output */
  size_t x;
} corner;

static const np_winograd_code *code_for(size_t lanes, int32_t target) {
  const int32_t isa = np_isa_for(target);
#if NP_HAS_AVX512
  if (lanes == 16 && isa >= NP_TARGET_AVX512) return &np_winograd_avx512;
#endif
#if NP_HAS_AVX2
  if (isa >= NP_TARGET_AVX2) return &np_winograd_avx2;
#endif
  (void)lanes, (void)isa;
  return &np_winograd_plain;
}

static corner corner_of(const struct np_fp32_winograd_params *p, size_t number) {
  const size_t row = number / p->tiles[1], column = number % p->tiles[1];
  return (corner){row / p->tiles[0], row % p->tiles[0] * p->tile, column * p->tile};
}

/* Write the pointer of each pixel of an input tile; those outside of the image point to `zeros`. */
static void fill_pixel_pointers(const struct np_fp32_winograd_params *p, const float *in, corner at,
                                const float *zeros, const float **pixels) {
  const float *image = in + at.image * p->image.height * p->image.width * p->image.channels;
  for (size_t i = 0; i < p->tile + 2; i++) {
    const size_t y = at.y + i - p->pads[0]; /* huge where it is above the image */
    for (size_t j = 0; j < p->tile + 2; j++) {
      const size_t x = at.x + j - p->pads[1];
      const int inside = y < p->image.height && x < p->image.width;
      *pixels++ = inside ? image + (y * p->image.width + x) * p->image.channels : zeros;
    }
  }
}

/* Transform a tile's accumulators of a panel back, and end them. */
static void finish(const struct np_fp32_winograd_params *p, const np_epilogue_plan *end,
                   np_winograd_tile *tile, float *out, corner at, size_t column) {
  const size_t pixel = (at.image * p->image.out_height + at.y) * p->image.out_width + at.x;
  const size_t place = pixel * p->outputs + column;
  tile->out = out + place;
  tile->residual = end->before == NULL ? NULL : end->before + place;
  tile->rows = np_min(p->image.out_height - at.y, p->tile);
  tile->pixels = np_min(p->image.out_width - at.x, p->tile);
  code_for(p->lanes, p->target)->finish[p->tile == 4](tile);
  if (end->tile == NULL) return;
  for (size_t i = 0; i < tile->rows; i++) {
    const size_t row = i * tile->row_stride;
    const float *after = end->after == NULL ? NULL : end->after + place + row;
    end->tile(&end->epilogue, tile->out + row, p->outputs, after, p->outputs, tile->pixels,
              tile->columns);
  }
}

static void part(np_job *job, size_t thread, size_t index) {
  static const float no_bias[NP_FP32_MAX_NR] = {0};
  const struct np_fp32_winograd_params *p = job->params;
  const np_winograd_code *code = code_for(p->lanes, p->target);
  np_fp32_multiply *multiply = np_fp32_multiply_for(p->lanes, p->target);
  const np_epilogue_plan end = np_epilogue_plan_of(&p->epilogue, job->inputs[1], p->target);
  const size_t elements = (p->tile + 2) * (p->tile + 2);
  const size_t side = index % p->parts, block = index / p->parts;
  const size_t total = p->image.batch * p->tiles[0] * p->tiles[1];
  const size_t first = block * total / p->blocks;
  const size_t count = (block + 1) * total / p->blocks - first;
  uint8_t *scratch = job->scratch + thread * p->thread_scratch;
  float *tiles = (float *)scratch;
  float *acc = (float *)(scratch + p->acc_offset);
  float *zeros = (float *)(scratch + p->zeros_offset);
  int32_t *rows = (int32_t *)(scratch + p->rows_offset);

  memset(zeros, 0, p->image.channels * sizeof *zeros);
  for (size_t i = 0; i < count; i++) {
    const float *pixels[NP_WINOGRAD_MOST_ELEMENTS];
    fill_pixel_pointers(p, job->inputs[0], corner_of(p, first + i), zeros, pixels);
    code->transform[p->tile == 4](pixels, p->image.channels, tiles + i * p->row_stride,
                                  p->element_stride);
    rows[i] = (int32_t)(i * p->row_stride);
  }

  const int32_t run = 0;
  np_fp32_panel panel = {
      .pixels = rows,
      .row_stride = p->row_stride,
      .count = count,
      .runs = &run,
      .run_count = 1,
      .run_length = p->image.channels,
      .bias = no_bias,
      .lanes = p->lanes,
      .low = -INFINITY,
      .high = INFINITY,
  };
  np_winograd_tile tile = {
      .stride = p->acc_stride,
      .row_stride = p->image.out_width * p->outputs,
      .pixel_stride = p->outputs,
      .low = end.low,
      .high = end.high,
  };
  const size_t panels = np_fp32_panels(p->lanes, p->outputs);
  for (size_t n = side * panels / p->parts; n < (side + 1) * panels / p->parts; n++) {
    const np_fp32_panel_extent at =
        np_fp32_panel_at(p->lanes, p->outputs, elements * p->image.channels, n);
    const float *packed = (const float *)p->packed + at.offset;
    panel.columns = panel.out_stride = at.width;
    panel.weights = packed + at.width;
    for (size_t i = 0; i < elements; i++) {
      panel.image = tiles + i * p->element_stride;
      panel.out = acc + i * p->acc_stride;
      panel.prefetch = panel.weights + at.width * p->image.channels;
      multiply(&panel);
      panel.weights = panel.prefetch;
    }
    tile.bias = packed;
    tile.columns = at.columns;
    for (size_t i = 0; i < count; i++) {
      tile.acc = acc + i * at.width;
      finish(p, &end, &tile, job->out, corner_of(p, first + i), at.first);
    }
  }
}

int np_fp32_winograd(np_job *job) {
  const struct np_fp32_winograd_params *p = job->params;
  const double tiles = (double)p->image.batch * (double)(p->tiles[0] * p->tiles[1]);
  const double elements = (double)((p->tile + 2) * (p->tile + 2));
  const double work = tiles * elements * (double)p->outputs * (double)p->image.channels;
  return np_for_parts(job, part, p->blocks * p->parts, work < NP_SMALL_FLOAT32,
                      NP_DISABLE_DENORMALS);
}
