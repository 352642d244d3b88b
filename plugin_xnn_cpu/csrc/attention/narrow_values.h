/* Rows of values times weights, added up, for one instruction set; attention/narrow_code.c includes
 * this. */

#define VALUE_ROWS 4 /* query rows whose accumulators are in registers at a time */

/* `columns` vectors of the accumulators of `rows` query rows, from element `e` on; both are constants of the
 * caller. */
NP_INLINE void add_columns(const float *weights, const char *v, ptrdiff_t stride, size_t keys,
                           size_t e, float *out, ptrdiff_t out_stride, const int rows,
                           const int columns, const int type) {
  vec acc[VALUE_ROWS][4];
  UNROLL for (int m = 0; m < rows; m++) {
    UNROLL for (int c = 0; c < columns; c++) acc[m][c] = zero();
  }
  for (size_t n = 0; n < keys; n++, v += stride) {
    vec x[4];
    UNROLL for (int c = 0; c < columns; c++) {
      x[c] = load_elements(v, e + (size_t)c * LANES, type);
    }
    UNROLL for (int m = 0; m < rows; m++) {
      const vec weight = broadcast(weights[(size_t)m * NP_CACHE_CHUNK + n]);
      UNROLL for (int c = 0; c < columns; c++) acc[m][c] = multiply_add(weight, x[c], acc[m][c]);
    }
    for (size_t at = 0; at < (size_t)columns * LANES * size_of_type(type); at += 64) {
      __builtin_prefetch(v + e * size_of_type(type) + at + PREFETCHED, 0, 3);
    }
  }
  UNROLL for (int m = 0; m < rows; m++) {
    UNROLL for (int c = 0; c < columns; c++) {
      store(out + m * out_stride + (ptrdiff_t)e + c * LANES, acc[m][c]);
    }
  }
}

/* out[m] = weights[m] · v for `rows` query rows, a constant of the caller. */
NP_INLINE void sum_rows(const float *weights, const char *v, ptrdiff_t stride, size_t keys,
                        size_t values, float *out, ptrdiff_t out_stride, const int rows,
                        const int type) {
  size_t e = 0;
  for (; e + 4 * LANES <= values; e += 4 * LANES) {
    add_columns(weights, v, stride, keys, e, out, out_stride, rows, 4, type);
  }
  for (; e + LANES <= values; e += LANES) {
    add_columns(weights, v, stride, keys, e, out, out_stride, rows, 1, type);
  }
  const size_t left = values - e;
  if (left == 0) return;
  for (int m = 0; m < rows; m++) {
    vec acc = zero();
    const char *row = v;
    for (size_t n = 0; n < keys; n++, row += stride) {
      const vec x = load_some_elements(row, e, left, type);
      acc = multiply_add(broadcast(weights[(size_t)m * NP_CACHE_CHUNK + n]), x, acc);
    }
    store_some(out + m * out_stride + (ptrdiff_t)e, acc, left);
  }
}

NP_INLINE void chunk_values(const float *weights, size_t rows, const char *v, ptrdiff_t stride,
                            size_t keys, size_t values, float *out, ptrdiff_t out_stride,
                            const int type) {
  for (size_t m = 0, here; m < rows; m += here) {
    here = np_min(rows - m, VALUE_ROWS);
    const float *from = weights + m * NP_CACHE_CHUNK;
    float *to = out + (ptrdiff_t)m * out_stride;
#define NP_CASE(number)                                                              \
  case number:                                                                       \
    sum_rows(from, v, stride, keys, values, to, out_stride, number, type);           \
    break;
    switch (here) { NP_CASE(1) NP_CASE(2) NP_CASE(3) NP_CASE(4) }
#undef NP_CASE
  }
}
