/* How the weights of the 4-way interleaved (VNNI) layout lie; see gemm/int8/panel.h. */
#include "gemm/int8/panel.h"

size_t np_int8_vnni_panel_size(size_t columns, size_t k_groups) {
  return np_int8_vnni_panel_width(columns) * 4 * (3 + k_groups);
}

size_t np_int8_vnni_packed_size(size_t groups, size_t outputs, size_t runs, size_t run_length) {
  const size_t k_groups = runs * ((run_length + 3) / 4), rest = outputs % NP_INT8_VNNI_NR;
  const size_t whole = np_int8_vnni_panel_size(NP_INT8_VNNI_NR, k_groups);
  const size_t panels = outputs / NP_INT8_VNNI_NR * whole;
  return groups * (panels + (rest == 0 ? 0 : np_int8_vnni_panel_size(rest, k_groups)));
}

void np_int8_vnni_pack(size_t groups, size_t outputs, size_t runs, size_t run_length,
                       const void *weights, const void *bias, const void *scales, void *packed) {
  const int8_t *source = weights;
  const uint32_t *biases = bias, *factors = scales;
  const size_t k_groups = (run_length + 3) / 4;
  uint8_t *to = packed;
  for (size_t first = 0; first < groups * outputs;) {
    const size_t left = outputs - first % outputs; /* of the group */
    const size_t columns = left < NP_INT8_VNNI_NR ? left : NP_INT8_VNNI_NR;
    const size_t width = np_int8_vnni_panel_width(columns);
    const size_t size = np_int8_vnni_panel_size(columns, runs * k_groups);
    uint32_t *head = (uint32_t *)(void *)to;
    int8_t *panel = (int8_t *)(to + np_int8_vnni_head_size(columns));
    memset(to, 0, size);
    for (size_t n = 0; n < columns; n++) {
      const int8_t *from = source + (first + n) * runs * run_length;
      int32_t sum = 0;
      for (size_t q = 0; q < runs; q++) {
        for (size_t k = 0; k < run_length; k++, from++) {
          panel[((q * k_groups + k / 4) * width + n) * 4 + k % 4] = *from;
          sum += *from;
        }
      }
      head[n] = biases == NULL ? 0 : biases[first + n];
      head[width + n] = factors[first + n];
      head[2 * width + n] = (uint32_t)sum;
    }
    to += size;
    first += columns;
  }
}

static size_t block_size(size_t height, size_t width) {
  return NP_INT8_VNNI_BLOCK_HEAD + (height + 3) / 4 * width * NP_INT8_VNNI_PIXEL;
}

size_t np_int8_vnni_depthwise_packed_size(size_t channels, size_t height, size_t width) {
  return (channels + NP_INT8_VNNI_CHANNELS - 1) / NP_INT8_VNNI_CHANNELS * block_size(height, width);
}

void np_int8_vnni_pack_depthwise(size_t channels, size_t height, size_t width, const void *weights,
                                 const void *bias, const void *scales, void *packed) {
  const int8_t *source = weights;
  const uint32_t *biases = bias, *factors = scales;
  uint8_t *to = packed;
  for (size_t first = 0; first < channels; first += NP_INT8_VNNI_CHANNELS) {
    uint32_t *head = (uint32_t *)(void *)to;
    int8_t *block = (int8_t *)(to + NP_INT8_VNNI_BLOCK_HEAD);
    memset(to, 0, block_size(height, width));
    for (size_t n = 0; n < NP_INT8_VNNI_CHANNELS; n++) {
      const size_t channel = first + np_int8_vnni_channel(n);
      if (channel >= channels) continue;
      int32_t sum = 0;
      for (size_t y = 0; y < height; y++) {
        for (size_t x = 0; x < width; x++) {
          const int8_t weight = source[(y * width + x) * channels + channel];
          block[(y / 4 * width + x) * NP_INT8_VNNI_PIXEL + n * 4 + y % 4] = weight;
          sum += weight;
        }
      }
      head[n] = biases == NULL ? 0 : biases[channel];
      head[NP_INT8_VNNI_CHANNELS + n] = factors[channel];
      head[2 * NP_INT8_VNNI_CHANNELS + n] = (uint32_t)sum;
    }
    to += block_size(height, width);
  }
}
