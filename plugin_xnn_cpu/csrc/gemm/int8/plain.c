/* The int8 GEMM micro-kernels for any processor: what the others compute, spelled out. */
#include <math.h>

#include "gemm/int8/panel.h"

NP_INLINE int8_t narrow(int32_t sum, float scale, np_int8_range range) {
  const float least = (float)(range.low - range.zero), most = (float)(range.high - range.zero);
  float x = (float)sum * scale;
  x = x < least ? least : x > most ? most : x;
  return (int8_t)((int32_t)rintf(x) + range.zero);
}

static void multiply_row(const np_int8_panel *p, size_t row, const size_t width) {
  const int32_t *bias = (const int32_t *)p->panel;
  const float *float_bias = (const float *)p->panel;
  const float *scales = (const float *)p->panel + width;
  const int8_t *weights = (const int8_t *)(scales + width);
  const int floats = p->kind == NP_INT8_TO_FLOAT;
  uint32_t acc[NP_INT8_NR]; /* unsigned: what leaves 32 bits on its way may come back */
  for (size_t n = 0; n < width; n++) acc[n] = floats ? 0 : (uint32_t)bias[n];
  for (size_t q = 0; q < p->run_count; q++) {
    const int16_t *x = (const int16_t *)p->image + p->pixels[row] + p->runs[q];
    for (size_t k = 0; k < p->groups; k++, weights += 2 * width) {
      for (size_t n = 0; n < width; n++) {
        acc[n] += (uint32_t)(x[2 * k] * weights[2 * n] + x[2 * k + 1] * weights[2 * n + 1]);
      }
    }
  }
  if (p->row_sums != NULL) {
    const uint32_t given = (uint32_t)p->row_sums[row];
    for (size_t n = 0; n < width; n++) acc[n] -= given * (uint32_t)p->weight_zeros[n];
  }
  for (size_t n = 0; n < width; n++) {
    const size_t column = width == 8 ? n : np_int8_order[n];
    if (column >= p->columns) continue;
    const int32_t sum = (int32_t)acc[n];
    if (p->raw) {
      ((int32_t *)p->out)[row * p->out_stride + column] = sum;
      continue;
    }
    if (!floats) {
      ((int8_t *)p->out)[row * p->out_stride + column] = narrow(sum, scales[n], p->range);
      continue;
    }
    float x = fmaf((float)sum * p->row_scales[row], scales[n], float_bias[n]);
    x = x < p->low ? p->low : x > p->high ? p->high : x;
    ((float *)p->out)[row * p->out_stride + column] = x;
  }
}

/* Accumulators of a panel of int16 weights. */
static void sum_row(const np_int8_panel *p, size_t row) {
  const int16_t *w = (const int16_t *)p->panel;
  uint32_t acc[NP_INT8_NR] = {0};
  for (size_t q = 0; q < p->run_count; q++) {
    const int16_t *x = (const int16_t *)p->image + p->pixels[row] + p->runs[q];
    for (size_t k = 0; k < p->groups; k++, w += 2 * NP_INT8_NR) {
      for (size_t n = 0; n < NP_INT8_NR; n++) {
        acc[n] += (uint32_t)(x[2 * k] * w[2 * n] + x[2 * k + 1] * w[2 * n + 1]);
      }
    }
  }
  memcpy((int32_t *)p->out + row * NP_INT8_NR, acc, sizeof acc);
}

static void multiply(const np_int8_panel *p) {
  if (p->kind == NP_INT8_TO_INT32) {
    for (size_t row = 0; row < p->count; row++) sum_row(p, row);
    return;
  }
  const size_t width = np_int8_panel_width(p->columns);
  for (size_t row = 0; row < p->count; row++) multiply_row(p, row, width);
}

static void depthwise(const np_int8_depthwise_tile *b) {
  const int32_t *bias = (const int32_t *)b->head;
  const float *scales = (const float *)b->head + NP_INT8_NR;
  for (size_t i = 0; i < b->count; i++) {
    uint32_t acc[NP_INT8_NR];
    for (size_t n = 0; n < NP_INT8_NR; n++) acc[n] = (uint32_t)bias[n];
    const int16_t *w = b->weights;
    for (size_t j = 0; j < b->pairs; j++) {
      const int16_t *x = b->image + i * b->step + j * b->pair_stride;
      for (size_t k = 0; k < b->width; k++, x += b->column_stride, w += NP_INT8_PAIR) {
        for (size_t n = 0; n < NP_INT8_NR; n++) {
          acc[n] += (uint32_t)(x[2 * n] * w[2 * n] + x[2 * n + 1] * w[2 * n + 1]);
        }
      }
    }
    for (size_t n = 0; n < NP_INT8_NR; n++) {
      const size_t column = np_int8_order[n];
      if (column >= b->columns) continue;
      b->out[i * b->out_stride + column] = narrow((int32_t)acc[n], scales[n], b->range);
    }
  }
}

static void upcast(const int8_t *in, size_t count, int32_t zero, void *wide) {
  int16_t *out = wide;
  np_int8_upcast_loop(in, count, zero, out);
}

static void interleave_pairs(const int8_t *upper, const int8_t *lower, size_t stride, size_t count,
                             size_t columns, int32_t zero, int16_t *out) {
  for (size_t i = 0; i < count * stride; i += stride, out += NP_INT8_PAIR) {
    for (size_t n = 0; n < NP_INT8_NR; n++) {
      const size_t column = np_int8_order[n];
      const int inside = column < columns;
      out[2 * n] = (int16_t)(inside && upper != NULL ? upper[i + column] - zero : 0);
      out[2 * n + 1] = (int16_t)(inside && lower != NULL ? lower[i + column] - zero : 0);
    }
  }
}

/* Of four elements, `stride` apart, those that a transformed tile has in their place. */
NP_INLINE void turn(int16_t *x, size_t stride) {
  const int16_t a = x[0], b = x[stride], c = x[2 * stride], d = x[3 * stride];
  x[0] = (int16_t)(a - c);
  x[stride] = (int16_t)(b + c);
  x[2 * stride] = (int16_t)(c - b);
  x[3 * stride] = (int16_t)(b - d);
}

static void transform(const int16_t *wide, size_t row_stride, size_t channels, size_t stride,
                      int16_t *out) {
  for (size_t channel = 0; channel < channels; channel++, wide++, out++) {
    int16_t x[NP_INT8_TILE];
    for (size_t i = 0; i < 4; i++) {
      for (size_t j = 0; j < 4; j++) x[4 * i + j] = wide[i * row_stride + j * channels];
      turn(x + 4 * i, 1);
    }
    for (size_t j = 0; j < 4; j++) turn(x + j, 4);
    for (size_t i = 0; i < NP_INT8_TILE; i++) out[i * stride] = x[i];
  }
}

static void finish(const np_int8_winograd_tile *t) {
  const int32_t *bias = (const int32_t *)t->head;
  const float *scales = (const float *)t->head + NP_INT8_NR;
  for (size_t n = 0; n < NP_INT8_NR; n++) {
    uint32_t rows[4][2];
    for (size_t i = 0; i < 4; i++) {
      uint32_t x[4];
      for (size_t j = 0; j < 4; j++) x[j] = (uint32_t)t->acc[(4 * i + j) * t->stride + n];
      rows[i][0] = x[0] + x[1] + x[2];
      rows[i][1] = x[1] - x[2] - x[3];
    }
    for (size_t j = 0; j < t->columns; j++) {
      const uint32_t both[2] = {rows[0][j] + rows[1][j] + rows[2][j],
                                rows[1][j] - rows[2][j] - rows[3][j]};
      for (size_t i = 0; i < t->rows; i++) {
        const int32_t sum = (int32_t)((uint32_t)((int32_t)both[i] / 4) + (uint32_t)bias[n]);
        int8_t *out = t->out + i * t->row_stride + j * t->column_stride;
        out[np_int8_order[n]] = narrow(sum, scales[n], t->range);
      }
    }
  }
}

static float quantize(const float *row, size_t count, void *out, int32_t *zero) {
  *zero = 0;
  return np_int8_quantize_loop(row, count, out);
}

const np_int8_micro_kernels np_int8_plain = {
    .element = sizeof(int16_t),
    .group = 2,
    .columns = NP_INT8_NR,
    .most = NP_INT8_NR,
    .panel_size = np_int8_pair_panel_size,
    .packed_size = np_int8_packed_size,
    .multiply = multiply,
    .upcast = upcast,
    .quantize = quantize,
    .depthwise = depthwise,
    .interleave_pairs = interleave_pairs,
    .transform = transform,
    .finish = finish,
};

const np_int8_micro_kernels *np_int8_micro_kernels_for(int32_t target, int32_t k_groups) {
#ifdef NP_CHOOSES_CPU
  const int32_t isa = np_isa_for(target);
  if (k_groups) {
    return isa >= NP_TARGET_AVX512VNNI ? &np_int8_vnni_avx512 : &np_int8_vnni_plain;
  }
  if (isa >= NP_TARGET_AVX2) return &np_int8_avx2;
#else
  (void)target;
  if (k_groups) return &np_int8_vnni_plain;
#endif
  return &np_int8_plain;
}
