/* The micro-kernels of the 4-way interleaved layout for any processor. */
#include <math.h>

#include "gemm/int8/panel.h"

NP_INLINE int8_t narrow(int32_t sum, float scale, np_int8_range range) {
  const float least = (float)(range.low - range.zero), most = (float)(range.high - range.zero);
  float x = (float)sum * scale;
  x = x < least ? least : x > most ? most : x;
  return (int8_t)((int32_t)rintf(x) + range.zero);
}

NP_INLINE int8_t with_other(const np_int8_panel *p, int8_t own, int8_t other) {
  const struct np_int8_residual *sum = p->sum;
  const int8_t added = (int8_t)(other ^ p->other_xor);
  const int32_t x = (own * sum->own + added * sum->other + sum->bias) >> sum->shift;
  const int32_t moved = x + sum->zero;
  return (int8_t)(moved < sum->low ? sum->low : moved > sum->high ? sum->high : moved);
}

/* A row and a panel of `width` columns, of which `columns` are wanted from `first` on. */
static void multiply_row(const np_int8_panel *p, size_t row, const uint8_t *panel, size_t width,
                         size_t first, size_t columns) {
  const uint32_t *bias = (const uint32_t *)(const void *)panel;
  const float *scales = (const float *)(const void *)panel + width;
  const uint32_t *weight_sums = bias + 2 * width;
  const int8_t *weights = (const int8_t *)(bias + 3 * width);
  const int floats = p->kind == NP_INT8_TO_FLOAT;
  const uint32_t zero = (uint32_t)(floats ? p->row_zeros[row] : p->zero);
  uint32_t acc[NP_INT8_VNNI_NR] = {0}; /* unsigned: what leaves 32 bits may come back */
  for (size_t q = 0; q < p->run_count; q++) {
    const uint8_t *x = (const uint8_t *)p->image + p->pixels[row] + p->runs[q];
    for (size_t k = 0; k < p->groups; k++, x += 4, weights += 4 * width) {
      for (size_t n = 0; n < width; n++) {
        const int8_t *w = weights + 4 * n;
        acc[n] += (uint32_t)(x[0] * w[0] + x[1] * w[1] + x[2] * w[2] + x[3] * w[3]);
      }
    }
  }
  for (size_t n = 0; n < columns; n++) {
    uint32_t whole = acc[n] - zero * weight_sums[n] + (floats ? 0 : bias[n]);
    if (p->row_sums != NULL) {
      whole -= (uint32_t)p->row_sums[row] * (uint32_t)p->weight_zeros[first + n];
    }
    const int32_t sum = (int32_t)whole;
    const size_t place = row * p->out_stride + first + n;
    if (p->raw) {
      ((int32_t *)p->out)[place] = sum;
      continue;
    }
    if (!floats) {
      const int8_t own = narrow(sum, scales[n], p->range);
      const int8_t byte = p->sum == NULL ? own : with_other(p, own, p->other[place]);
      ((int8_t *)p->out)[place] = (int8_t)(byte ^ p->out_xor);
      continue;
    }
    float added;
    memcpy(&added, &bias[n], sizeof added);
    float x = fmaf((float)sum * p->row_scales[row], scales[n], added);
    x = x < p->low ? p->low : x > p->high ? p->high : x;
    ((float *)p->out)[place] = x;
  }
}

static void multiply(const np_int8_panel *p) {
  const uint8_t *panel = p->panel;
  for (size_t first = 0; first < p->columns; first += NP_INT8_VNNI_NR) {
    const size_t left = p->columns - first;
    const size_t columns = left < NP_INT8_VNNI_NR ? left : NP_INT8_VNNI_NR;
    const size_t width = np_int8_vnni_panel_width(columns);
    for (size_t row = 0; row < p->count; row++) {
      multiply_row(p, row, panel, width, first, columns);
    }
    panel += np_int8_vnni_panel_size(columns, p->run_count * p->groups);
  }
}

static void upcast(const int8_t *in, size_t count, int32_t zero, void *wide) {
  uint8_t *out = wide;
  (void)zero;
  for (size_t i = 0; i < count; i++) out[i] = (uint8_t)in[i] ^ 0x80;
}

static float quantize(const float *row, size_t count, void *wide, int32_t *zero) {
  uint8_t *out = wide;
  float low, high;
  *zero = 0;
  if (!np_int8_extremes_loop(row, count, &low, &high)) {
    memset(out, 0, count);
    return __builtin_nanf("");
  }
  const np_int8_row_range range = np_int8_range_of(low, high);
  *zero = (int32_t)range.zero + 128;
  const float least = (float)-*zero, most = (float)(255 - *zero);
  for (size_t i = 0; i < count; i++) {
    float x = rintf(row[i] * range.inverse);
    x = x < least ? least : x > most ? most : x;
    out[i] = (uint8_t)((int32_t)x + *zero);
  }
  return 1.0f / range.inverse;
}

static void interleave(const int8_t *const *rows, size_t stride, size_t count, size_t columns,
                       int32_t zero, uint8_t out_xor, uint8_t *out) {
  for (size_t x = 0; x < count; x++, out += NP_INT8_VNNI_PIXEL) {
    for (size_t n = 0; n < NP_INT8_VNNI_CHANNELS; n++) {
      const size_t channel = np_int8_vnni_channel(n);
      for (size_t i = 0; i < 4; i++) {
        const int inside = rows[i] != NULL && channel < columns;
        out[4 * n + i] = inside ? (uint8_t)rows[i][x * stride + channel] ^ out_xor : (uint8_t)zero;
      }
    }
  }
}

static void depthwise_vnni(const np_int8_vnni_depthwise_tile *b) {
  const uint32_t *bias = (const uint32_t *)(const void *)b->head;
  const float *scales = (const float *)(const void *)(bias + NP_INT8_VNNI_CHANNELS);
  const uint32_t *weight_sums = bias + 2 * NP_INT8_VNNI_CHANNELS;
  for (size_t i = 0; i < b->count; i++) {
    for (size_t n = 0; n < NP_INT8_VNNI_CHANNELS; n++) {
      const size_t channel = np_int8_vnni_channel(n);
      if (channel >= b->columns) continue;
      const int8_t *w = (const int8_t *)b->head + NP_INT8_VNNI_BLOCK_HEAD + 4 * n;
      const size_t lower = b->lower ? 1 : 0;
      uint32_t sum = bias[n] - (uint32_t)b->zero * weight_sums[n];
      for (size_t j = 0; j < b->k_groups; j++) {
        const uint8_t *x = b->image + i * b->step + j * b->group_stride + 4 * n;
        for (size_t k = 0; k < b->width; k++, x += b->column_stride, w += NP_INT8_VNNI_PIXEL) {
          for (size_t y = 0; y + lower < 4; y++) sum += (uint32_t)(x[y + lower] * w[y]);
        }
      }
      const int8_t byte = narrow((int32_t)sum, scales[n], b->range);
      b->out[i * b->out_stride + channel] = (int8_t)(byte ^ b->out_xor);
    }
  }
}

const np_int8_micro_kernels np_int8_vnni_plain = {
    .element = 1,
    .group = 4,
    .columns = NP_INT8_VNNI_NR,
    .most = 2 * NP_INT8_VNNI_NR,
    .panel_size = np_int8_vnni_panel_size,
    .packed_size = np_int8_vnni_packed_size,
    .multiply = multiply,
    .upcast = upcast,
    .quantize = quantize,
    .interleave = interleave,
    .depthwise_vnni = depthwise_vnni,
};
