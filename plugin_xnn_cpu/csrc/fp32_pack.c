/* How the weights of the fp32 kernels lie; see fp32_code.h. */
#include "fp32_code.h"

size_t np_fp32_packed_size(size_t groups, size_t outputs, size_t inputs) {
  const size_t rest = outputs % NP_FP32_COLUMNS;
  const size_t panels = outputs / NP_FP32_COLUMNS * np_fp32_panel_size(NP_FP32_COLUMNS, inputs);
  const size_t last = rest == 0 ? 0 : np_fp32_panel_size(rest, inputs);
  return groups * (panels + last) * sizeof(float);
}

void np_fp32_pack(size_t groups, size_t outputs, size_t inputs, const void *weights,
                  const void *bias, void *packed) {
  const float *source = weights, *added = bias;
  float *to = packed;
  for (size_t first = 0; first < groups * outputs;) {
    const size_t left = outputs - first % outputs; /* of the group */
    const size_t columns = left < NP_FP32_COLUMNS ? left : NP_FP32_COLUMNS;
    const size_t width = np_fp32_panel_width(columns);
    for (size_t n = 0; n < width; n++) {
      *to++ = n < columns && added != NULL ? added[first + n] : 0.0f;
    }
    for (size_t k = 0; k < inputs; k++) {
      for (size_t n = 0; n < width; n++) {
        *to++ = n < columns ? source[(first + n) * inputs + k] : 0.0f;
      }
    }
    first += columns;
  }
}
