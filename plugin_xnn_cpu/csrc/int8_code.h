/* The innermost code of the int8 kernels, which is written for each instruction set. */
#ifndef NARROWPASS_INT8_CODE_H
#define NARROWPASS_INT8_CODE_H

#include <string.h>

#include "int8_kernels.h"
#include "run.h"

#define NP_INT8_ROWS 6     /* of the largest tile */
#define NP_INT8_COLUMNS 16 /* of a panel; the last one has 8 where that will do */

/* A panel has its bias (of 32 bits), its scales, then for each pair of elements two weights for each
 * column. Columns are in the order in which AVX2 narrows two vectors of 8. */
static const uint8_t np_int8_order[NP_INT8_COLUMNS] = {0, 1, 2, 3, 8,  9,  10, 11,
                                                       4, 5, 6, 7, 12, 13, 14, 15};

NP_INLINE size_t np_int8_panel_width(size_t columns) {
  return columns > 8 ? NP_INT8_COLUMNS : 8;
}

/* Bytes; vectors lie at multiples of 32. */
NP_INLINE size_t np_int8_panel_size(size_t columns, size_t pairs) {
  const size_t width = np_int8_panel_width(columns);
  return (width * (sizeof(int32_t) + sizeof(float) + 2 * pairs) + 31) / 32 * 32;
}

/* An image [H, W, C] of which bands are widened. */
typedef struct {
  const int8_t *pixels;
  size_t height;
  size_t width;
  size_t channels;
  const size_t *pads;  /* above, left */
  const size_t *picks; /* between rows and columns that are taken */
  size_t wide_width;
  int32_t zero;
} np_int8_image;

/* How sums become int8. */
typedef struct {
  int32_t zero;
  int32_t low;
  int32_t high;
} np_int8_range;

/* What comes of a panel: float32 of sums times scales of rows; int8; or the sums of weights that are
 * int16, and have no head. */
#define NP_INT8_TO_FLOAT 0
#define NP_INT8_TO_INT8 1
#define NP_INT8_TO_SUMS 2

/* A panel and the windows that it is multiplied with. */
typedef struct {
  int kind; /* NP_INT8_TO_* */
  const int16_t *image;
  const int32_t *pixels; /* where windows start in it */
  size_t count;          /* of windows */
  const int32_t *runs;   /* where runs start in a window */
  size_t run_count;
  size_t pairs; /* of elements in a run */
  const uint8_t *panel;
  size_t columns; /* of the panel: 1 to 16 */
  void *out;
  size_t out_stride; /* elements */
  np_int8_range range;
  const float *row_scales; /* of a float32 output */
  float low, high;
} np_int8_panel;

/* A row of depthwise windows of 16 channels, with their rows in pairs: for each pixel and channel
 * an element of the upper row, then that of the lower one; channels are in the order of a panel. */
typedef struct {
  const int16_t *image;
  size_t count; /* of windows */
  size_t step;  /* elements between windows */
  size_t pairs; /* of rows in a window */
  size_t pair_stride;
  size_t width; /* of a window */
  size_t column_stride;
  const int16_t *weights; /* of pairs too */
  const uint8_t *head;    /* bias and scales */
  size_t columns;
  int8_t *out;
  size_t out_stride;
  np_int8_range range;
} np_int8_block;

#define NP_INT8_PAIR (2 * NP_INT8_COLUMNS) /* elements of a pair of pixels */
#define NP_INT8_HEAD (NP_INT8_COLUMNS * (sizeof(int32_t) + sizeof(float)))

#define NP_INT8_TILE 16 /* elements of a tile of 4 × 4 */

/* A tile of 2 × 2 outputs and 16 columns; see int8_winograd.c. */
typedef struct {
  const int32_t *sums;
  size_t stride; /* between elements of the tile */
  const uint8_t *head;
  int8_t *out;
  size_t row_stride;
  size_t column_stride;
  size_t rows; /* that lie inside the output: 1 or 2 */
  size_t columns;
  np_int8_range range;
} np_int8_tile;

typedef struct {
  void (*multiply)(const np_int8_panel *panel);
  void (*depthwise)(const np_int8_block *block);
  /* out = in - zero. */
  void (*widen)(const int8_t *in, size_t count, int32_t zero, int16_t *out);
  /* Pixels of two rows to pairs; a row that is NULL is zeros. */
  void (*widen_pairs)(const int8_t *upper, const int8_t *lower, size_t stride, size_t count,
                      size_t columns, int32_t zero, int16_t *out);
  /* Four rows of four pixels, transformed; each element of a tile lies `stride` after the last. */
  void (*transform)(const int16_t *wide, size_t row_stride, size_t channels, size_t stride,
                    int16_t *out);
  void (*finish)(const np_int8_tile *tile);
  /* A row of float32, quantized by its range, with its zero taken away; gives its scale. */
  float (*quantize)(const float *row, size_t count, int16_t *out);
} np_int8_code;

extern const np_int8_code np_int8_plain, np_int8_avx2;

const np_int8_code *np_int8_code_for(int32_t target);

/* Widen `rows` rows from `first` on, which are counted in the padded image, with zeros around. */
void np_int8_widen_rows(const np_int8_code *code, const np_int8_image *image, size_t first,
                        size_t rows, int16_t *wide);

/* Loops that compilers write well for any instruction set. */

NP_INLINE void np_int8_widen_loop(const int8_t *in, size_t count, int32_t zero, int16_t *out) {
  const int16_t away = (int16_t)zero;
  for (size_t i = 0; i < count; i++) out[i] = (int16_t)(in[i] - away);
}

NP_INLINE float np_int8_quantize_loop(const float *row, size_t count, int16_t *out) {
  uint32_t largest = 0;
  float low = 0.0f, high = 0.0f;
  for (size_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, &row[i], sizeof bits);
    bits &= 0x7fffffffu;
    largest = bits > largest ? bits : largest;
    low = row[i] < low ? row[i] : low;
    high = row[i] > high ? row[i] : high;
  }
  if (largest >= 0x7f000000u) { /* 2^127: the range of a row of smaller numbers is finite */
    memset(out, 0, count * sizeof *out);
    return __builtin_nanf("");
  }
  float inverse = low == high ? 1.0f : 255.0f / (high - low);
  /* Of a range of subnormal numbers: nothing is lost by taking it for zeros. */
  if (!(inverse <= 0x1p127f)) inverse = 0x1p127f;
  /* The zero point that is off by less; as double, these products are exact. */
  const double least = (double)low * (double)inverse, most = (double)high * (double)inverse;
  double exact = least + most > 1.0 ? -128.0 - least : 127.0 - most;
  exact = exact < -128.0 ? -128.0 : exact > 127.0 ? 127.0 : exact;
  const float zero = (float)__builtin_rint(exact);
  for (size_t i = 0; i < count; i++) {
    float x = __builtin_rintf(row[i] * inverse);
    x = x < -128.0f - zero ? -128.0f - zero : x;
    x = x > 127.0f - zero ? 127.0f - zero : x;
    out[i] = (int16_t)(int32_t)x;
  }
  return 1.0f / inverse;
}

#endif
