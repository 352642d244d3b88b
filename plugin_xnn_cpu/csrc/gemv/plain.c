/* GEMV and skinny GEMM for any processor, panels of any width. Accumulators add in the order of the
 * code for an instruction set, and multiply_add rounds once: the bits are the same. */
#include <string.h>

#include "gemv/job.h"

#define LANES 4
#include "simd/f32.h"

_Static_assert(NP_GEMV_MAX_ROWS <= LANES, "a lane is a row");

static float half(const uint8_t *p) {
  uint16_t bits;
  memcpy(&bits, p, sizeof bits);
  const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  /* Subnormal ones are multiples of 2^-24. */
  if (rest < 0x400u) return np_float_of(np_bits_of((float)rest * 0x1p-24f) | sign);
  return np_float_of(sign | ((rest << 13) + (rest >= 0x7c00u ? 0x70000000u : 0x38000000u)));
}

static float number(const uint8_t *p) {
  float found;
  memcpy(&found, p, sizeof found);
  return found;
}

static float weight(const uint8_t *panel, int32_t layout, size_t width, size_t at) {
  switch (layout) {
    case NP_PANELS_F16: return half(panel + 2 * (width + at));
    case NP_PANELS_INT8: return (float)((const int8_t *)panel)[4 * width + at];
    default: return number(panel + 4 * (width + at));
  }
}

/* The accumulators of LANES rows, of which there may be fewer, of column `n` of a panel. */
static vec accumulated(const np_gemv_job *job, const uint8_t *panel, size_t width, vec acc,
                       size_t n) {
  const struct np_gemv_params *p = job->params;
  for (size_t k = 0; k < p->channels; k++) {
    vec x = zero();
    for (size_t row = 0; row < p->rows; row++) x[row] = job->rows[row * p->channels + k];
    acc = multiply_add(x, broadcast(weight(panel, p->layout, width, k * width + n)), acc);
  }
  if (p->layout != NP_PANELS_INT8) return acc;
  return acc * number(panel + (4 + p->channels) * width + 4 * n);
}

/* An element of the GEMV with the tied embedding: output `output` of a row. */
static float dot(const np_gemv_job *job, size_t row, size_t output) {
  const size_t channels = job->params->channels;
  const float *x = job->rows + row * channels;
  const float *w = (const float *)job->params->packed + output * channels;
  vec acc[SPANS] = {zero()};
  for (size_t k = 0; k < channels; k += REDUCED_LANES) {
    for (int s = 0; s < SPANS; s++) {
      const size_t at = k + (size_t)s * LANES, some = lanes_of_span(channels - k, s);
      if (some == 0) break;
      acc[s] = multiply_add(load_some(x + at, some), load_some(w + at, some), acc[s]);
    }
  }
  return sum_of_spans(acc);
}

static float clamped(const struct np_gemv_params *p, float x) {
  return x < p->epilogue.low ? p->epilogue.low : x > p->epilogue.high ? p->epilogue.high : x;
}

static void table(const np_gemv_job *job, size_t first, size_t last) {
  const struct np_gemv_params *p = job->params;
  for (size_t n = first; n < last && (n % 64 || !np_cancel_check()); n++) {
    for (size_t row = 0; row < p->rows; row++) {
      const size_t at = row * p->outputs + n;
      float x = dot(job, row, n);
      if (job->before != NULL) x += job->before[at];
      job->out[at] = clamped(p, x);
    }
  }
}

static void panels(const np_gemv_job *job, np_gemv_region region, size_t width, size_t first,
                   size_t last) {
  const struct np_gemv_params *p = job->params;
  for (size_t i = first; i < last && (i % 16 || !np_cancel_check()); i++) {
    const uint8_t *panel = region.packed + i * region.panel_bytes;
    const size_t column = region.column + i * width;
    for (size_t n = 0; n < width && column + n < p->outputs; n++) {
      vec acc = broadcast(p->layout == NP_PANELS_F16 ? half(panel + 2 * n) : number(panel + 4 * n));
      for (size_t row = 0; row < p->rows && job->before != NULL; row++) {
        acc[row] += job->before[row * p->outputs + column + n];
      }
      acc = accumulated(job, panel, width, acc, n);
      for (size_t row = 0; row < p->rows; row++) {
        job->out[row * p->outputs + column + n] = clamped(p, acc[row]);
      }
    }
  }
}

void np_gemv_plain(const np_gemv_job *job, size_t first, size_t last) {
  const struct np_gemv_params *p = job->params;
  if (p->layout == NP_TABLE_F32) {
    table(job, first, last);
    return;
  }
  const size_t wide = p->panels - p->narrow;
  panels(job, np_gemv_wide(p), p->width, first, np_min(last, wide));
  if (last > wide) {
    panels(job, np_gemv_narrow(p), p->narrow_width, np_max(first, wide) - wide, last - wide);
  }
}
