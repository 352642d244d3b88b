/* Constant matrices packed in panels of columns, through the weights cache. */
#pragma once

#include "operator.h"

/* Columns that are accumulated at a time: enough for any vector register. */
#define NP_COLUMNS 16

/* How a matrix [outputs, depth] is packed: for each panel biases, [depth][width] weights, and
 * scales of columns where there are any. The last panel is filled up with zeros. Our GEMV kernels
 * read matrices of float32 and int8 in this layout, see native/own/panels.py. */
typedef struct {
  size_t depth, outputs;
  size_t width;    /* columns of a panel, a multiple of NP_COLUMNS */
  size_t element;  /* bytes of a weight: 4 for float32, 1 for int8, 2 for bfloat16 */
  bool has_scales;
} np_panel_layout;

/* Constants to be packed. */
typedef struct {
  const void *weights;
  const void *bias; /* float32 or int32, 4 bytes for each output; NULL for zeros */
  const float *scales;
  float scale;                        /* by which all scales are multiplied */
  size_t output_stride, depth_stride; /* of weights, in elements */
} np_constants;

/* Bytes of a panel. */
static inline size_t np_panel_bytes(const np_panel_layout *layout) {
  const size_t ends = layout->has_scales ? 8 : 4;
  return layout->width * (ends + layout->element * layout->depth);
}

static inline size_t np_panel_count(const np_panel_layout *layout) {
  return (layout->outputs + layout->width - 1) / layout->width;
}

/* Groups of NP_COLUMNS columns of a matrix. */
static inline size_t np_part_count(const np_panel_layout *layout) {
  return (layout->outputs + NP_COLUMNS - 1) / NP_COLUMNS;
}

/* The constants of NP_COLUMNS columns; weights of a step of K are `width` after those before. */
typedef struct {
  const void *bias, *weights;
  const float *scales;
  size_t start, columns; /* of those that the matrix has */
} np_part;

static inline np_part np_part_of(const uint8_t *packed, const np_panel_layout *l, size_t index) {
  const size_t start = index * NP_COLUMNS, left = l->outputs - start, inside = start % l->width;
  const uint8_t *bias = packed + start / l->width * np_panel_bytes(l);
  const uint8_t *weights = bias + 4 * l->width;
  const uint8_t *scales = weights + l->element * l->depth * l->width;
  return (np_part){
      bias + 4 * inside,
      weights + l->element * inside,
      (const float *)(const void *)scales + inside,
      start,
      left < NP_COLUMNS ? left : NP_COLUMNS,
  };
}

/* Packs `groups` matrices one after another, each of `layout`, unless the cache has them.
 *
 * `constants` are those of each group. Returns where they are in `*packed`; without a cache they
 * are the operator's own. */
enum xnn_status np_portable_pack(xnn_operator_t op, const np_panel_layout *layout, size_t groups,
                                 const np_constants *constants, uint32_t fingerprint,
                                 const void *kernel, const void *bias, xnn_weights_cache_t cache,
                                 const uint8_t **packed);

/* Columns of a panel for our GEMV kernels: those of float32, else of int8. */
size_t np_portable_width(bool is_float);

/* Accumulates a row of a float32 operand times NP_COLUMNS columns. */
static inline void np_multiply_f32(const float *restrict x, const float *restrict w, size_t width,
                                   size_t depth, float *restrict acc) {
  for (size_t k = 0; k < depth; k++, w += width) {
    for (size_t n = 0; n < NP_COLUMNS; n++) acc[n] += x[k] * w[n];
  }
}

/* The same for an int8 operand whose zero point is `zero`. */
static inline void np_multiply_s8(const int8_t *restrict x, int32_t zero, const int8_t *restrict w,
                                  size_t width, size_t depth, int32_t *restrict acc) {
  for (size_t k = 0; k < depth; k++, w += width) {
    const int32_t value = x[k] - zero;
    for (size_t n = 0; n < NP_COLUMNS; n++) acc[n] += value * w[n];
  }
}
