/* Reductions of float32 for one instruction set; see reduce/floats.h. */
#include "reduce/floats.h"
#include "simd/f32.h"

/* An element's accumulator is lane i % ADDED of 64, in the last ones i % 16 of 16, with every
 * instruction set. */
#define CHAINS (4 * SPANS)
#define ADDED (4 * REDUCED_LANES)
#define WIDE 8 /* registers of columns */

NP_INLINE vec taken(vec acc, vec x, const int op) {
  if (op == NP_REDUCTION_SUM_SQUARES) return multiply_add(x, x, acc);
  if (op == NP_REDUCTION_L1) return acc + (vec)((ivec)x & 0x7fffffff);
  return acc + x;
}

NP_INLINE float sum_of_row(const float *x, size_t columns, const int op) {
  vec acc[CHAINS];
  size_t i = 0;
  if (columns >= ADDED) {
    UNROLL for (int s = 0; s < CHAINS; s++) acc[s] = zero();
    while (i + ADDED <= columns && (i == 0 || !np_cancel_check())) {
      for (const size_t next = np_stretch(i, columns); i + ADDED <= next; i += ADDED) {
        UNROLL for (int s = 0; s < CHAINS; s++) acc[s] = taken(acc[s], load(x + i + s * LANES), op);
      }
    }
    if (columns > NP_STRETCH && np_cancelled()) i = columns;
    UNROLL for (int s = 0; s < 2 * SPANS; s++) acc[s] += acc[s + 2 * SPANS];
    UNROLL for (int s = 0; s < SPANS; s++) acc[s] += acc[s + SPANS];
  } else {
    UNROLL for (int s = 0; s < SPANS; s++) acc[s] = zero();
  }
  for (; i < columns; i += REDUCED_LANES) {
    UNROLL for (int s = 0; s < SPANS; s++) {
      const size_t some = lanes_of_span(columns - i, s);
      if (some == 0) break;
      acc[s] = taken(acc[s], load_some(x + i + s * LANES, some), op);
    }
  }
  return sum_of_spans(acc);
}

NP_INLINE void rows_of(const np_float_reduction *p, const int op) {
  const float *x = p->x;
  for (size_t row = 0; row < p->rows; row++, x += p->stride) {
    p->out[row] = sum_of_row(x, p->columns, op) / p->divisor;
  }
}

void NP_OF_ISA(np_reduce_rows)(const np_float_reduction *p) {
  switch (p->op) {
    case NP_REDUCTION_SUM_SQUARES: rows_of(p, NP_REDUCTION_SUM_SQUARES); break;
    case NP_REDUCTION_L1: rows_of(p, NP_REDUCTION_L1); break;
    default: rows_of(p, NP_REDUCTION_SUM);
  }
}

/* `vectors` registers of columns from `first` on; the last one has `last` of them. */
NP_INLINE void columns_from(const np_float_reduction *p, size_t first, const int vectors,
                            size_t last, const int op) {
  vec acc[WIDE];
  UNROLL for (int v = 0; v < vectors; v++) acc[v] = zero();
  const float *x = p->x + first;
  for (size_t row = 0; row < p->rows; row++, x += p->stride) {
    if (row % NP_SLOW == NP_SLOW - 1 && np_cancel_check()) return;
    UNROLL for (int v = 0; v < vectors; v++) {
      const float *from = x + v * LANES;
      acc[v] = taken(acc[v], v < vectors - 1 ? load(from) : load_some(from, last), op);
    }
  }
  float *out = p->out + first;
  UNROLL for (int v = 0; v < vectors; v++) {
    store_some(out + v * LANES, acc[v] / p->divisor, v < vectors - 1 ? LANES : last);
  }
}

NP_INLINE void columns_of(const np_float_reduction *p, const int op) {
  size_t n = 0;
  for (; n + WIDE * LANES <= p->columns; n += WIDE * LANES) columns_from(p, n, WIDE, LANES, op);
  for (; n < p->columns; n += LANES) columns_from(p, n, 1, np_min(p->columns - n, LANES), op);
}

void NP_OF_ISA(np_reduce_columns)(const np_float_reduction *p) {
  switch (p->op) {
    case NP_REDUCTION_SUM_SQUARES: columns_of(p, NP_REDUCTION_SUM_SQUARES); break;
    case NP_REDUCTION_L1: columns_of(p, NP_REDUCTION_L1); break;
    default: columns_of(p, NP_REDUCTION_SUM);
  }
}
