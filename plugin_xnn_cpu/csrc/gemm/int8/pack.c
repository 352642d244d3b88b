/* How the weights of the int8 kernels lie; see gemm/int8/panel.h. */
#include "gemm/int8/panel.h"

size_t np_int8_pair_panel_size(size_t columns, size_t pairs) {
  const size_t width = np_int8_panel_width(columns);
  return (width * (sizeof(int32_t) + sizeof(float) + 2 * pairs) + 31) / 32 * 32;
}

size_t np_int8_packed_size(size_t groups, size_t outputs, size_t runs, size_t run_length) {
  const size_t pairs = runs * ((run_length + 1) / 2);
  const size_t rest = outputs % NP_INT8_NR;
  const size_t panels = outputs / NP_INT8_NR * np_int8_pair_panel_size(NP_INT8_NR, pairs);
  return groups * (panels + (rest == 0 ? 0 : np_int8_pair_panel_size(rest, pairs)));
}

/* Bias and scales of the `columns` from `first` on; others get zeros. */
static uint8_t *pack_head(const uint32_t *bias, const uint32_t *scales, size_t first,
                          size_t columns, size_t width, uint8_t *packed) {
  uint32_t head[2][NP_INT8_NR] = {{0}};
  for (size_t n = 0; n < width; n++) {
    const size_t column = width == 8 ? n : np_int8_order[n];
    if (column >= columns) continue;
    if (bias != NULL) head[0][n] = bias[first + column];
    head[1][n] = scales[first + column];
  }
  memcpy(packed, head[0], width * sizeof(uint32_t));
  memcpy(packed + width * sizeof(uint32_t), head[1], width * sizeof(uint32_t));
  return packed + 2 * width * sizeof(uint32_t);
}

void np_int8_pack(size_t groups, size_t outputs, size_t runs, size_t run_length,
                  const void *weights, const void *bias, const void *scales, void *packed) {
  const int8_t *source = weights;
  uint8_t *to = packed;
  for (size_t first = 0; first < groups * outputs;) {
    const size_t left = outputs - first % outputs; /* of the group */
    const size_t columns = left < NP_INT8_NR ? left : NP_INT8_NR;
    const size_t width = np_int8_panel_width(columns);
    to = pack_head(bias, scales, first, columns, width, to);
    for (size_t q = 0; q < runs; q++) {
      for (size_t k = 0; k < run_length; k += 2) {
        for (size_t n = 0; n < width; n++, to += 2) {
          const size_t column = width == 8 ? n : np_int8_order[n];
          const int8_t *from = source + ((first + column) * runs + q) * run_length + k;
          to[0] = column < columns ? (uint8_t)from[0] : 0;
          to[1] = column < columns && k + 1 < run_length ? (uint8_t)from[1] : 0;
        }
      }
    }
    first += columns;
    for (; (size_t)(to - (uint8_t *)packed) % 32 != 0; to++) *to = 0;
  }
}

size_t np_int8_winograd_packed_size(size_t outputs, size_t channels) {
  const size_t weights = NP_INT8_TILE * channels * NP_INT8_NR * sizeof(int16_t);
  return outputs / NP_INT8_NR * (NP_INT8_HEAD + weights);
}

/* Three weights to the four that are multiplied with a transformed row, times two. */
static void spread(const int16_t *g, size_t from, int16_t *out, size_t to) {
  const int16_t a = g[0], b = g[from], c = g[2 * from];
  out[0] = (int16_t)(2 * a);
  out[to] = (int16_t)(a + b + c);
  out[2 * to] = (int16_t)(a - b + c);
  out[3 * to] = (int16_t)(2 * c);
}

void np_int8_pack_winograd(size_t outputs, size_t channels, const void *weights, const void *bias,
                           const void *scales, void *packed) {
  const int8_t *source = weights;
  uint8_t *to = packed;
  for (size_t first = 0; first < outputs; first += NP_INT8_NR) {
    to = pack_head(bias, scales, first, NP_INT8_NR, NP_INT8_NR, to);
    int16_t *panel = (int16_t *)(void *)to;
    const size_t size = channels * NP_INT8_NR; /* of an element of the tile */
    for (size_t n = 0; n < NP_INT8_NR; n++) {
      const int8_t *kernel = source + (first + np_int8_order[n]) * 9 * channels;
      for (size_t channel = 0; channel < channels; channel++) {
        int16_t g[9], half[12], all[NP_INT8_TILE];
        for (size_t i = 0; i < 9; i++) g[i] = kernel[i * channels + channel];
        for (size_t i = 0; i < 3; i++) spread(g + 3 * i, 1, half + 4 * i, 1);
        for (size_t j = 0; j < 4; j++) spread(half + j, 4, all + j, 4);
        int16_t *place = panel + (channel / 2 * NP_INT8_NR + n) * 2 + channel % 2;
        for (size_t i = 0; i < NP_INT8_TILE; i++) place[i * size] = all[i];
      }
    }
    to += NP_INT8_TILE * size * sizeof *panel;
  }
}

size_t np_int8_depthwise_packed_size(size_t channels, size_t height, size_t width) {
  const size_t blocks = (channels + NP_INT8_NR - 1) / NP_INT8_NR;
  const size_t pairs = (height + 1) / 2 * width;
  return blocks * (NP_INT8_HEAD + pairs * NP_INT8_PAIR * sizeof(int16_t));
}

void np_int8_pack_depthwise(size_t channels, size_t height, size_t width, const void *weights,
                            const void *bias, const void *scales, const int32_t *zeros,
                            void *packed) {
  const int8_t *source = weights;
  uint8_t *to = packed;
  for (size_t first = 0; first < channels; first += NP_INT8_NR) {
    const size_t left = channels - first;
    const size_t columns = left < NP_INT8_NR ? left : NP_INT8_NR;
    to = pack_head(bias, scales, first, columns, NP_INT8_NR, to);
    for (size_t tap = 0; tap < (height + 1) / 2 * width; tap++) {
      const size_t y = tap / width * 2, x = tap % width;
      for (size_t n = 0; n < NP_INT8_NR; n++, to += 2 * sizeof(int16_t)) {
        const size_t column = np_int8_order[n];
        int16_t pair[2] = {0, 0};
        if (column < columns) {
          const int8_t *from = source + (y * width + x) * channels + first + column;
          const int32_t zero = zeros == NULL ? 0 : zeros[first + column];
          pair[0] = (int16_t)(from[0] - zero);
          if (y + 1 < height) pair[1] = (int16_t)(from[width * channels] - zero);
        }
        memcpy(to, pair, sizeof pair);
      }
    }
  }
}
