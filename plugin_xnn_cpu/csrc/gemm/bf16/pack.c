/* How the weights of the bf16 kernels lie; see gemm/bf16/panel.h. */
#include <string.h>

#include "gemm/bf16/panel.h"

size_t np_bf16_packed_size(size_t groups, size_t outputs, size_t runs, size_t run_length) {
  const size_t pairs = runs * ((run_length + 1) / 2);
  const size_t rest = outputs % NP_BF16_COLUMNS;
  const size_t panels = outputs / NP_BF16_COLUMNS * np_bf16_panel_size(NP_BF16_COLUMNS, pairs);
  const size_t last = rest == 0 ? 0 : np_bf16_panel_size(rest, pairs);
  return groups * (panels + last) * sizeof(uint32_t);
}

void np_bf16_pack(size_t groups, size_t outputs, size_t runs, size_t run_length,
                  const void *weights, const void *bias, void *packed) {
  const uint16_t *source = weights;
  const float *added = bias;
  const size_t pairs = (run_length + 1) / 2;
  uint32_t *to = packed;
  for (size_t first = 0; first < groups * outputs;) {
    const size_t left = outputs - first % outputs; /* of the group */
    const size_t columns = left < NP_BF16_COLUMNS ? left : NP_BF16_COLUMNS;
    const size_t width = np_bf16_panel_width(columns),
                 size = np_bf16_panel_size(columns, runs * pairs);
    memset(to, 0, size * sizeof *to);
    if (added != NULL) memcpy(to, added + first, columns * sizeof *added);
    for (size_t n = 0; n < columns; n++) {
      uint32_t *column = to + width + n;
      for (size_t run = 0; run < runs; run++, source += run_length) {
        for (size_t k = 0; k < pairs; k++, column += width) {
          const uint32_t second = 2 * k + 1 < run_length ? source[2 * k + 1] : 0u;
          *column = source[2 * k] | second << 16;
        }
      }
    }
    to += size;
    first += columns;
  }
}
