/* GEMV and skinny GEMM for any processor: what the others compute, spelled out. */
#include <string.h>

#include "gemv/job.h"

static float half(const uint8_t *p) {
  uint16_t bits;
  memcpy(&bits, p, sizeof bits);
  const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  float found;
  if (rest < 0x400u) { /* subnormal: a multiple of 2^-24 */
    found = (float)rest * 0x1p-24f;
    uint32_t all;
    memcpy(&all, &found, sizeof all);
    all |= sign;
    memcpy(&found, &all, sizeof all);
    return found;
  }
  const uint32_t exponent = rest >= 0x7c00u ? 0x70000000u : 0x38000000u;
  const uint32_t all = sign | ((rest << 13) + exponent);
  memcpy(&found, &all, sizeof all);
  return found;
}

static float number(const uint8_t *p) {
  float found;
  memcpy(&found, p, sizeof found);
  return found;
}

static float of_bytes(const np_gemv_job *job, const uint8_t *panel, size_t row, size_t n) {
  const struct np_gemv_params *p = job->params;
  const uint8_t *x = (const uint8_t *)job->rows + row * p->channels;
  const size_t fours = (p->channels + 3) / 4;
  const int8_t *weights = (const int8_t *)panel + 4 * p->width;
  const uint8_t *scales = (const uint8_t *)weights + 4 * p->width * fours;
  int32_t sum;
  memcpy(&sum, panel + 4 * n, sizeof sum);
  sum *= job->ranges[row].zero_point;
  for (size_t k = 0; k < p->channels; k++) {
    sum += (int32_t)x[k] * weights[(k / 4 * p->width + n) * 4 + k % 4];
  }
  const float product = (float)sum * job->ranges[row].scale;
  return product * number(scales + 4 * n) + number(scales + 4 * (p->width + n));
}

static float of_floats(const np_gemv_job *job, const uint8_t *panel, size_t row, size_t n) {
  const struct np_gemv_params *p = job->params;
  const float *x = (const float *)job->rows + row * p->channels;
  const size_t width = p->width;
  float sum;
  switch (p->layout) {
    case NP_PANELS_F32:
      sum = number(panel + 4 * n);
      for (size_t k = 0; k < p->channels; k++)
        sum += x[k] * number(panel + 4 * ((1 + k) * width + n));
      return sum;
    case NP_PANELS_F16:
      sum = half(panel + 2 * n);
      for (size_t k = 0; k < p->channels; k++)
        sum += x[k] * half(panel + 2 * ((1 + k) * width + n));
      return sum;
    case NP_PANELS_INT8: {
      const int8_t *weights = (const int8_t *)panel + 4 * width;
      sum = number(panel + 4 * n);
      for (size_t k = 0; k < p->channels; k++) sum += x[k] * (float)weights[k * width + n];
      return sum * number((const uint8_t *)weights + width * p->channels + 4 * n);
    }
    default: /* NP_TABLE_F32 */
      sum = 0;
      for (size_t k = 0; k < p->channels; k++) sum += x[k] * number(panel + 4 * k);
      return sum;
  }
}

void np_gemv_plain(const np_gemv_job *job, size_t first, size_t last) {
  const struct np_gemv_params *p = job->params;
  for (size_t i = first; i < last; i++) {
    const uint8_t *panel = (const uint8_t *)p->packed + i * p->panel_bytes;
    for (size_t n = 0; n < p->width && i * p->width + n < p->outputs; n++) {
      for (size_t row = 0; row < p->rows; row++) {
        const size_t at = row * p->outputs + i * p->width + n;
        float x = p->layout == NP_PANELS_INT8_BY_4 ? of_bytes(job, panel, row, n)
                                                   : of_floats(job, panel, row, n);
        if (job->before != NULL) x += job->before[at];
        job->out[at] = x < p->epilogue.low    ? p->epilogue.low
                       : x > p->epilogue.high ? p->epilogue.high
                                              : x;
      }
    }
  }
}
