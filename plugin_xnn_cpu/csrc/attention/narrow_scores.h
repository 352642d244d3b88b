/* Scores of query rows with rows of a cache, for one instruction set; attention/narrow_code.c
 * includes this. */

#define PREFETCHED 2048 /* bytes in front of what is read */

/* The horizontal sum of each of LANES vectors: lane i of the result is that of acc[i]. Half of the
 * lanes of two vectors are added to the other halves, then quarters, and so on. */
NP_INLINE vec fold_lanes(vec *acc) {
#define NP_FOLD(distance, kept, moved)                                              \
  UNROLL for (int i = 0; i < (distance); i++) {                                     \
    const vec a = acc[i], b = acc[i + (distance)];                                  \
    acc[i] = __builtin_shufflevector(a, b, kept) + __builtin_shufflevector(a, b, moved); \
  }
#if LANES == 16
  NP_FOLD(8, NP_LIST(0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27, 28, 29, 30, 31),
          NP_LIST(8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23))
  NP_FOLD(4, NP_LIST(0, 1, 2, 3, 20, 21, 22, 23, 8, 9, 10, 11, 28, 29, 30, 31),
          NP_LIST(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27))
  NP_FOLD(2, NP_LIST(0, 1, 18, 19, 4, 5, 22, 23, 8, 9, 26, 27, 12, 13, 30, 31),
          NP_LIST(2, 3, 16, 17, 6, 7, 20, 21, 10, 11, 24, 25, 14, 15, 28, 29))
  NP_FOLD(1, NP_LIST(0, 17, 2, 19, 4, 21, 6, 23, 8, 25, 10, 27, 12, 29, 14, 31),
          NP_LIST(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30))
#elif LANES == 8
  NP_FOLD(4, NP_LIST(0, 1, 2, 3, 12, 13, 14, 15), NP_LIST(4, 5, 6, 7, 8, 9, 10, 11))
  NP_FOLD(2, NP_LIST(0, 1, 10, 11, 4, 5, 14, 15), NP_LIST(2, 3, 8, 9, 6, 7, 12, 13))
  NP_FOLD(1, NP_LIST(0, 9, 2, 11, 4, 13, 6, 15), NP_LIST(1, 8, 3, 10, 5, 12, 7, 14))
#else
  NP_FOLD(2, NP_LIST(0, 1, 6, 7), NP_LIST(2, 3, 4, 5))
  NP_FOLD(1, NP_LIST(0, 5, 2, 7), NP_LIST(1, 4, 3, 6))
#endif
#undef NP_FOLD
  return acc[0];
}

/* Rows of which all accumulators, REDUCED_LANES of each, are in registers. */
#define DOT_ROWS (LANES == 16 ? 16 : LANES == 8 ? 4 : 2)

/* The accumulators of q · k of `rows` rows, `stride` bytes apart: lane i of acc[j] has the lanes of
 * row j that are LANES apart, from i on, added. */
NP_INLINE void dot_lanes(const float *q, const char *k, ptrdiff_t stride, size_t depth, vec *to,
                         const int rows, const int type) {
  vec acc[DOT_ROWS][SPANS];
  UNROLL for (int j = 0; j < rows; j++) {
    UNROLL for (int s = 0; s < SPANS; s++) acc[j][s] = zero();
  }
  size_t d = 0;
  for (; d + REDUCED_LANES <= depth; d += REDUCED_LANES) {
    UNROLL for (int s = 0; s < SPANS; s++) {
      const size_t at = d + (size_t)s * LANES;
      const vec x = load(q + at);
      UNROLL for (int j = 0; j < rows; j++) {
        acc[j][s] = multiply_add(x, load_elements(k + j * stride, at, type), acc[j][s]);
      }
    }
  }
  if (d < depth) {
    UNROLL for (int s = 0; s < SPANS; s++) {
      const size_t at = d + (size_t)s * LANES, some = lanes_of_span(depth - d, s);
      if (some == 0) break;
      const vec x = load_some(q + at, some);
      UNROLL for (int j = 0; j < rows; j++) {
        const vec other = load_some_elements(k + j * stride, at, some, type);
        acc[j][s] = multiply_add(x, other, acc[j][s]);
      }
    }
  }
  UNROLL for (int j = 0; j < rows; j++) {
#if SPANS == 4
    to[j] = (acc[j][0] + acc[j][2]) + (acc[j][1] + acc[j][3]);
#elif SPANS == 2
    to[j] = acc[j][0] + acc[j][1];
#else
    to[j] = acc[j][0];
#endif
  }
}

/* q · k of LANES rows, `stride` bytes apart. */
NP_INLINE vec dots(const float *q, const char *k, ptrdiff_t stride, size_t depth, const int type) {
  vec lanes[LANES];
  UNROLL for (int j = 0; j < LANES; j += DOT_ROWS) {
    dot_lanes(q, k + j * stride, stride, depth, lanes + j, DOT_ROWS, type);
  }
  return fold_lanes(lanes);
}

/* q · k of one row. */
NP_INLINE float dot(const float *q, const char *k, size_t depth, const int type) {
  vec lanes[1];
  dot_lanes(q, k, 0, depth, lanes, 1, type);
  return sum_of(lanes[0]);
}

NP_INLINE void prefetch_rows(const char *k, ptrdiff_t stride, size_t bytes) {
  for (int j = 0; j < LANES; j++) {
    for (size_t at = 0; at < bytes; at += 64) {
      __builtin_prefetch(k + j * stride + PREFETCHED + at, 0, 3);
    }
  }
}

/* One row of a cache, upcast. */
NP_INLINE void upcast_row(const char *row, size_t depth, float *to, const int type) {
  size_t d = 0;
  for (; d + LANES <= depth; d += LANES) store(to + d, load_elements(row, d, type));
  if (d < depth) store_some(to + d, load_some_elements(row, d, depth - d, type), depth - d);
}

/* scores[m][n] = q[m] · k[n] for `rows` dense query rows, and scores that are NP_CACHE_CHUNK apart.
 * LANES keys are upcast once where there are more query rows than one. */
NP_INLINE void chunk_scores(const float *q, size_t rows, const char *k, ptrdiff_t stride,
                            size_t keys, size_t depth, float *scores, float *upcast,
                            const int type) {
  size_t n = 0;
  for (; n + LANES <= keys; n += LANES, k += LANES * stride) {
    prefetch_rows(k, stride, depth * size_of_type(type));
    if (rows == 1) {
      store(scores + n, dots(q, k, stride, depth, type));
      continue;
    }
    const char *read = k;
    ptrdiff_t apart = stride;
    if (type != NP_CACHE_FLOAT32) {
      for (int j = 0; j < LANES; j++) {
        upcast_row(k + j * stride, depth, upcast + (size_t)j * depth, type);
      }
      read = (const char *)upcast;
      apart = (ptrdiff_t)(depth * sizeof(float));
    }
    for (size_t m = 0; m < rows; m++) {
      store(scores + m * NP_CACHE_CHUNK + n,
            dots(q + m * depth, read, apart, depth, NP_CACHE_FLOAT32));
    }
  }
  for (; n < keys; n++, k += stride) {
    for (size_t m = 0; m < rows; m++) {
      scores[m * NP_CACHE_CHUNK + n] = dot(q + m * depth, k, depth, type);
    }
  }
}
