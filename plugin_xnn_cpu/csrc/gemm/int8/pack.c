/* How the weights of the int8 kernels lie; see gemm/int8/panel.h. */
#include "gemm/int8/panel.h"

/* What differs between the layouts of a K-group of 2 and of 4. */
typedef struct {
  size_t group;
  size_t columns; /* of a panel; half as many of the last one where these suffice */
  size_t heads;   /* rows of 32 bits before the weights: bias, scales, totals of columns for VNNI */
  size_t alignment;
  size_t channels; /* of a depthwise block */
  size_t element;  /* bytes of a depthwise weight */
} layout;

static layout layout_of(size_t group) {
  return group == 4 ? (layout){4, NP_INT8_VNNI_NR, 3, 64, NP_INT8_VNNI_CHANNELS, sizeof(int8_t)}
                    : (layout){2, NP_INT8_NR, 2, 32, NP_INT8_NR, sizeof(int16_t)};
}

static size_t panel_width(const layout *l, size_t columns) {
  return columns > l->columns / 2 ? l->columns : l->columns / 2;
}

static size_t panel_size(const layout *l, size_t columns, size_t k_groups) {
  const size_t bytes = panel_width(l, columns) * (4 * l->heads + l->group * k_groups);
  return np_ceil_div(bytes, l->alignment) * l->alignment;
}

size_t np_int8_panel_size(size_t group, size_t columns, size_t k_groups) {
  const layout l = layout_of(group);
  return panel_size(&l, columns, k_groups);
}

size_t np_int8_packed_size(size_t group, size_t groups, size_t outputs, size_t runs,
                           size_t run_length) {
  const layout l = layout_of(group);
  const size_t k_groups = runs * np_ceil_div(run_length, group), rest = outputs % l.columns;
  const size_t panels = outputs / l.columns * panel_size(&l, l.columns, k_groups);
  return groups * (panels + (rest == 0 ? 0 : panel_size(&l, rest, k_groups)));
}

/* Column n of a head: its bias, its scale, and the sum of its weights where there is room. */
static void pack_head(const layout *l, void *head, size_t width, size_t n, const uint32_t *bias,
                      const uint32_t *scales, size_t column, int32_t sum) {
  uint32_t *to = (uint32_t *)head + n;
  if (bias != NULL) to[0] = bias[column];
  to[width] = scales[column];
  if (l->heads > 2) to[2 * width] = (uint32_t)sum;
}

/* Column n of a panel of `width`: its weights, in K-groups of `group`, a constant. Returns their sum. */
NP_INLINE int32_t pack_column(int8_t *panel, size_t width, size_t n, const int8_t *from,
                              size_t runs, size_t run_length, const size_t group) {
  int8_t *to = panel + n * group;
  int32_t sum = 0;
  for (size_t q = 0; q < runs; q++) {
    for (size_t k = 0; k < run_length; k += group, to += width * group) {
      const size_t count = np_min(group, run_length - k);
      for (size_t i = 0; i < count; i++, from++) {
        to[i] = *from;
        sum += *from;
      }
    }
  }
  return sum;
}

void np_int8_pack(size_t group, size_t groups, size_t outputs, size_t runs, size_t run_length,
                  const void *weights, const void *bias, const void *scales, void *packed) {
  const layout l = layout_of(group);
  const size_t k_groups = runs * np_ceil_div(run_length, group);
  uint8_t *to = packed;
  for (size_t first = 0; first < groups * outputs;) {
    const size_t columns = np_min(outputs - first % outputs, l.columns); /* of the group */
    const size_t width = panel_width(&l, columns), size = panel_size(&l, columns, k_groups);
    int8_t *panel = (int8_t *)to + 4 * l.heads * width;
    memset(to, 0, size);
    for (size_t n = 0; n < width; n++) {
      const size_t column = width == NP_INT8_NR && group == 2 ? np_int8_order[n] : n;
      if (column >= columns) continue;
      const int8_t *from = (const int8_t *)weights + (first + column) * runs * run_length;
      const int32_t sum = group == 4
                              ? pack_column(panel, width, n, from, runs, run_length, 4)
                              : pack_column(panel, width, n, from, runs, run_length, 2);
      pack_head(&l, to, width, n, bias, scales, first + column, sum);
    }
    to += size;
    first += columns;
  }
}

static size_t block_size(const layout *l, size_t height, size_t width) {
  const size_t weights = np_ceil_div(height, l->group) * l->group * width * l->element;
  return l->channels * (4 * l->heads + weights);
}

size_t np_int8_depthwise_packed_size(size_t group, size_t channels, size_t height, size_t width) {
  const layout l = layout_of(group);
  return np_ceil_div(channels, l.channels) * block_size(&l, height, width);
}

void np_int8_pack_depthwise(size_t group, size_t channels, size_t height, size_t width,
                            const void *weights, const void *bias, const void *scales,
                            const int32_t *zeros, void *packed) {
  const layout l = layout_of(group);
  uint8_t *to = packed;
  for (size_t first = 0; first < channels; first += l.channels) {
    uint8_t *block = to + 4 * l.heads * l.channels;
    memset(to, 0, block_size(&l, height, width));
    for (size_t n = 0; n < l.channels; n++) {
      const size_t channel = first + (group == 4 ? np_int8_vnni_channel(n) : np_int8_order[n]);
      if (channel >= channels) continue;
      const int32_t zero = zeros == NULL ? 0 : zeros[channel];
      int32_t sum = 0;
      for (size_t tap = 0; tap < height * width; tap++) {
        const size_t y = tap / width, row = y / group * width + tap % width;
        const size_t at = (row * l.channels + n) * group + y % group;
        const int32_t weight = ((const int8_t *)weights)[tap * channels + channel] - zero;
        if (group == 4) {
          ((int8_t *)block)[at] = (int8_t)weight;
        } else {
          ((int16_t *)(void *)block)[at] = (int16_t)weight;
        }
        sum += weight;
      }
      pack_head(&l, to, l.channels, n, bias, scales, channel, sum);
    }
    to += block_size(&l, height, width);
  }
}

size_t np_int8_winograd_packed_size(size_t outputs, size_t channels) {
  const size_t weights = NP_INT8_TILE * channels * NP_INT8_NR * sizeof(int16_t);
  return outputs / NP_INT8_NR * (NP_INT8_HEAD + weights);
}

/* Three weights to the four that are multiplied with a transformed row, times two. */
static void transform(const int16_t *g, size_t from, int16_t *out, size_t to) {
  const int16_t a = g[0], b = g[from], c = g[2 * from];
  out[0] = (int16_t)(2 * a);
  out[to] = (int16_t)(a + b + c);
  out[2 * to] = (int16_t)(a - b + c);
  out[3 * to] = (int16_t)(2 * c);
}

void np_int8_pack_winograd(size_t outputs, size_t channels, const void *weights, const void *bias,
                           const void *scales, void *packed) {
  const layout l = layout_of(2);
  const size_t size = channels * NP_INT8_NR; /* of an element of the tile */
  uint8_t *to = packed;
  for (size_t first = 0; first < outputs; first += NP_INT8_NR) {
    int16_t *panel = (int16_t *)(void *)(to + NP_INT8_HEAD);
    memset(to, 0, NP_INT8_HEAD);
    for (size_t n = 0; n < NP_INT8_NR; n++) {
      const size_t column = first + np_int8_order[n];
      const int8_t *kernel = (const int8_t *)weights + column * 9 * channels;
      for (size_t channel = 0; channel < channels; channel++) {
        int16_t g[9], half[12], all[NP_INT8_TILE];
        for (size_t i = 0; i < 9; i++) g[i] = kernel[i * channels + channel];
        for (size_t i = 0; i < 3; i++) transform(g + 3 * i, 1, half + 4 * i, 1);
        for (size_t j = 0; j < 4; j++) transform(half + j, 4, all + j, 4);
        int16_t *place = panel + (channel / 2 * NP_INT8_NR + n) * 2 + channel % 2;
        for (size_t i = 0; i < NP_INT8_TILE; i++) place[i * size] = all[i];
      }
      pack_head(&l, to, NP_INT8_NR, n, bias, scales, column, 0);
    }
    to += NP_INT8_HEAD + NP_INT8_TILE * size * sizeof *panel;
  }
}
