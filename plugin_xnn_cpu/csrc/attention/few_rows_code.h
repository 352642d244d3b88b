/* Attention of a few query rows, for one instruction set: keys and values are read unpacked.
 *
 * Where they are what a cache and new rows form, the cache is read once, in blocks: one is copied
 * to where the keys or values are to lie, and computed with while it is near. What non-temporal
 * stores write need not be read from memory before. attention/code.h includes this. */

#define BLOCK_FLOATS 512 /* that are copied at a time */
#define PREFETCH_BYTES 2048        /* of a KV cache, in front of what is copied */

/* Scores of one query row, scaled, with unpacked keys. */
NP_INLINE void scores_of_row(const float *q, const float *k, ptrdiff_t stride, size_t keys,
                          size_t depth, float scale, float *scores) {
  const size_t whole = depth - depth % REDUCED_LANES, rest = depth - whole;
  for (size_t n = 0; n < keys; n++, k += stride) {
    vec acc[SPANS] = {zero()};
    for (size_t d = 0; d < whole; d += REDUCED_LANES) {
      UNROLL for (int s = 0; s < SPANS; s++) {
        const size_t at = d + (size_t)s * LANES;
        acc[s] = multiply_add(load(q + at) * scale, load(k + at), acc[s]);
      }
    }
    if (rest > 0) {
      UNROLL for (int s = 0; s < SPANS; s++) {
        const size_t at = whole + (size_t)s * LANES, some = lanes_of_span(rest, s);
        if (some == 0) break;
        acc[s] = multiply_add(load_some(q + at, some) * scale, load_some(k + at, some), acc[s]);
      }
    }
    scores[n] = sum_of_spans(acc);
  }
}

/* out += weighted sum of the unpacked values. */
NP_INLINE void add_values(const float *weights, const float *v, ptrdiff_t stride, size_t keys,
                       size_t values, float *out) {
  size_t e = 0;
  for (; e + 4 * LANES <= values; e += 4 * LANES) {
    vec acc[4];
    for (int c = 0; c < 4; c++) acc[c] = *(const vec *)(out + e + c * LANES);
    const float *row = v + e;
    for (size_t n = 0; n < keys; n++, row += stride) {
      const vec weight = broadcast(weights[n]);
      for (int c = 0; c < 4; c++) acc[c] = multiply_add(weight, load(row + c * LANES), acc[c]);
    }
    for (int c = 0; c < 4; c++) *(vec *)(out + e + c * LANES) = acc[c];
  }
  for (; e + LANES <= values; e += LANES) {
    vec acc = *(const vec *)(out + e);
    const float *row = v + e;
    for (size_t n = 0; n < keys; n++, row += stride) {
      acc = multiply_add(broadcast(weights[n]), load(row), acc);
    }
    *(vec *)(out + e) = acc;
  }
  if (e < values) {
    const size_t some = values - e;
    vec acc = load_some(out + e, some);
    const float *row = v + e;
    for (size_t n = 0; n < keys; n++, row += stride) {
      acc = multiply_add(broadcast(weights[n]), load_some(row, some), acc);
    }
    store_some(out + e, acc, some);
  }
}

/* Attention of one query row of a head, whose K and V are one buffer each: no KV cache is
 * concatenated. */
NP_INLINE void attend_row(const np_attention_job *task, size_t row, const float *q, const float *k,
                          const float *v, ptrdiff_t masked, float *scores, float *out) {
  const struct np_attention_params *p = task->params;
  float sum;
  scores_of_row(q, k, p->k_strides[3], p->keys, p->depth, p->scale, scores);
  weigh(task, scores, 0, row, 1, masked, &sum);
  memset(out, 0, p->values * sizeof *out);
  add_values(scores, v, p->v_strides[3], p->keys, p->values, out);
  divide(out, sum, out, p->values);
}

/* Copy a block of a cache, unless it lies where it belongs. What lies PREFETCH_BYTES behind it is prefetched on the way: requests
 * for all of it at once would wait for each other. */
NP_INLINE void copy_block(const float *from, float *to, size_t count, int streamed) {
  size_t i = 0;
  if (from == to) return;
  if (!streamed) {
    memcpy(to, from, count * sizeof *to);
    return;
  }
  for (; i < count && (uintptr_t)(to + i) % sizeof(vec) != 0; i++) to[i] = from[i];
  for (; i + LANES <= count; i += LANES) {
    __builtin_prefetch((const char *)(from + i) + PREFETCH_BYTES, 0, 3);
    stream(to + i, load(from + i));
  }
  for (; i < count; i++) to[i] = from[i];
}

/* All rows of one head: the first of its keys and values come from a cache, the others lie behind
 * where that goes. */
void NP_OF_ISA(np_attention_cache)(const np_attention_job *task, size_t number, float *scratch) {
  const struct np_attention_params *p = task->params;
  const struct np_cached_attention_params *c = task->cached;
  size_t at[3];
  place_of(p, number, at);
  const head_parts h = parts_of(task, at);
  const float *past_k = task->past_k + start_of(at, c->k_strides);
  const float *past_v = task->past_v + start_of(at, c->v_strides);
  float *k = (float *)h.k, *v = (float *)h.v; /* they are written here, and nowhere else */
  const size_t past = c->past, depth = p->depth, values = p->values;
  const size_t wide = (p->keys + LANES - 1) / LANES * LANES;
  float acc[NP_ATTENTION_CACHE_ROWS];
  size_t block = 1 + (BLOCK_FLOATS - 1) / depth;
  for (size_t n = 0; n < past; n += block) {
    const size_t here = past - n < block ? past - n : block;
    const float *from = past_k + n * depth;
    copy_block(from, k + n * depth, here * depth, c->streamed);
    for (size_t m = 0; m < p->rows; m++) {
      scores_of_row(h.q + (ptrdiff_t)m * p->q_strides[3], from, (ptrdiff_t)depth, here, depth,
                    p->scale, scratch + m * wide + n);
    }
  }
  for (size_t m = 0; m < p->rows; m++) {
    scores_of_row(h.q + (ptrdiff_t)m * p->q_strides[3], k + past * depth, (ptrdiff_t)depth,
                  p->keys - past, depth, p->scale, scratch + m * wide + past);
    memset(h.out + (ptrdiff_t)m * p->out_strides[3], 0, values * sizeof *h.out);
  }
  weigh(task, scratch, wide, 0, p->rows, h.masked, acc);
  block = 1 + (BLOCK_FLOATS - 1) / values;
  for (size_t n = 0; n < past; n += block) {
    const size_t here = past - n < block ? past - n : block;
    const float *from = past_v + n * values;
    copy_block(from, v + n * values, here * values, c->streamed);
    for (size_t m = 0; m < p->rows; m++) {
      add_values(scratch + m * wide + n, from, (ptrdiff_t)values, here, values,
                 h.out + (ptrdiff_t)m * p->out_strides[3]);
    }
  }
  for (size_t m = 0; m < p->rows; m++) {
    float *to = h.out + (ptrdiff_t)m * p->out_strides[3];
    add_values(scratch + m * wide + past, v + past * values, (ptrdiff_t)values, p->keys - past,
               values, to);
    divide(to, acc[m], to, values);
  }
  if (c->streamed) end_streams();
}
