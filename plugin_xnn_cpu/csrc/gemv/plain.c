/* GEMV and skinny GEMM for any processor: what the others compute, spelled out. */
#include <string.h>

#include "gemv/job.h"

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

static float accumulated(const np_gemv_job *job, const uint8_t *panel, size_t width, size_t row,
                         size_t n) {
  const struct np_gemv_params *p = job->params;
  const float *x = job->rows + row * p->channels;
  const int8_t *weights = (const int8_t *)panel + 4 * width;
  float sum = p->layout == NP_TABLE_F32    ? 0
              : p->layout == NP_PANELS_F16 ? half(panel + 2 * n)
                                           : number(panel + 4 * n);
  for (size_t k = 0; k < p->channels; k++) {
    const size_t at = (1 + k) * width + n;
    switch (p->layout) {
      case NP_PANELS_F32: sum += x[k] * number(panel + 4 * at); break;
      case NP_PANELS_F16: sum += x[k] * half(panel + 2 * at); break;
      case NP_PANELS_INT8: sum += x[k] * (float)weights[k * width + n]; break;
      default: sum += x[k] * number(panel + 4 * k); /* NP_TABLE_F32 */
    }
  }
  if (p->layout != NP_PANELS_INT8) return sum;
  return sum * number((const uint8_t *)weights + width * p->channels + 4 * n);
}

static void panels(const np_gemv_job *job, np_gemv_region region, size_t width, size_t first,
                   size_t last) {
  const struct np_gemv_params *p = job->params;
  for (size_t i = first; i < last && (i % 16 || !np_cancel_check()); i++) {
    const uint8_t *panel = region.packed + i * region.panel_bytes;
    const size_t column = region.column + i * width;
    for (size_t n = 0; n < width && column + n < p->outputs; n++) {
      for (size_t row = 0; row < p->rows; row++) {
        const size_t at = row * p->outputs + column + n;
        float x = accumulated(job, panel, width, row, n);
        if (job->before != NULL) x += job->before[at];
        job->out[at] = x < p->epilogue.low    ? p->epilogue.low
                       : x > p->epilogue.high ? p->epilogue.high
                                              : x;
      }
    }
  }
}

void np_gemv_plain(const np_gemv_job *job, size_t first, size_t last) {
  const struct np_gemv_params *p = job->params;
  const size_t wide = p->panels - p->narrow;
  panels(job, np_gemv_wide(p), p->width, first, np_min(last, wide));
  if (last > wide) {
    panels(job, np_gemv_narrow(p), p->narrow_width, np_max(first, wide) - wide, last - wide);
  }
}
