/* Depthwise convolutions for one instruction set.
 *
 * depthwise/fp32_row_code.h has most of what is computed: of 16 registers, a tile of 8 pixels of a
 * row has 8 accumulators, up to 7 weights of a row of the kernel, and one of the image. With 32
 * registers, a tile of 3 x 3 is up to HIGH rows by WIDE pixels of the output, and each pixel of the
 * image is loaded once for all of them. Channels are the innermost loop, so that memory is read and
 * written contiguously; what a tile reads and writes of all channels stays in the L1 cache. */
#include "depthwise/fp32_tile.h"
#include "simd/f32.h"

#if LANES == 16
#define HIGH 4
#else
#define HIGH 1
#endif
#define WIDE 4
#define BLOCK NP_FP32_DEPTHWISE_BLOCK

NP_INLINE const float *weights_of(const np_fp32_depthwise_tile *p, size_t channel) {
  const size_t size = (1 + p->kernel[0] * p->kernel[1]) * BLOCK;
  return p->packed + channel / BLOCK * size + channel % BLOCK;
}

/* Accumulators of a pixel: LANES of them, or `some` unless `whole`. */
NP_INLINE void store_pixel(const np_fp32_depthwise_tile *p, float *to, vec x, size_t some,
                           const int whole) {
  if (p->before != NULL) {
    const float *added = p->before + (to - p->out);
    x += whole ? load(added) : load_some(added, some);
  }
  x = clamp(x, p->low, p->high);
  if (whole) {
    store(to, x);
  } else {
    store_some(to, x, some);
  }
}

/* `high` × WIDE outputs of LANES channels of a dense kernel window of `size` × `size` with stride
 * `step`; x[i] is where row i of the image has the tile's first column. */
NP_INLINE void tile(const np_fp32_depthwise_tile *p, const float *const *x, size_t channel, float *out,
                 size_t out_row, const int high, const int size, const int step) {
  vec acc[HIGH][WIDE];
  const float *weights = weights_of(p, channel);
  const size_t pixel = p->pixel;
  const vec bias = load(weights);
  weights += BLOCK;
  UNROLL for (int r = 0; r < high; r++) { UNROLL for (int i = 0; i < WIDE; i++) acc[r][i] = bias; }
  UNROLL for (int y = 0; y < (high - 1) * step + size; y++) {
    vec columns[16];
    UNROLL for (int j = 0; j < (WIDE - 1) * step + size; j++) {
      columns[j] = load(x[y] + (size_t)j * pixel + channel);
    }
    UNROLL for (int r = 0; r < high; r++) {
      const int row = y - r * step; /* of the kernel window */
      if (row < 0 || row >= size) continue;
      UNROLL for (int k = 0; k < size; k++) {
        const vec weight = load(weights + (row * size + k) * BLOCK);
        UNROLL for (int i = 0; i < WIDE; i++) {
          acc[r][i] = multiply_add(columns[i * step + k], weight, acc[r][i]);
        }
      }
    }
  }
  UNROLL for (int r = 0; r < high; r++) {
    UNROLL for (int i = 0; i < WIDE; i++) {
      float *to = out + (size_t)r * out_row + (size_t)i * pixel + channel;
      store_pixel(p, to, acc[r][i], LANES, 1);
    }
  }
}

/* Columns of a kernel window that are inside of the image. */
typedef struct {
  size_t first;
  size_t end;
} taps;

NP_INLINE taps inside(const np_fp32_depthwise_tile *p, size_t column) {
  const size_t start = column * p->strides[1], dilation = p->dilations[1];
  const size_t first = start < p->left ? (p->left - start + dilation - 1) / dilation : 0;
  const size_t last = p->left + p->width; /* counted as `start` is */
  const size_t end = start < last ? (last - start + dilation - 1) / dilation : 0;
  return (taps){first, end < p->kernel[1] ? end : p->kernel[1]};
}

/* Outputs of some channels of any kernel, whose columns from `first` to `end` are inside. */
NP_INLINE void any(const np_fp32_depthwise_tile *p, size_t row, size_t column, taps in, size_t channel,
                size_t some, const int pixels, const int vectors, const int whole) {
  vec acc[WIDE][4];
  const float *weights[4];
  UNROLL for (int v = 0; v < vectors; v++) {
    weights[v] = weights_of(p, channel + (size_t)v * LANES);
    UNROLL for (int i = 0; i < pixels; i++) acc[i][v] = load(weights[v]);
  }
  const size_t step = p->strides[1] * p->pixel;
  for (size_t j = 0; j < p->kernel[0]; j++) {
    const float *line = p->rows[row * p->strides[0] + j * p->dilations[0]];
    if (line == NULL) continue;
    for (size_t k = in.first; k < in.end; k++) {
      const size_t at = column * p->strides[1] + k * p->dilations[1] - p->left;
      const float *x = line + at * p->pixel + channel;
      const size_t tap = (1 + j * p->kernel[1] + k) * BLOCK;
      UNROLL for (int v = 0; v < vectors; v++) {
        const vec weight = load(weights[v] + tap);
        UNROLL for (int i = 0; i < pixels; i++) {
          const float *element = x + (size_t)i * step + v * LANES;
          const vec loaded = whole ? load(element) : load_some(element, some);
          acc[i][v] = multiply_add(loaded, weight, acc[i][v]);
        }
      }
    }
  }
  float *out = p->out + (row * p->out_width + column) * p->pixel + channel;
  UNROLL for (int i = 0; i < pixels; i++) {
    UNROLL for (int v = 0; v < vectors; v++) {
      store_pixel(p, out + (size_t)i * p->pixel + v * LANES, acc[i][v], some, whole);
    }
  }
}

/* Channels from `channel` on of `pixels` outputs; a single one takes several registers at a time,
 * so that an instruction need not wait for the one before. */
NP_INLINE void row_part(const np_fp32_depthwise_tile *p, size_t row, size_t column, size_t channel,
                     const int pixels) {
  /* Where there are several, all of their output pixels are inside. */
  const taps in = pixels > 1 ? (taps){0, p->kernel[1]} : inside(p, column);
  if (pixels == 1) {
    for (; channel + 4 * LANES <= p->columns; channel += 4 * LANES) {
      any(p, row, column, in, channel, LANES, 1, 4, 1);
    }
  }
  for (; channel + LANES <= p->columns; channel += LANES) {
    any(p, row, column, in, channel, LANES, pixels, 1, 1);
  }
  if (channel < p->columns) {
    any(p, row, column, in, channel, p->columns - channel, pixels, 1, 0);
  }
}

/* The columns of the output whose output pixels are inside. */
NP_INLINE taps whole_columns(const np_fp32_depthwise_tile *p) {
  const size_t step = p->strides[1], reach = (p->kernel[1] - 1) * p->dilations[1] + 1;
  const size_t first = (p->left + step - 1) / step;
  const size_t room = p->left + p->width;
  size_t end = room < reach ? 0 : (room - reach) / step + 1;
  if (end > p->out_width) end = p->out_width;
  return (taps){first < end ? first : end, end};
}

NP_INLINE void finish(const np_fp32_depthwise_tile *p, size_t row, size_t rows, size_t column,
                   size_t pixels) {
  if (p->end == NULL) return;
  for (size_t r = row; r < row + rows; r++) {
    const size_t at = (r * p->out_width + column) * p->pixel;
    p->end(&p->epilogue, p->out + at, p->pixel, p->after == NULL ? NULL : p->after + at, p->pixel,
           pixels, p->columns);
  }
}

/* WIDE columns of `high` rows, all of whose output pixels are inside. */
NP_INLINE void tiles(const np_fp32_depthwise_tile *p, size_t row, size_t column, const int high,
                  const int size, const int step) {
  const float *x[8];
  UNROLL for (int y = 0; y < (high - 1) * step + size; y++) {
    const float *line = p->rows[row * (size_t)step + (size_t)y];
    x[y] = line + (column * (size_t)step - p->left) * p->pixel;
  }
  const size_t out_row = p->out_width * p->pixel;
  float *out = p->out + row * out_row + column * p->pixel;
  size_t channel = 0;
  for (; channel + LANES <= p->columns; channel += LANES) {
    tile(p, x, channel, out, out_row, high, size, step);
  }
  if (channel == p->columns) return;
  for (size_t r = row; r < row + (size_t)high; r++) row_part(p, r, column, channel, WIDE);
}

/* Rows from `row` on, as many as a tile may have where no row of their output pixels is outside;
 * returns how many these are. Kernels of `size` 0 are others than those that there are tiles for.
 * */
NP_INLINE size_t some_rows(const np_fp32_depthwise_tile *p, size_t row, taps whole, const int size,
                        const int step) {
  size_t inside_rows = 0; /* of the image, from the kernel window's first on */
  const size_t first = row * p->strides[0];
  if (size > 0) {
    const size_t most = (size_t)((HIGH - 1) * step + size);
    const size_t there = (p->count - 1 - row) * (size_t)step + (size_t)size;
    const size_t wanted = most < there ? most : there;
    while (inside_rows < wanted && p->rows[first + inside_rows] != NULL) inside_rows++;
  }
  const int tiled = size > 0 && inside_rows >= (size_t)size;
  /* With stride 2 output pixels share fewer rows: more than two of them do not pay. */
  const int four = HIGH == 4 && step == 1 && tiled && inside_rows == (size_t)(3 + size);
  const int two = HIGH >= 2 && tiled && !four && inside_rows >= (size_t)(step + size);
  const size_t rows = four ? 4 : two ? 2 : 1;
  size_t column = 0;
  while (column < p->out_width) {
    const int wide = column >= whole.first && column + WIDE <= whole.end;
    if (!wide) {
      for (size_t r = row; r < row + rows; r++) row_part(p, r, column, 0, 1);
    } else if (HIGH == 4 && step == 1 && four) {
      tiles(p, row, column, HIGH, size, step);
    } else if (HIGH >= 2 && two) {
      tiles(p, row, column, HIGH < 2 ? HIGH : 2, size, step);
    } else if (tiled) {
      tiles(p, row, column, 1, size, step);
    } else {
      row_part(p, row, column, 0, WIDE);
    }
    const size_t pixels = wide ? WIDE : 1;
    finish(p, row, rows, column, pixels);
    column += pixels;
  }
  return rows;
}

#include "depthwise/fp32_row_code.h"

#define ALL_ROWS(size, step)                                                            \
  for (size_t row = 0; row < p->count;) row += some_rows(p, row, whole, (size), (step))

/* Kernels of any width with stride 1 or 2 and no dilation along. */
NP_INLINE void dense_rows(const np_fp32_depthwise_tile *p, const int step) {
  switch (p->kernel[1]) {
    case 3: wide_rows(p, 3, step); break;
    case 5: wide_rows(p, 5, step); break;
    case 7: wide_rows(p, 7, step); break;
    case 9: wide_rows(p, 9, step); break;
    case 11: wide_rows(p, 11, step); break;
    default: wide_rows(p, 0, step); break;
  }
}

void NP_OF_ISA(np_fp32_depthwise)(const np_fp32_depthwise_tile *p) {
  const taps whole = whole_columns(p);
  const size_t step = p->strides[1];
#if HIGH > 1
  /* Several rows of small kernels share what they load, but borders are slow. */
  const int square = p->kernel[0] == 3 && p->kernel[1] == 3 && p->strides[0] == step;
  const int dense = p->dilations[0] == 1 && p->dilations[1] == 1;
  if (square && dense && step == 1 && p->out_width > 4 * WIDE) {
    ALL_ROWS(3, 1);
    return;
  }
  if (square && dense && step == 2 && p->out_width > 4 * WIDE) {
    ALL_ROWS(3, 2);
    return;
  }
#endif
  if (p->dilations[1] == 1 && step == 1) {
    dense_rows(p, 1);
  } else if (p->dilations[1] == 1 && step == 2) {
    dense_rows(p, 2);
  } else {
    ALL_ROWS(0, 0);
  }
}
