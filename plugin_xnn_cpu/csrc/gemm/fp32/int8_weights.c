/* GEMM of float32 rows with a matrix of int8.
 *
 * XNNPACK's kernels upcast each weight again for every seven rows. Here that is done once for a
 * tile of rows, and the kernels of float32 multiply. */
#include <math.h>
#include <string.h>

#include "gemm/fp32/panel.h"

/* out = clamp(row · matrix + bias, low, high), of a matrix that lies as NP_PANELS_INT8 says. Panels
 * that lie one after the other are upcast together, a part of the inputs at a time, into the scratch
 * memory of a thread, and all rows of a row tile are multiplied with them there. Accumulators are
 * scaled at the end, as those of GEMV and of XNNPACK's kernels: a row has the same bits as there. */
struct np_gemm_int8_weights_params {
  const void *packed;
  size_t rows;
  size_t channels;
  size_t outputs;
  size_t width; /* of a panel: a multiple of `lanes` */
  size_t lanes; /* columns that are upcast at a time: 16 or 8 */
  size_t panel_bytes;
  size_t together; /* panels */
  size_t depth;    /* inputs of a part */
  size_t row_tile; /* rows */
  size_t parts;    /* that the panels are divided into, for threads */
  float low;
  float high;
  int32_t target;        /* NP_TARGET_* */
  size_t bias_offset;    /* bytes, in a thread's scratch memory, which upcast weights begin */
  size_t scales_offset;
  size_t pixels_offset;  /* where rows start */
  size_t thread_scratch; /* bytes */
};

#define MOST_LANES 16

NP_INLINE void upcast_lanes(const int8_t *restrict weights, size_t width, size_t inputs,
                            float *restrict out, size_t stride, const size_t lanes) {
  for (size_t k = 0; k < inputs; k++, weights += width, out += stride) {
    for (size_t n = 0; n < lanes; n++) out[n] = (float)weights[n];
  }
}

/* Weights of some inputs of `lanes` columns, `width` apart. */
NP_MULTIVERSIONED(void, upcast,
                  (const int8_t *restrict weights, size_t width, size_t inputs,
                   float *restrict out, size_t stride, size_t lanes),
                  (weights, width, inputs, out, stride, lanes)) {
  if (lanes == MOST_LANES) {
    upcast_lanes(weights, width, inputs, out, stride, MOST_LANES);
  } else {
    upcast_lanes(weights, width, inputs, out, stride, MOST_LANES / 2);
  }
}

/* Scale and clamp accumulators. */
NP_MULTIVERSIONED(void, finish_rows,
                  (float *restrict out, size_t stride, size_t rows, size_t columns,
                   const float *restrict scales, float low, float high),
                  (out, stride, rows, columns, scales, low, high)) {
  for (size_t r = 0; r < rows; r++, out += stride) {
    for (size_t n = 0; n < columns; n++) {
      const float x = out[n] * scales[n], above = x < low ? low : x;
      out[n] = above > high ? high : above;
    }
  }
}

/* Upcast `inputs` inputs of `stride` columns of the panels from `first` on; copy their biases over
 * scales, and scales. */
static void upcast_panels(const struct np_gemm_int8_weights_params *p, size_t first, size_t start,
                          size_t inputs, size_t stride, float *out, float *bias, float *scale) {
  for (size_t column = 0; column < stride; column += p->lanes) {
    const size_t within = column % p->width;
    const uint8_t *panel =
        (const uint8_t *)p->packed + (first + column / p->width) * p->panel_bytes;
    const float *added = (const float *)panel + within; /* over the scale */
    const int8_t *weights = (const int8_t *)(panel + p->width * sizeof *added);
    const float *scales = (const float *)(weights + p->width * p->channels) + within;
    upcast(weights + start * p->width + within, p->width, inputs, out + column, stride, p->lanes);
    memcpy(bias + column, added, p->lanes * sizeof *bias);
    memcpy(scale + column, scales, p->lanes * sizeof *scale);
  }
}

/* A row tile, with some of the panels. */
static void part(np_job *job, size_t thread, size_t index) {
  static const int32_t runs[1] = {0};
  const struct np_gemm_int8_weights_params *p = job->params;
  np_fp32_multiply *multiply = np_fp32_multiply_for(p->lanes, p->target);
  const np_range rows = np_range_of(index / p->parts, p->row_tile, p->rows);
  const size_t side = index % p->parts, panels = np_ceil_div(p->outputs, p->width);
  const size_t groups = np_ceil_div(panels, p->together);
  const size_t first = side * groups / p->parts * p->together;
  const size_t last = np_min((side + 1) * groups / p->parts * p->together, panels);
  uint8_t *scratch = job->scratch + thread * p->thread_scratch;
  float *weights = (float *)scratch, *bias = (float *)(scratch + p->bias_offset);
  float *scales = (float *)(scratch + p->scales_offset);
  int32_t *pixels = (int32_t *)(scratch + p->pixels_offset);
  for (size_t r = 0; r < rows.count; r++) pixels[r] = (int32_t)(r * p->channels);
  for (size_t start = 0; start < p->channels; start += p->depth) {
    const size_t left = p->channels - start;
    const int ends = left <= p->depth;
    for (size_t n = first; n < last; n += p->together) {
      if (np_cancel_check()) return;
      const size_t end = np_min(n + p->together, last);
      const size_t column = n * p->width;
      const size_t columns = np_min(end * p->width, p->outputs) - column;
      /* Code for few columns has rows of weights of as many registers as it needs. */
      const size_t stride = np_ceil_div(columns, p->lanes) * p->lanes;
      const size_t inputs = ends ? left : p->depth;
      float *out = (float *)job->out + rows.first * p->outputs + column;
      upcast_panels(p, n, start, inputs, stride, weights, bias, scales);
      const np_fp32_panel panel = {
          .image = (const float *)job->inputs[0] + rows.first * p->channels + start,
          .pixels = pixels,
          .row_stride = p->channels,
          .count = rows.count,
          .runs = runs,
          .run_count = 1,
          .run_length = inputs,
          .weights = weights,
          .prefetch = weights, /* they are near already */
          .bias = start == 0 ? bias : NULL,
          .columns = columns,
          .lanes = p->lanes,
          .out = out,
          .out_stride = p->outputs,
          .low = -INFINITY,
          .high = INFINITY,
      };
      multiply(&panel);
      if (ends) finish_rows(out, p->outputs, rows.count, columns, scales, p->low, p->high);
    }
  }
}

int np_gemm_int8_weights(np_job *job) {
  const struct np_gemm_int8_weights_params *p = job->params;
  const double work = (double)p->rows * (double)p->channels * (double)p->outputs;
  return np_for_parts(job, part, np_ceil_div(p->rows, p->row_tile) * p->parts,
                      work < NP_SMALL_FLOAT32, NP_DISABLE_DENORMALS);
}
