/* Attention for one instruction set; attention.c says how it is done.
 *
 * Who includes this defines LANES, the floats of a register; SUMS, how many of them a tile's sums
 * may take; COLUMNS, the most registers of a row of a tile; HEAD, the function's name; TARGET, its
 * attribute; and where there are instructions for them LARGER(x, y), which is x > y ? x : y, and
 * TIMES_POWER(x, n), which is x times 2 to the power of n, or 0. */
#if defined(__GNUC__) && !defined(__clang__)
/* Vectors are passed between functions that become one: there is no calling convention to change. */
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#include <math.h>
#include <string.h>

#include "attention.h"

#define FEW_ROWS 4
#define MOST_ROWS 12 /* of a tile */
#define UNROLL _Pragma("GCC unroll 16")
#define INLINE TARGET NP_INLINE

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE vec splat(float x) { return x - (vec){0}; }

INLINE vec choose(ivec condition, vec x, vec y) {
  return (vec)((condition & (ivec)x) | (~condition & (ivec)y));
}

/* The second one where either is NaN. */
INLINE vec larger(vec x, vec y) {
#ifdef LARGER
  return (vec)LARGER(x, y);
#else
  return choose(x > y, x, y);
#endif
}

/* exp of what is at most 0, or NaN; see function.c for the polynomial. */
INLINE vec exp_of_at_most_0(vec x) {
#ifdef TIMES_POWER
  const float least = -110.0f; /* 0 of itself, and not infinite */
#else
  const float least = -87.3f;
#endif
  const vec t = larger(splat(least), x); /* NaN stays */
  /* Adding 1.5 · 2^23 rounds to an integer, which is then in the low bits: no conversion, which
   * NaN would not survive. */
  const vec shifted = t * 1.44269504f + 12582912.0f;
  const vec n = shifted - 12582912.0f;
  const vec r = (t - n * 0.693359375f) + n * 2.12194440e-4f;
  vec p = r * 0.00829030573f + 0.0418979749f;
  p = p * r + 0.166676372f;
  p = p * r + 0.499991506f;
  p = p * r + 0.999999702f;
  p = p * r + 1.0f;
#ifdef TIMES_POWER
  return (vec)TIMES_POWER(p, n);
#else
  const ivec power = ((ivec)shifted << 23) + (127 << 23);
  return choose(x < -87.3f, splat(0.0f), p * (vec)power);
#endif
}

/* The lanes of a vector, each with the one `apart` lanes on: a few steps combine all. */
#define NP_LIST(...) __VA_ARGS__
#if LANES == 16
#define NP_NUMBERS NP_LIST(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define NP_ROLLED_8 NP_LIST(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define NP_ROLLED_4 NP_LIST(4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define NP_ROLLED_2 NP_LIST(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define NP_ROLLED_1 NP_LIST(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif LANES == 8
#define NP_NUMBERS NP_LIST(0, 1, 2, 3, 4, 5, 6, 7)
#define NP_ROLLED_4 NP_LIST(4, 5, 6, 7, 0, 1, 2, 3)
#define NP_ROLLED_2 NP_LIST(2, 3, 0, 1, 6, 7, 4, 5)
#define NP_ROLLED_1 NP_LIST(1, 0, 3, 2, 5, 4, 7, 6)
#else
#define NP_NUMBERS NP_LIST(0, 1, 2, 3)
#define NP_ROLLED_2 NP_LIST(2, 3, 0, 1)
#define NP_ROLLED_1 NP_LIST(1, 0, 3, 2)
#endif
#define NP_ROLL(x, order) __builtin_shufflevector(x, x, order)

INLINE float sum_of(vec x) {
#if LANES == 16
  x += NP_ROLL(x, NP_ROLLED_8);
#endif
#if LANES >= 8
  x += NP_ROLL(x, NP_ROLLED_4);
#endif
  x += NP_ROLL(x, NP_ROLLED_2);
  x += NP_ROLL(x, NP_ROLLED_1);
  return x[0];
}

INLINE float largest_of(vec x) {
#if LANES == 16
  x = larger(x, NP_ROLL(x, NP_ROLLED_8));
#endif
#if LANES >= 8
  x = larger(x, NP_ROLL(x, NP_ROLLED_4));
#endif
  x = larger(x, NP_ROLL(x, NP_ROLLED_2));
  x = larger(x, NP_ROLL(x, NP_ROLLED_1));
  return x[0];
}

/* The columns of the panel that starts at `first`: whole vectors, as many as a tile has, or are
 * left. */
INLINE size_t panel_width(size_t first, size_t all) {
  const size_t left = (all - first + LANES - 1) / LANES * LANES;
  return left < COLUMNS * LANES ? left : COLUMNS * LANES;
}

/* As many rows as lanes, turned: out[d][n] = in[n][d]. Rows that are half of them apart exchange
 * halves, those a quarter apart quarters, and so on. */
INLINE void turn(const float *in, ptrdiff_t in_stride, float *out, size_t out_stride) {
  vec x[LANES];
  for (int i = 0; i < LANES; i++) x[i] = *(const vec *)(in + i * in_stride);
#define NP_EXCHANGE(apart, first, second)                                         \
  for (int i = 0; i < LANES; i += 2 * (apart)) {                                  \
    for (int j = i; j < i + (apart); j++) {                                       \
      const vec a = x[j], b = x[j + (apart)];                                     \
      x[j] = __builtin_shufflevector(a, b, first);                                \
      x[j + (apart)] = __builtin_shufflevector(a, b, second);                     \
    }                                                                             \
  }
#if LANES == 16
  NP_EXCHANGE(8, NP_LIST(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
              NP_LIST(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
  NP_EXCHANGE(4, NP_LIST(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
              NP_LIST(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
  NP_EXCHANGE(2, NP_LIST(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
              NP_LIST(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
  NP_EXCHANGE(1, NP_LIST(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
              NP_LIST(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#elif LANES == 8
  NP_EXCHANGE(4, NP_LIST(0, 1, 2, 3, 8, 9, 10, 11), NP_LIST(4, 5, 6, 7, 12, 13, 14, 15))
  NP_EXCHANGE(2, NP_LIST(0, 1, 8, 9, 4, 5, 12, 13), NP_LIST(2, 3, 10, 11, 6, 7, 14, 15))
  NP_EXCHANGE(1, NP_LIST(0, 8, 2, 10, 4, 12, 6, 14), NP_LIST(1, 9, 3, 11, 5, 13, 7, 15))
#else
  NP_EXCHANGE(2, NP_LIST(0, 1, 4, 5), NP_LIST(2, 3, 6, 7))
  NP_EXCHANGE(1, NP_LIST(0, 4, 2, 6), NP_LIST(1, 5, 3, 7))
#endif
  for (int i = 0; i < LANES; i++) *(vec *)(out + (size_t)i * out_stride) = x[i];
}

/* keys[n][d] to panels of columns: packed[panel][d][width], filled up with zeros. */
INLINE void pack_keys(const float *k, ptrdiff_t stride, size_t keys, size_t depth,
                         float *packed) {
  for (size_t first = 0; first < keys;) {
    const size_t width = panel_width(first, keys);
    const size_t here = keys - first < width ? keys - first : width;
    const float *rows = k + (ptrdiff_t)first * stride;
    /* Whole squares in registers. */
    const size_t squares = here / LANES * LANES;
    const size_t turned = squares == 0 ? 0 : depth / LANES * LANES;
    for (size_t n = 0; n < squares; n += LANES) {
      for (size_t d = 0; d < turned; d += LANES) {
        turn(rows + (ptrdiff_t)n * stride + (ptrdiff_t)d, stride, packed + d * width + n, width);
      }
    }
    for (size_t d = 0; d < depth; d++) {
      const float *from = rows + (ptrdiff_t)d;
      for (size_t n = d < turned ? squares : 0; n < here; n++) {
        packed[n] = from[(ptrdiff_t)n * stride];
      }
      for (size_t n = here; n < width; n++) packed[n] = 0.0f;
      packed += width;
    }
    first += width;
  }
}

/* values[n][e] to panels of columns: packed[panel][n][width], filled up with zeros. */
INLINE void pack_values(const float *v, ptrdiff_t stride, size_t keys, size_t values,
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
INLINE void multiply_step(vec sums[][COLUMNS], const float *a, ptrdiff_t a_stride,
                             const float *panel, size_t d, const int rows, const int columns) {
  vec b[COLUMNS];
  UNROLL for (int c = 0; c < columns; c++) b[c] = *(const vec *)(panel + c * LANES);
  UNROLL for (int m = 0; m < rows; m++) {
    const float x = a[m * a_stride + (ptrdiff_t)d];
    UNROLL for (int c = 0; c < columns; c++) sums[m][c] += x * b[c];
  }
}

/* out[m][0:width] = a[m][0:depth] · panel[0:depth][0:width] for `rows` rows; `rows` and `columns`,
 * the vectors of a row, are constants of the caller, so that all sums stay in registers. */
INLINE void multiply(const float *a, ptrdiff_t a_stride, const float *panel, size_t depth,
                        float *out, ptrdiff_t out_stride, const int rows, const int columns) {
  vec sums[MOST_ROWS][COLUMNS];
  UNROLL for (int m = 0; m < rows; m++) {
    UNROLL for (int c = 0; c < columns; c++) sums[m][c] = splat(0.0f);
  }
  const size_t width = (size_t)columns * LANES;
  size_t d = 0;
  for (; d + 4 <= depth; d += 4, panel += 4 * width) {
    UNROLL for (size_t i = 0; i < 4; i++) {
      multiply_step(sums, a, a_stride, panel + i * width, d + i, rows, columns);
    }
  }
  for (; d < depth; d++, panel += width) {
    multiply_step(sums, a, a_stride, panel, d, rows, columns);
  }
  UNROLL for (int m = 0; m < rows; m++) {
    UNROLL for (int c = 0; c < columns; c++) {
      *(vec *)(out + m * out_stride + c * LANES) = sums[m][c];
    }
  }
}

/* `rows` rows with a panel: as few tiles as there can be, of about as many rows each. */
INLINE void multiply_panel(const float *a, ptrdiff_t a_stride, size_t rows, const float *panel,
                              size_t depth, float *out, ptrdiff_t out_stride, const int columns) {
  const int most = SUMS / columns < MOST_ROWS ? SUMS / columns : MOST_ROWS;
  size_t left = (rows + (size_t)most - 1) / (size_t)most;
  for (size_t here; rows > 0; rows -= here, left--) {
    here = (rows + left - 1) / left;
#define NP_CASE(number)                                                                     \
  case number:                                                                              \
    if (number <= most) multiply(a, a_stride, panel, depth, out, out_stride, number, columns); \
    break;
    switch (here) {
      NP_CASE(1) NP_CASE(2) NP_CASE(3) NP_CASE(4) NP_CASE(5) NP_CASE(6)
      NP_CASE(7) NP_CASE(8) NP_CASE(9) NP_CASE(10) NP_CASE(11) NP_CASE(12)
    }
#undef NP_CASE
    a += (ptrdiff_t)here * a_stride;
    out += (ptrdiff_t)here * out_stride;
  }
}

/* `rows` rows with all panels of a packed matrix of depth × width. */
TARGET static void multiply_block(const float *a, ptrdiff_t a_stride, size_t rows,
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

/* One row of scores to scores · scale + mask, in place; gives the largest. There is room for whole
 * vectors: what is beyond `keys` becomes -infinity. */
INLINE float mask_row(float *scores, size_t keys, float scale, const float *mask,
                         const int step) {
  const float alike = step ? 0.0f : mask[0];
  vec most[4]; /* a comparison takes long */
  for (int i = 0; i < 4; i++) most[i] = splat(-INFINITY);
  size_t n = 0;
  for (; n + 4 * LANES <= keys; n += 4 * LANES) {
    for (int i = 0; i < 4; i++) {
      vec x = *(const vec *)(scores + n + i * LANES) * scale;
      x = step ? x + *(const vec *)(mask + n + i * LANES) : x + alike;
      *(vec *)(scores + n + i * LANES) = x;
      most[i] = larger(x, most[i]);
    }
  }
  for (; n + LANES <= keys; n += LANES) {
    vec x = *(const vec *)(scores + n) * scale;
    x = step ? x + *(const vec *)(mask + n) : x + alike;
    *(vec *)(scores + n) = x;
    most[0] = larger(x, most[0]);
  }
  if (n < keys) {
    static const ivec lanes = {NP_NUMBERS};
    const size_t here = keys - n;
    vec added = splat(alike);
    if (step) memcpy(&added, mask + n, here * sizeof(float));
    const vec x = *(const vec *)(scores + n) * scale + added;
    *(vec *)(scores + n) = choose(lanes < (int32_t)here, x, splat(-INFINITY));
    most[1] = larger(*(const vec *)(scores + n), most[1]);
  }
  return largest_of(larger(larger(most[0], most[1]), larger(most[2], most[3])));
}

/* The same with a mask of bytes: where they are not 0 is what they say of `fill`. */
INLINE float choose_row(float *scores, size_t keys, float scale, const uint8_t *mask,
                           const int step, const int filled, float fill) {
  typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
  static const ivec lanes = {NP_NUMBERS};
  vec most = splat(-INFINITY);
  for (size_t n = 0; n < keys; n += LANES) {
    const size_t here = keys - n < LANES ? keys - n : LANES;
    bytes read = mask[0] - (bytes){0};
    if (step && here == LANES) {
      read = *(const bytes *)(mask + n);
    } else if (step) {
      memcpy(&read, mask + n, here);
    }
    const ivec set = __builtin_convertvector(read, ivec) != 0;
    vec x = *(const vec *)(scores + n) * scale;
    x = filled ? choose(set, splat(fill), x) : choose(set, x, splat(fill));
    if (here < LANES) x = choose(lanes < (int32_t)here, x, splat(-INFINITY));
    *(vec *)(scores + n) = x;
    most = larger(x, most);
  }
  return largest_of(most);
}

/* A row of scores, scaled and masked. */
INLINE float mask_any(const struct np_attention_params *p, float *row, const void *mask,
                         ptrdiff_t offset) {
  static const float nothing = 0.0f;
  const int step = p->mask_strides[4] != 0;
  switch (p->mask) {
    case NP_MASK_NONE:
      return mask_row(row, p->keys, p->scale, &nothing, 0);
    case NP_MASK_ADDED: {
      const float *added = (const float *)mask + offset;
      return step ? mask_row(row, p->keys, p->scale, added, 1)
                  : mask_row(row, p->keys, p->scale, added, 0);
    }
    default: {
      const uint8_t *chosen = (const uint8_t *)mask + offset;
      const int filled = p->mask == NP_MASK_FILLED;
      return choose_row(row, p->keys, p->scale, chosen, step, filled, p->fill);
    }
  }
}

/* One row to exp(row - largest), in place; gives the sum. */
INLINE float exponentiate(float *row, size_t keys, float largest) {
  vec sums = splat(0.0f);
  for (size_t n = 0; n < keys; n += LANES) {
    const vec e = exp_of_at_most_0(*(const vec *)(row + n) - largest);
    *(vec *)(row + n) = e;
    sums += e;
  }
  return sum_of(sums);
}

/* Rows of scores to their exponentials, before they are divided by their sums. A row's largest and
 * its sum take long to come; what else there is to do for other rows fills the time. `offset` is
 * where the first row's mask starts. */
INLINE void weigh(const np_attention_job *task, float *scores, size_t row_size, size_t rows,
                     ptrdiff_t offset, float *sums) {
  const struct np_attention_params *p = task->params;
  float largest[NP_ATTENTION_MOST_ROWS];
  for (size_t m = 0; m < rows; m++) {
    const ptrdiff_t at = offset + (ptrdiff_t)m * p->mask_strides[3];
    largest[m] = mask_any(p, scores + m * row_size, task->mask, at);
  }
  for (size_t m = 0; m < rows; m++) {
    float *row = scores + m * row_size;
    sums[m] = exponentiate(row, p->keys, largest[m]);
    if (p->safe && sums[m] != sums[m]) {
      for (size_t n = 0; n < p->keys; n++) row[n] = 0.0f;
      sums[m] = 1.0f;
    }
  }
}

/* Scores of one query row with keys as they lie. */
INLINE void scores_of_row(const float *q, const float *k, ptrdiff_t stride, size_t keys,
                             size_t depth, float *scores) {
  const size_t whole = depth - depth % LANES;
  for (size_t n = 0; n < keys; n++, k += stride) {
    vec sums = splat(0.0f);
    for (size_t d = 0; d < whole; d += LANES) sums += *(const vec *)(q + d) * *(const vec *)(k + d);
    float sum = sum_of(sums);
    for (size_t d = whole; d < depth; d++) sum += q[d] * k[d];
    scores[n] = sum;
  }
}

/* Weighted sum of the values as they lie, divided by `sum`. */
INLINE void weigh_values(const float *weights, const float *v, ptrdiff_t stride, size_t keys,
                            size_t values, float sum, float *out) {
  size_t e = 0;
  for (; e + 4 * LANES <= values; e += 4 * LANES) {
    vec sums[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
    const float *row = v + e;
    for (size_t n = 0; n < keys; n++, row += stride) {
      for (int c = 0; c < 4; c++) sums[c] += weights[n] * *(const vec *)(row + c * LANES);
    }
    for (int c = 0; c < 4; c++) *(vec *)(out + e + c * LANES) = sums[c] / sum;
  }
  for (; e + LANES <= values; e += LANES) {
    vec sums = splat(0.0f);
    const float *row = v + e;
    for (size_t n = 0; n < keys; n++, row += stride) sums += weights[n] * *(const vec *)row;
    *(vec *)(out + e) = sums / sum;
  }
  for (; e < values; e++) {
    float total = 0.0f;
    for (size_t n = 0; n < keys; n++) total += weights[n] * v[(ptrdiff_t)n * stride + (ptrdiff_t)e];
    out[e] = total / sum;
  }
}

/* Which head this is, on each of the axes that heads have. */
INLINE void place_of(const struct np_attention_params *p, size_t number, size_t *at) {
  at[0] = number / p->heads[2] / p->heads[1];
  at[1] = number / p->heads[2] % p->heads[1];
  at[2] = number % p->heads[2];
}

/* Where a head of an operand starts. */
INLINE ptrdiff_t start_of(const size_t *at, const ptrdiff_t *strides) {
  return (ptrdiff_t)at[0] * strides[0] + (ptrdiff_t)at[1] * strides[1] +
         (ptrdiff_t)at[2] * strides[2];
}

/* Ask for rows of `size` floats: for writing, or to come to the second cache. Those of a head lie
 * far apart in the rows of a projection, where the processor does not see which come next. */
INLINE void ask(const float *rows, ptrdiff_t stride, size_t first, size_t last, size_t size,
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
INLINE void ask_for_part(const np_attention_job *task, size_t number, size_t part, size_t parts) {
  const struct np_attention_params *p = task->params;
  size_t at[3];
  place_of(p, number, at);
  const size_t first = p->rows * part / parts, last = p->rows * (part + 1) / parts;
  const size_t first_key = p->keys * part / parts, last_key = p->keys * (part + 1) / parts;
  ask(task->q + start_of(at, p->q_strides), p->q_strides[3], first, last, p->depth, 0);
  ask(task->k + start_of(at, p->k_strides), p->k_strides[3], first_key, last_key, p->depth, 0);
  ask(task->v + start_of(at, p->v_strides), p->v_strides[3], first_key, last_key, p->values, 0);
}

/* One row of results, divided by the sum of its weights. */
INLINE void divide(const float *from, float sum, float *to, size_t values) {
  const float factor = 1.0f / sum;
  size_t e = 0;
  for (; e + LANES <= values; e += LANES) {
    *(vec *)(to + e) = *(const vec *)(from + e) * factor;
  }
  for (; e < values; e++) to[e] = from[e] * factor;
}

TARGET void HEAD(const np_attention_job *task, size_t number, size_t first, size_t last,
                 float *scratch) {
  const struct np_attention_params *p = task->params;
  size_t at[3];
  place_of(p, number, at);
  const float *q = task->q + start_of(at, p->q_strides);
  const float *k = task->k + start_of(at, p->k_strides);
  const float *v = task->v + start_of(at, p->v_strides);
  float *out = task->out + start_of(at, p->out_strides);
  const ptrdiff_t masked = start_of(at, p->mask_strides);
  const size_t keys = (p->keys + LANES - 1) / LANES * LANES;
  const size_t values = (p->values + LANES - 1) / LANES * LANES;
  if (last - first < FEW_ROWS) {
    float *scores = scratch;
    for (size_t m = first; m < last; m++) {
      scores_of_row(q + (ptrdiff_t)m * p->q_strides[3], k, p->k_strides[3], p->keys, p->depth,
                    scores);
      float sum;
      weigh(task, scores, 0, 1, masked + (ptrdiff_t)m * p->mask_strides[3], &sum);
      weigh_values(scores, v, p->v_strides[3], p->keys, p->values, sum,
                   out + (ptrdiff_t)m * p->out_strides[3]);
    }
    return;
  }
  float *packed_keys = scratch;
  float *packed_values = packed_keys + keys * p->depth;
  float *scores = packed_values + p->keys * values;
  float *results = scores + p->block * keys;
  float sums[NP_ATTENTION_MOST_ROWS];
  pack_keys(k, p->k_strides[3], p->keys, p->depth, packed_keys);
  pack_values(v, p->v_strides[3], p->keys, p->values, packed_values);
  const size_t blocks = (last - first + p->block - 1) / p->block;
  for (size_t start = first, block = 0; start < last; start += p->block, block++) {
    const size_t rows = last - start < p->block ? last - start : p->block;
    if (number + 1 < task->heads) ask_for_part(task, number + 1, block, blocks);
    ask(out, p->out_strides[3], start, start + rows, p->values, 1);
    multiply_block(q + (ptrdiff_t)start * p->q_strides[3], p->q_strides[3], rows, packed_keys,
                   p->depth, p->keys, scores, (ptrdiff_t)keys);
    weigh(task, scores, keys, rows, masked + (ptrdiff_t)start * p->mask_strides[3], sums);
    multiply_block(scores, (ptrdiff_t)keys, rows, packed_values, p->keys, p->values, results,
                   (ptrdiff_t)values);
    for (size_t m = 0; m < rows; m++) {
      divide(results + m * values, sums[m], out + (ptrdiff_t)(start + m) * p->out_strides[3],
             p->values);
    }
  }
}
