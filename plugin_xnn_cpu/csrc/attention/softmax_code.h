/* Rows of scores, masked, to the weights of values, for one instruction set;
 * attention/code.h includes this. */

#include "simd/exp.h"

/* One row of scores to scores + mask, in place; returns the largest. There is room for whole
 * vectors: what is beyond `keys` becomes -infinity. */
NP_INLINE float mask_row(float *scores, size_t keys, const float *mask, const int step) {
  const float alike = step ? 0.0f : mask[0];
  vec most[4]; /* a comparison takes long */
  for (int i = 0; i < 4; i++) most[i] = broadcast(-INFINITY);
  size_t n = 0;
  for (; n + 4 * LANES <= keys; n += 4 * LANES) {
    for (int i = 0; i < 4; i++) {
      vec x = *(const vec *)(scores + n + i * LANES);
      x = step ? x + *(const vec *)(mask + n + i * LANES) : x + alike;
      *(vec *)(scores + n + i * LANES) = x;
      most[i] = larger(x, most[i]);
    }
  }
  for (; n + LANES <= keys; n += LANES) {
    vec x = *(const vec *)(scores + n);
    x = step ? x + *(const vec *)(mask + n) : x + alike;
    *(vec *)(scores + n) = x;
    most[0] = larger(x, most[0]);
  }
  if (n < keys) {
    static const ivec lanes = {NP_LANE_NUMBERS};
    const size_t here = keys - n;
    vec added = broadcast(alike);
    if (step) memcpy(&added, mask + n, here * sizeof(float));
    const vec x = *(const vec *)(scores + n) + added;
    *(vec *)(scores + n) = choose(lanes < (int32_t)here, x, broadcast(-INFINITY));
    most[1] = larger(*(const vec *)(scores + n), most[1]);
  }
  return largest_of(larger(larger(most[0], most[1]), larger(most[2], most[3])));
}

/* The same with a mask of bytes: where they are not 0 is what they say of `fill`. */
NP_INLINE float choose_row(float *scores, size_t keys, const uint8_t *mask, const int step,
                        const int filled, float fill) {
  typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
  static const ivec lanes = {NP_LANE_NUMBERS};
  vec most = broadcast(-INFINITY);
  for (size_t n = 0; n < keys; n += LANES) {
    const size_t here = keys - n < LANES ? keys - n : LANES;
    bytes read = mask[0] - (bytes){0};
    if (step && here == LANES) {
      read = *(const bytes *)(mask + n);
    } else if (step) {
      memcpy(&read, mask + n, here);
    }
    const ivec set = __builtin_convertvector(read, ivec) != 0;
    vec x = *(const vec *)(scores + n);
    x = filled ? choose(set, broadcast(fill), x) : choose(set, x, broadcast(fill));
    if (here < LANES) x = choose(lanes < (int32_t)here, x, broadcast(-INFINITY));
    *(vec *)(scores + n) = x;
    most = larger(x, most);
  }
  return largest_of(most);
}

/* A row of scores, masked. */
NP_INLINE float mask_any(const struct np_attention_params *p, float *row, const void *mask,
                      ptrdiff_t offset) {
  static const float nothing = 0.0f;
  const int step = p->mask_strides[4] != 0;
  switch (p->mask) {
    case NP_MASK_NONE:
      return mask_row(row, p->keys, &nothing, 0);
    case NP_MASK_ADDED: {
      const float *added = (const float *)mask + offset;
      return step ? mask_row(row, p->keys, added, 1)
                  : mask_row(row, p->keys, added, 0);
    }
    default: {
      const uint8_t *chosen = (const uint8_t *)mask + offset;
      const int filled = p->mask == NP_MASK_FILLED;
      return choose_row(row, p->keys, chosen, step, filled, p->fill);
    }
  }
}

/* One row to exp(row - largest), in place; returns the sum. */
NP_INLINE float exponentiate(float *row, size_t keys, float largest) {
  vec acc[SPANS] = {zero()};
  size_t n = 0;
  for (; n + REDUCED_LANES <= keys; n += REDUCED_LANES) {
    UNROLL for (int s = 0; s < SPANS; s++) {
      const vec e = exp_of_at_most_0(load(row + n + s * LANES) - largest);
      store(row + n + s * LANES, e);
      acc[s] += e;
    }
  }
  UNROLL for (int s = 0; s < SPANS; s++, n += LANES) {
    if (n >= keys) break;
    const vec e = exp_of_at_most_0(load(row + n) - largest); /* 0 behind the last key */
    store(row + n, e);
    acc[s] += e;
  }
  return sum_of_spans(acc);
}

/* cap · tanh(scores / cap), in place. With t = exp(-2|x|), tanh(|x|) is (1 - t) / (1 + t). */
NP_INLINE void cap_row(float *scores, size_t keys, float cap) {
  const vec zero = broadcast(0.0f);
  for (size_t n = 0; n < keys; n += LANES) {
    const vec x = *(const vec *)(scores + n) * (1.0f / cap);
    const vec size = choose(x < zero, -x, x);
    const vec t = exp_of_at_most_0(size * -2.0f);
    const vec capped = (1.0f - t) / (1.0f + t) * cap;
    *(vec *)(scores + n) = choose(x < zero, -capped, capped);
  }
}

/* Scores of keys that row `row` does not see become -infinity. The scores are those of the keys
 * from `first` on. */
NP_INLINE void hide_unseen(const struct np_visible *visible, size_t row, size_t first,
                           float *scores, size_t keys) {
  const size_t last = visible->position + (visible->moves ? row : 0) + 1;
  const size_t size = visible->window_size;
  const size_t start = size > 0 && last > size ? last - size : 0;
  for (size_t n = first; n < start && n < first + keys; n++) scores[n - first] = -INFINITY;
  if (!visible->causal) return;
  for (size_t n = last > first ? last : first; n < first + keys; n++) scores[n - first] = -INFINITY;
}

/* Rows of scores to their exponentials, before they are divided by their sum. A row's
 * largest and its sum take long to come; what else there is to do for other rows fills the time.
 * `first` is the number of the first row, and `offset` where its mask starts. */
NP_INLINE void weigh(const np_attention_job *task, float *scores, size_t row_size, size_t first,
                  size_t rows, ptrdiff_t offset, float *acc) {
  const struct np_attention_params *p = task->params;
  float largest[NP_ATTENTION_MAX_ROWS];
  for (size_t m = 0; m < rows; m++) {
    const ptrdiff_t at = offset + (ptrdiff_t)m * p->mask_strides[3];
    if (p->softcap > 0.0f) cap_row(scores + m * row_size, p->keys, p->softcap);
    if (p->visible.causal || p->visible.window_size > 0) {
      hide_unseen(&p->visible, first + m, 0, scores + m * row_size, p->keys);
    }
    largest[m] = mask_any(p, scores + m * row_size, task->mask, at);
  }
  for (size_t m = 0; m < rows; m++) {
    float *row = scores + m * row_size;
    acc[m] = exponentiate(row, p->keys, largest[m]);
    if (p->safe && acc[m] != acc[m]) {
      for (size_t n = 0; n < p->keys; n++) row[n] = 0.0f;
      acc[m] = 1.0f;
    }
  }
}
