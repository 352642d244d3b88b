/* The micro-kernels of matmul, for one instruction set. */
#include "gemm/matmul/micro_kernel.h"
#include "simd/f32.h"
#include "simd/transpose_8x8.h"

#define MOST_VECTORS (LANES == 16 ? 4 : 2) /* of columns of a panel */
#define ROWS 12        /* of the largest tile, one register wide */
#define WIDE 8         /* registers of columns of a GEMV that reads B in place */
#define STEP 4         /* steps of depth that are unrolled */
#define DOT_COLUMNS 8  /* of a tile of dot products, at most */
/* Columns of a tile of dot products of several rows: accumulators stay in registers. */
#define DOT_COLUMNS_OF_ROWS (LANES == 16 ? 4 : LANES == 8 ? 2 : 1)

/* x · y + z in the form whose result is the accumulator: GCC takes others too, and moves
 * accumulators to the stack. */
NP_INLINE vec accumulate(vec x, vec y, vec z) {
#if LANES >= 8
  __asm__("vfmadd231ps %2, %1, %0" : "+v"(z) : "v"(x), "v"(y));
  return z;
#else
  return multiply_add(x, y, z);
#endif
}

/* What follows the accumulators of the last depth block. */
NP_INLINE vec finished(const np_matmul_block *p, vec x, vec bias) {
  if (p->scaled) x = accumulate(x, broadcast(p->alpha), bias);
  return clamp(x, p->low, p->high);
}

NP_INLINE void finish(vec acc[][WIDE], const np_matmul_block *p, size_t row, size_t column,
                   const int rows, const int vectors) {
  const size_t left = p->columns - column - LANES * (size_t)(vectors - 1);
  const size_t last = left < LANES ? left : LANES;
  float *out = p->out + row * p->out_row + column;
  if (p->plain) {
    UNROLL for (int r = 0; r < rows; r++, out += p->out_row) {
      UNROLL for (int v = 0; v < vectors - 1; v++) store(out + LANES * v, acc[r][v]);
      store_some(out + LANES * (vectors - 1), acc[r][vectors - 1], last);
    }
    return;
  }
  const float *bias = p->bias == NULL ? NULL : p->bias + column;
  UNROLL for (int r = 0; r < rows; r++, out += p->out_row) {
    UNROLL for (int v = 0; v < vectors; v++) {
      float *to = out + LANES * v;
      vec added = zero();
      if (v < vectors - 1) {
        if (bias != NULL) added = load(bias + LANES * v);
        store(to, finished(p, acc[r][v], added));
      } else {
        if (bias != NULL) added = load_some(bias + LANES * v, last);
        store_some(to, finished(p, acc[r][v], added), last);
      }
    }
  }
}

/* The accumulators of a tile: 0, or what the depth block before left in `out`. */
NP_INLINE void begin(vec acc[][WIDE], const np_matmul_block *p, size_t row, size_t column,
                     size_t last, const int rows, const int vectors) {
  UNROLL for (int r = 0; r < rows; r++) {
    UNROLL for (int v = 0; v < vectors; v++) acc[r][v] = zero();
  }
  if (p->first) return;
  const float *from = p->out + row * p->out_row + column;
  UNROLL for (int r = 0; r < rows; r++, from += p->out_row) {
    UNROLL for (int v = 0; v < vectors - 1; v++) acc[r][v] = load(from + LANES * v);
    acc[r][vectors - 1] = load_some(from + LANES * (vectors - 1), last);
  }
}

NP_INLINE void multiply(vec acc[][WIDE], const float *b, const float *const *x, size_t at, size_t last,
                     const int rows, const int vectors, const int masked) {
  vec w[WIDE];
  UNROLL for (int v = 0; v < vectors; v++) {
    const float *from = b + LANES * v;
    w[v] = masked && v == vectors - 1 ? load_some(from, last) : load(from);
  }
  UNROLL for (int r = 0; r < rows; r++) {
    const vec element = broadcast(x[r][at]);
    UNROLL for (int v = 0; v < vectors; v++) { acc[r][v] = accumulate(element, w[v], acc[r][v]); }
  }
}

/* How a tile reads its operands; PANELS has the steps of dense rows as constants. MASKED: B has
 * fewer columns than the registers of the tile, and nothing behind them. */
#define PANELS 0
#define IN_PLACE 1
#define MASKED 2

NP_INLINE void tile(const np_matmul_block *p, size_t row, size_t column, const float *b,
                 size_t b_depth, const int rows, const int vectors, const int kind) {
  /* One accumulator for each element, in tiles of few registers, too: how many rows a tile has
   * depends on the number of threads, and must change no bits. Depth blocks continue it. */
  vec acc[ROWS][WIDE];
  const float *x[ROWS];
  UNROLL for (int r = 0; r < rows; r++) x[r] = p->a + (row + (size_t)r) * p->a_row;
  const size_t left = p->columns - column - LANES * (size_t)(vectors - 1);
  const size_t last = left < LANES ? left : LANES;
  begin(acc, p, row, column, last, rows, vectors);
  const size_t step = kind == PANELS ? 1 : p->a_depth, depth = p->depth;
  const size_t b_step = kind == PANELS ? LANES * (size_t)vectors : b_depth;
  size_t k = 0, at = 0;
  for (; k + STEP <= depth; k += STEP, at += STEP * step, b += STEP * b_step) {
    UNROLL for (int i = 0; i < STEP; i++) {
      const size_t offset = (size_t)i;
      multiply(acc, b + offset * b_step, x, at + offset * step, last, rows, vectors,
               kind == MASKED);
    }
  }
  _Pragma("GCC unroll 1") for (; k < depth; k++, at += step, b += b_step) {
    multiply(acc, b, x, at, last, rows, vectors, kind == MASKED);
  }
  finish(acc, p, row, column, rows, vectors);
}

NP_INLINE void end(const np_matmul_block *p, size_t row, size_t column, size_t rows, size_t columns) {
  if (p->end == NULL) return;
  const size_t at = row * p->out_row + column;
  p->end(p->epilogue, p->out + at, p->out_row, p->residual == NULL ? NULL : p->residual + at,
         p->out_row, rows, columns);
}

/* As few tiles as there can be, of about as many rows each. */
NP_INLINE void tiles(const np_matmul_block *p, size_t column, const float *b, size_t b_step,
                  const int vectors, const int kind) {
  const int most = ACCUMULATORS / vectors < ROWS ? ACCUMULATORS / vectors : ROWS;
  const size_t width = LANES * (size_t)vectors, rest = p->columns - column;
  size_t left = (p->rows + (size_t)most - 1) / (size_t)most;
  for (size_t first = 0; first < p->rows; left--) {
    const size_t rows = (p->rows - first + left - 1) / left;
#define NP_CASE(number)                                                                     \
  case number:                                                                              \
    if (number <= most) tile(p, first, column, b, b_step, number, vectors, kind);           \
    break;
    switch (rows) { NP_CASES_OF_12(NP_CASE) }
#undef NP_CASE
    end(p, first, column, rows, rest < width ? rest : width);
    first += rows;
  }
}

/* One row, and columns of which none lies behind the matrix. */
NP_INLINE void wide(const np_matmul_block *p, size_t column) {
  tile(p, 0, column, p->b + column, p->b_depth, 1, WIDE, IN_PLACE);
  end(p, 0, column, 1, LANES * WIDE);
}

static void multiply_block(const np_matmul_block *p) {
  const size_t vectors = (p->columns + LANES - 1) / LANES;
  size_t done = 0; /* registers of columns */
  if (!p->packed && p->rows == 1) {
    for (; (done + WIDE) * LANES <= p->columns; done += WIDE) wide(p, done * LANES);
  }
  const size_t left = vectors - done, panels = (left + MOST_VECTORS - 1) / MOST_VECTORS;
  for (size_t n = 0; n < panels; n++) {
    const size_t first = done + n * left / panels, last = done + (n + 1) * left / panels;
    const size_t column = first * LANES, width = (last - first) * LANES;
    const float *b = p->packed ? p->b + column * p->depth : p->b + column;
    const size_t step = p->packed ? width : p->b_depth;
    const int masked = !p->packed && last * LANES > p->columns;
    const int dense = p->a_depth == 1 && step == width && !masked;
    const int kind = dense ? PANELS : masked ? MASKED : IN_PLACE;
#define NP_CASE(number)                                  \
  case number:                                           \
    if (kind == PANELS) {                                \
      tiles(p, column, b, step, number, PANELS);         \
    } else if (kind == MASKED) {                         \
      tiles(p, column, b, step, number, MASKED);         \
    } else {                                             \
      tiles(p, column, b, step, number, IN_PLACE);       \
    }                                                    \
    break;
    switch (last - first) {
      NP_CASE(1) NP_CASE(2)
#if LANES == 16
      NP_CASE(3) NP_CASE(4)
#endif
    }
#undef NP_CASE
  }
}

static void finish_block(const np_matmul_block *p) {
  for (size_t row = 0; row < p->rows; row++) {
    float *out = p->out + row * p->out_row;
    for (size_t n = 0; n < p->columns; n += LANES) {
      const size_t some = np_min(p->columns - n, LANES);
      const vec bias = p->bias == NULL ? zero() : load_some(p->bias + n, some);
      store_some(out + n, finished(p, load_some(out + n, some), bias), some);
    }
  }
  end(p, 0, 0, p->rows, p->columns);
}

/* Dot products of some rows of both operands, each in REDUCED_LANES accumulators. */
NP_INLINE void dots(const np_matmul_block *p, size_t row, size_t column, const int rows,
                 const int columns) {
  vec acc[4][DOT_COLUMNS][SPANS];
  const float *x[4], *y[DOT_COLUMNS];
  UNROLL for (int r = 0; r < rows; r++) x[r] = p->a + (row + (size_t)r) * p->a_row;
  UNROLL for (int c = 0; c < columns; c++) y[c] = p->b + (column + (size_t)c) * p->b_column;
  UNROLL for (int r = 0; r < rows; r++) {
    UNROLL for (int c = 0; c < columns; c++) {
      UNROLL for (int s = 0; s < SPANS; s++) acc[r][c][s] = zero();
    }
  }
  const size_t depth = p->depth;
  size_t k = 0;
  for (; k + REDUCED_LANES <= depth; k += REDUCED_LANES) {
    UNROLL for (int s = 0; s < SPANS; s++) {
      const size_t at = k + (size_t)s * LANES;
      vec w[4];
      UNROLL for (int r = 0; r < rows; r++) w[r] = load(x[r] + at);
      UNROLL for (int c = 0; c < columns; c++) {
        const vec other = load(y[c] + at);
        UNROLL for (int r = 0; r < rows; r++) acc[r][c][s] = accumulate(w[r], other, acc[r][c][s]);
      }
    }
  }
  if (k < depth) {
    UNROLL for (int s = 0; s < SPANS; s++) {
      const size_t at = k + (size_t)s * LANES, some = lanes_of_span(depth - k, s);
      if (some == 0) break;
      vec w[4];
      UNROLL for (int r = 0; r < rows; r++) w[r] = load_some(x[r] + at, some);
      UNROLL for (int c = 0; c < columns; c++) {
        const vec other = load_some(y[c] + at, some);
        UNROLL for (int r = 0; r < rows; r++) acc[r][c][s] = accumulate(w[r], other, acc[r][c][s]);
      }
    }
  }
  UNROLL for (int r = 0; r < rows; r++) {
    float *out = p->out + (row + (size_t)r) * p->out_row + column;
    UNROLL for (int c = 0; c < columns; c++) {
      float found = sum_of_spans(acc[r][c]);
      if (p->scaled) {
        found = found * p->alpha + (p->bias == NULL ? 0.0f : p->bias[column + (size_t)c]);
      }
      found = found < p->low ? p->low : found;
      found = found > p->high ? p->high : found;
      out[c] = found;
    }
  }
}

NP_INLINE void dot_columns(const np_matmul_block *p, size_t row, const int rows, const int columns) {
  size_t column = 0;
  for (; column + (size_t)columns <= p->columns; column += (size_t)columns) {
    dots(p, row, column, rows, columns);
  }
  for (; column < p->columns; column++) dots(p, row, column, rows, 1);
}

static void multiply_dots(const np_matmul_block *p) {
  for (size_t row = 0; row < p->rows;) {
    const size_t left = p->rows - row;
    const size_t rows = left == 4 || left == 2 ? 2 : left < 3 ? left : 3;
    switch (rows) {
      case 1: dot_columns(p, row, 1, 2 * DOT_COLUMNS_OF_ROWS); break;
      case 2: dot_columns(p, row, 2, DOT_COLUMNS_OF_ROWS); break;
      default: dot_columns(p, row, 3, DOT_COLUMNS_OF_ROWS); break;
    }
    end(p, row, 0, rows, p->columns);
    row += rows;
  }
}

/* Columns of which each is dense, eight at a time. */
NP_INLINE void pack_dense_columns(const float *b, size_t column_step, size_t depth, size_t columns,
                               size_t width, float *to) {
  const size_t whole = columns / 8 * 8;
  for (size_t n = 0; n < whole; n += 8) {
    const float *from = b + n * column_step;
    size_t k = 0;
    for (; k + 8 <= depth; k += 8) transpose(from + k, column_step, to + k * width + n, width);
    for (; k < depth; k++) {
      for (size_t i = 0; i < 8; i++) to[k * width + n + i] = from[i * column_step + k];
    }
  }
  for (size_t k = 0; k < depth; k++) {
    for (size_t n = whole; n < width; n++) {
      to[k * width + n] = n < columns ? b[n * column_step + k] : 0.0f;
    }
  }
}

NP_INLINE void pack_rows(const float *b, size_t depth_step, size_t depth, size_t columns, size_t width,
                      float *to) {
  for (size_t k = 0; k < depth; k++, b += depth_step, to += width) {
    size_t n = 0;
    for (; n + LANES <= columns; n += LANES) store(to + n, load(b + n));
    if (n < columns) store(to + n, load_some(b + n, columns - n));
  }
}

static void pack(const float *b, size_t depth_step, size_t column_step, size_t depth,
                 size_t columns, float *to) {
  const size_t vectors = (columns + LANES - 1) / LANES;
  const size_t panels = (vectors + MOST_VECTORS - 1) / MOST_VECTORS;
  for (size_t n = 0; n < panels; n++) {
    const size_t first = n * vectors / panels * LANES, last = (n + 1) * vectors / panels * LANES;
    const size_t width = last - first, real = (last < columns ? last : columns) - first;
    const float *from = b + first * column_step;
    if (column_step == 1) {
      pack_rows(from, depth_step, depth, real, width, to);
    } else if (depth_step == 1) {
      pack_dense_columns(from, column_step, depth, real, width, to);
    } else {
      for (size_t k = 0; k < depth; k++) {
        for (size_t i = 0; i < width; i++) {
          to[k * width + i] = i < real ? from[k * depth_step + i * column_step] : 0.0f;
        }
      }
    }
    to += width * depth;
  }
}

const np_matmul_code NP_OF_ISA(np_matmul_code) = {
    .multiply = multiply_block,
    .dots = multiply_dots,
    .pack = pack,
    .panel = NP_OF_ISA(np_fp32_multiply),
    .finish = finish_block,
    .lanes = LANES,
    .most_vectors = MOST_VECTORS,
};
