/* Attention for one instruction set; attention/attention.c says how it is done. */
#include <math.h>

#include "attention/head.h"
#include "simd/f32.h"
#include "simd/polynomial.h"
#include "simd/transpose_lanes.h"

#define MOST_ROWS 12 /* of a tile */
#if LANES == 16
#define COLUMNS 4 /* most registers of a row of a tile: 6 rows of 4 need fewer loads than 12 of 2 */
#else
#define COLUMNS 2
#endif

/* The columns of the panel that starts at `first`: whole vectors, as many as a tile has, or are
 * left. */
NP_INLINE size_t panel_width(size_t first, size_t all) {
  const size_t left = (all - first + LANES - 1) / LANES * LANES;
  return left < COLUMNS * LANES ? left : COLUMNS * LANES;
}

/* As many rows as lanes, transposed and scaled: out[d][n] = in[n][d] · scale. */
NP_INLINE void transpose_scaled(const float *in, ptrdiff_t in_stride, float scale, float *out,
                                size_t out_stride) {
  vec x[LANES];
  for (int i = 0; i < LANES; i++) x[i] = *(const vec *)(in + i * in_stride);
  transpose_lanes(x);
  for (int i = 0; i < LANES; i++) *(vec *)(out + (size_t)i * out_stride) = x[i] * scale;
}

/* keys[n][d] · scale to panels of columns: packed[panel][d][width], filled up with zeros. Scores
 * that are scaled after they were summed up may be infinite before. */
NP_INLINE void pack_keys(const float *k, ptrdiff_t stride, size_t keys, size_t depth, float scale,
                      float *packed) {
  for (size_t first = 0; first < keys;) {
    const size_t width = panel_width(first, keys);
    const size_t here = keys - first < width ? keys - first : width;
    const float *rows = k + (ptrdiff_t)first * stride;
    /* Whole squares in registers. */
    const size_t squares = here / LANES * LANES;
    const size_t out_xor = squares == 0 ? 0 : depth / LANES * LANES;
    for (size_t n = 0; n < squares; n += LANES) {
      for (size_t d = 0; d < out_xor; d += LANES) {
        transpose_scaled(rows + (ptrdiff_t)n * stride + (ptrdiff_t)d, stride, scale,
                         packed + d * width + n, width);
      }
    }
    for (size_t d = 0; d < depth; d++) {
      const float *from = rows + (ptrdiff_t)d;
      for (size_t n = d < out_xor ? squares : 0; n < here; n++) {
        packed[n] = from[(ptrdiff_t)n * stride] * scale;
      }
      for (size_t n = here; n < width; n++) packed[n] = 0.0f;
      packed += width;
    }
    first += width;
  }
}

/* values[n][e] to panels of columns: packed[panel][n][width], filled up with zeros. */
NP_INLINE void pack_values(const float *v, ptrdiff_t stride, size_t keys, size_t values,
                        float *packed) {
  for (size_t first = 0; first < values;) {
    const size_t width = panel_width(first, values);
    const size_t here = values - first < width ? values - first : width;
    for (size_t n = 0; n < keys; n++) {
      const float *from = v + (ptrdiff_t)n * stride + (ptrdiff_t)first;
      size_t e = 0;
      for (; e + LANES <= here; e += LANES) *(vec *)(packed + e) = *(const vec *)(from + e);
      for (; e < here; e++) packed[e] = from[e];
      for (; e < width; e++) packed[e] = 0.0f;
      packed += width;
    }
    first += width;
  }
}

/* Element `d` of each row times a row of a panel. */
NP_INLINE void multiply_step(vec acc[][COLUMNS], const float *a, ptrdiff_t a_stride,
                          const float *panel, size_t d, const int rows, const int columns) {
  vec b[COLUMNS];
  UNROLL for (int c = 0; c < columns; c++) b[c] = *(const vec *)(panel + c * LANES);
  UNROLL for (int m = 0; m < rows; m++) {
    const vec x = broadcast(a[m * a_stride + (ptrdiff_t)d]);
    UNROLL for (int c = 0; c < columns; c++) acc[m][c] = multiply_add(x, b[c], acc[m][c]);
  }
}

/* out[m][0:width] = a[m][0:depth] · panel[0:depth][0:width] for `rows` rows; `rows` and `columns`,
 * the vectors of a row, are constants of the caller, so that all accumulators stay in registers. */
NP_INLINE void multiply(const float *a, ptrdiff_t a_stride, const float *panel, size_t depth,
                     float *out, ptrdiff_t out_stride, const int rows, const int columns) {
  vec acc[MOST_ROWS][COLUMNS];
  UNROLL for (int m = 0; m < rows; m++) {
    UNROLL for (int c = 0; c < columns; c++) acc[m][c] = broadcast(0.0f);
  }
  const size_t width = (size_t)columns * LANES;
  size_t d = 0;
  for (; d + 4 <= depth; d += 4, panel += 4 * width) {
    UNROLL for (size_t i = 0; i < 4; i++) {
      multiply_step(acc, a, a_stride, panel + i * width, d + i, rows, columns);
    }
  }
  for (; d < depth; d++, panel += width) {
    multiply_step(acc, a, a_stride, panel, d, rows, columns);
  }
  UNROLL for (int m = 0; m < rows; m++) {
    UNROLL for (int c = 0; c < columns; c++) {
      *(vec *)(out + m * out_stride + c * LANES) = acc[m][c];
    }
  }
}

/* `rows` rows with a panel: as few tiles as there can be, of about as many rows each. */
NP_INLINE void multiply_panel(const float *a, ptrdiff_t a_stride, size_t rows, const float *panel,
                           size_t depth, float *out, ptrdiff_t out_stride, const int columns) {
  const int most = ACCUMULATORS / columns < MOST_ROWS ? ACCUMULATORS / columns : MOST_ROWS;
  size_t left = (rows + (size_t)most - 1) / (size_t)most;
  for (size_t here; rows > 0; rows -= here, left--) {
    here = (rows + left - 1) / left;
#define NP_CASE(number)                                                                     \
  case number:                                                                              \
    if (number <= most) multiply(a, a_stride, panel, depth, out, out_stride, number, columns); \
    break;
    switch (here) { NP_CASES_OF_12(NP_CASE) }
#undef NP_CASE
    a += (ptrdiff_t)here * a_stride;
    out += (ptrdiff_t)here * out_stride;
  }
}

/* `rows` rows with all panels of a packed matrix of depth × width. */
static void multiply_block(const float *a, ptrdiff_t a_stride, size_t rows,
                                  const float *packed, size_t depth, size_t width, float *out,
                                  ptrdiff_t out_stride) {
  for (size_t first = 0; first < width;) {
    const size_t here = panel_width(first, width);
#define NP_CASE(number)                                                         \
  case number:                                                                  \
    multiply_panel(a, a_stride, rows, packed, depth, out, out_stride, number);  \
    break;
    switch (here / LANES) {
      NP_CASE(1) NP_CASE(2)
#if COLUMNS > 2
      NP_CASE(3) NP_CASE(4)
#endif
    }
#undef NP_CASE
    packed += depth * here;
    out += here;
    first += here;
  }
}

#include "attention/softmax_code.h"

/* A head of each operand, and of the result. */
typedef struct {
  const float *q;
  const float *k;
  const float *v;
  float *out;
  ptrdiff_t masked; /* where its mask starts */
} head_parts;

NP_INLINE head_parts parts_of(const np_attention_job *task, const size_t *at) {
  const struct np_attention_params *p = task->params;
  return (head_parts){
      .q = task->q + start_of(at, p->q_strides),
      .k = task->k + start_of(at, p->k_strides),
      .v = task->v + start_of(at, p->v_strides),
      .out = task->out + start_of(at, p->out_strides),
      .masked = start_of(at, p->mask_strides),
  };
}

/* One row of results, divided by the sum of its weights; `to` may be `from`. */
NP_INLINE void divide(const float *from, float sum, float *to, size_t values) {
  const float factor = 1.0f / sum;
  size_t e = 0;
  for (; e + LANES <= values; e += LANES) {
    *(vec *)(to + e) = *(const vec *)(from + e) * factor;
  }
  for (; e < values; e++) to[e] = from[e] * factor;
}

#include "attention/few_rows_code.h"

/* Ask for rows of `size` floats: for writing, or to come to the L2 cache. Those of a head lie
 * far apart in the rows of a projection, where the processor does not see which come next. */
NP_INLINE void ask(const float *rows, ptrdiff_t stride, size_t first, size_t last, size_t size,
                const int writes) {
  for (size_t m = first; m < last; m++) {
    const char *row = (const char *)(rows + (ptrdiff_t)m * stride);
    for (size_t at = 0; at < size * sizeof(float); at += 64) {
      if (writes) {
        __builtin_prefetch(row + at, 1, 3);
      } else {
        __builtin_prefetch(row + at, 0, 2);
      }
    }
  }
}

/* A part of what a head reads. */
NP_INLINE void ask_for_part(const np_attention_job *task, size_t number, size_t part, size_t parts) {
  const struct np_attention_params *p = task->params;
  size_t at[3];
  place_of(p, number, at);
  const size_t first = p->rows * part / parts, last = p->rows * (part + 1) / parts;
  const size_t first_key = p->keys * part / parts, last_key = p->keys * (part + 1) / parts;
  ask(task->q + start_of(at, p->q_strides), p->q_strides[3], first, last, p->depth, 0);
  ask(task->k + start_of(at, p->k_strides), p->k_strides[3], first_key, last_key, p->depth, 0);
  ask(task->v + start_of(at, p->v_strides), p->v_strides[3], first_key, last_key, p->values, 0);
}

/* Keys in front of all that rows before `end` do not see, in whole panels; all of them where there
 * is no visible. */
NP_INLINE size_t seen_keys(const struct np_attention_params *p, size_t end) {
  if (!p->visible.causal) return p->keys;
  const size_t seen = p->visible.position + (p->visible.moves ? end : 1);
  return np_min(p->keys, np_ceil_div(seen, COLUMNS * LANES) * COLUMNS * LANES);
}

void NP_OF_ISA(np_attention_head)(const np_attention_job *task, size_t number, size_t first,
                                  size_t last, float *scratch) {
  const struct np_attention_params *p = task->params;
  size_t at[3];
  place_of(p, number, at);
  const head_parts h = parts_of(task, at);
  const size_t keys = (p->keys + LANES - 1) / LANES * LANES;
  const size_t values = (p->values + LANES - 1) / LANES * LANES;
  if (p->unpacked) {
    for (size_t m = first; m < last; m++) {
      attend_row(task, m, h.q + (ptrdiff_t)m * p->q_strides[3], h.k, h.v,
                  h.masked + (ptrdiff_t)m * p->mask_strides[3], scratch,
                  h.out + (ptrdiff_t)m * p->out_strides[3]);
    }
    return;
  }
  float *packed_keys = scratch;
  float *packed_values = packed_keys + keys * p->depth;
  float *scores = packed_values + p->keys * values;
  float *results = scores + p->block * keys;
  float acc[NP_ATTENTION_MAX_ROWS];
  pack_keys(h.k, p->k_strides[3], p->keys, p->depth, p->scale, packed_keys);
  pack_values(h.v, p->v_strides[3], p->keys, p->values, packed_values);
  const size_t blocks = (last - first + p->block - 1) / p->block;
  for (size_t start = first, block = 0; start < last; start += p->block, block++) {
    const size_t rows = last - start < p->block ? last - start : p->block;
    if (number + 1 < task->heads) ask_for_part(task, number + 1, block, blocks);
    ask(h.out, p->out_strides[3], start, start + rows, p->values, 1);
    multiply_block(h.q + (ptrdiff_t)start * p->q_strides[3], p->q_strides[3], rows, packed_keys,
                   p->depth, seen_keys(p, start + rows), scores, (ptrdiff_t)keys);
    weigh(task, scores, keys, start, rows, h.masked + (ptrdiff_t)start * p->mask_strides[3], acc);
    multiply_block(scores, (ptrdiff_t)keys, rows, packed_values, p->keys, p->values, results,
                   (ptrdiff_t)values);
    for (size_t m = 0; m < rows; m++) {
      divide(results + m * values, acc[m], h.out + (ptrdiff_t)(start + m) * p->out_strides[3],
             p->values);
    }
  }
}
