/* Tiles of depthwise convolutions that hold a row of the kernel in registers, for one instruction
 * set; depthwise/fp32_code.h includes it.
 *
 * A tile is up to WIDE_TILE output pixels of a row, of LANES channels. For each row of the kernel,
 * the weights of up to SEVEN taps are loaded, then each input pixel once: it is multiplied with
 * every tap whose output pixel is in the tile. With 7 taps and 8 output pixels that is 21 loads for
 * 56 multiplications, and 8 + 7 + 1 registers. Wider kernels take several pieces of a row. Input
 * columns in the padding are skipped, so borders take the same code. */

#define WIDE_TILE 8
/* Kernels of three columns leave registers for a whole cache line of channels: pixels are far apart
 * in memory, and half a line would be gone from the L1 cache before the other half is read. */
#define PAIR_TILE 6
#define IN_PAIRS(size) ((size) == 3 && LANES < BLOCK && p->out_width > WIDE_TILE)
#define SEVEN 7 /* taps of the widest piece */

/* One row of one tile. */
typedef struct {
  const float *const *lines; /* of the kernel's first row */
  ptrdiff_t column;          /* of the image, of the first tap of the first output pixel */
  size_t channel;
  size_t some; /* channels, if not all of a register */
  unsigned count;            /* output pixels */
} np_wide_tile;

/* Taps from `tap` on, `size` of them, of one row of the kernel. `skipped` input columns from the
 * tile's first on are padding, then `inside` columns are not. */
NP_INLINE void piece(const np_fp32_depthwise_tile *p, vec acc[WIDE_TILE], const float *line,
                  const np_wide_tile *t, size_t channel, const float *weights, int skipped,
                  unsigned inside, int tap, const int wide, const int size, const int step,
                  const int whole) {
  vec taps_of[SEVEN];
  const ptrdiff_t pixel = (ptrdiff_t)p->pixel;
  const ptrdiff_t start = (t->column + tap) * pixel + (ptrdiff_t)channel;
  UNROLL for (int k = 0; k < size; k++) taps_of[k] = load(weights + (tap + k) * BLOCK);
  UNROLL for (int j = 0; j < (wide - 1) * step + size; j++) {
    if ((unsigned)(j + tap - skipped) >= inside) continue;
    const float *x = line + (start + j * pixel);
    const vec element = whole ? load(x) : load_some(x, t->some);
    UNROLL for (int k = size - 1; k >= 0; k--) {
      if (j < k || (j - k) % step != 0 || (j - k) / step >= wide) continue;
      acc[(j - k) / step] = multiply_add(element, taps_of[k], acc[(j - k) / step]);
    }
  }
}

/* `size` taps, or, where it is 0, those of p->kernel[1]. */
NP_INLINE void pieces(const np_fp32_depthwise_tile *p, vec acc[WIDE_TILE], const float *line,
                   const np_wide_tile *t, size_t channel, const float *weights, int skipped,
                   unsigned inside, const int wide, const int size, const int step,
                   const int whole) {
#define PIECE(tap, taps) \
  piece(p, acc, line, t, channel, weights, skipped, inside, (tap), wide, (taps), step, whole)
  if (size == 9) {
    PIECE(0, 5);
    PIECE(5, 4);
  } else if (size == 11) {
    PIECE(0, 6);
    PIECE(6, 5);
  } else if (size > 0) {
    PIECE(0, size);
  } else {
    const int all = (int)p->kernel[1];
    int tap = 0;
    for (; tap + 5 <= all; tap += 5) PIECE(tap, 5);
    for (; tap + 2 <= all; tap += 2) PIECE(tap, 2);
    if (tap < all) PIECE(tap, 1);
  }
#undef PIECE
}

/* Up to `wide` output pixels of a row, of `vectors` registers of channels. */
NP_INLINE void wide_tile(const np_fp32_depthwise_tile *p, const np_wide_tile *t, float *out,
                      const int wide, const int vectors, const int size, const int step,
                      const int whole) {
  vec acc[2][WIDE_TILE];
  const float *weights = weights_of(p, t->channel);
  UNROLL for (int v = 0; v < vectors; v++) {
    const vec bias = load(weights + v * LANES);
    UNROLL for (int i = 0; i < wide; i++) acc[v][i] = bias;
  }
  weights += BLOCK;
  const size_t row_of_weights = p->kernel[1] * BLOCK;
  const ptrdiff_t reach = (wide - 1) * step + (ptrdiff_t)p->kernel[1];
  const ptrdiff_t before = t->column < 0 ? -t->column : 0, end = (ptrdiff_t)p->width - t->column;
  const int skipped = (int)(before < reach ? before : reach);
  const unsigned inside = end > skipped ? (unsigned)((end < reach ? end : reach) - skipped) : 0;
  for (size_t y = 0; y < p->kernel[0]; y++, weights += row_of_weights) {
    const float *line = t->lines[y * p->dilations[0]];
    if (line == NULL) continue;
    UNROLL for (int v = 0; v < vectors; v++) {
      pieces(p, acc[v], line, t, t->channel + (size_t)(v * LANES), weights + v * LANES, skipped,
             inside, wide, size, step, whole);
    }
  }
  UNROLL for (int i = 0; i < wide; i++) {
    if ((unsigned)i >= t->count) break;
    UNROLL for (int v = 0; v < vectors; v++) {
      float *to = out + (size_t)i * p->pixel + t->channel + v * LANES;
      store_pixel(p, to, acc[v][i], t->some, whole);
    }
  }
}

/* Channels from `first` to `end` of `count` output pixels. */
NP_INLINE void wide_pixels(const np_fp32_depthwise_tile *p, size_t row, size_t column, size_t count,
                        size_t first, size_t end, const int size, const int step) {
  const size_t at = (row * p->out_width + column) * p->pixel;
  float *out = p->out + at;
  np_wide_tile t = {
      .lines = p->rows + row * p->strides[0],
      .column = (ptrdiff_t)(column * (size_t)step) - (ptrdiff_t)p->left,
      .channel = first,
      .count = (unsigned)count,
  };
  if (IN_PAIRS(size)) {
    for (; t.channel + 2 * LANES <= end; t.channel += 2 * LANES) {
      wide_tile(p, &t, out, PAIR_TILE, 2, size, step, 1);
    }
  }
  for (; t.channel < end; t.channel += LANES) {
    t.some = end - t.channel;
    if (t.some < LANES) {
      wide_tile(p, &t, out, WIDE_TILE, 1, size, step, 0);
    } else if (count > WIDE_TILE / 2) {
      wide_tile(p, &t, out, WIDE_TILE, 1, size, step, 1);
    } else {
      wide_tile(p, &t, out, WIDE_TILE / 2, 1, size, step, 1);
    }
  }
  if (p->end == NULL) return;
  p->end(&p->epilogue, out + first, p->pixel, p->after == NULL ? NULL : p->after + at + first,
         p->pixel, count, end - first);
}

/* All rows and columns of the output, for one width of kernel. A part of the channels is done for
 * all of them before the next, so that its weights stay in the L1 cache, and the rows of the image
 * that two output rows need near. Kernels of three columns wait for memory, which is read best as
 * it lies. */
NP_INLINE void wide_rows(const np_fp32_depthwise_tile *p, const int size, const int step) {
  const size_t most = IN_PAIRS(size) ? PAIR_TILE : WIDE_TILE;
  const size_t tiles_along = (p->out_width + most - 1) / most;
  const size_t chunk = size == 3 ? p->columns : 4 * LANES;
  for (size_t first = 0; first < p->columns; first += chunk) {
    const size_t end = p->columns - first < chunk ? p->columns : first + chunk;
    for (size_t row = 0; row < p->count; row++) {
      for (size_t i = 0; i < tiles_along; i++) {
        const size_t column = i * p->out_width / tiles_along;
        const size_t next = (i + 1) * p->out_width / tiles_along;
        wide_pixels(p, row, column, next - column, first, end, size, step);
      }
    }
  }
}
