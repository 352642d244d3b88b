/* Attention, as its code for each instruction set has it. */
#pragma once

#include "attention/attention.h"
#include "runtime/kernel.h"


typedef struct {
  const struct np_attention_params *params;
  const float *q;
  const float *k;
  const float *v;
  const void *mask;
  float *out;
  float *scratch;
  size_t heads; /* that come one after the other; 0 where each is divided into parts */
  /* Of attention with a cache. */
  const struct np_cached_attention_params *cached;
  const float *past_k;
  const float *past_v;
} np_attention_job;

/* Rows from `first` to `last` of one head. */
typedef void np_attention_head(const np_attention_job *task, size_t number, size_t first,
                               size_t last, float *scratch);

/* All rows of one head, and the copy of its cache. */
typedef void np_attention_cache(const np_attention_job *task, size_t number, float *scratch);

/* Which head this is, on each of the axes that heads have. */
NP_INLINE void place_of(const struct np_attention_params *p, size_t number, size_t *at) {
  at[0] = number / p->heads[2] / p->heads[1];
  at[1] = number / p->heads[2] % p->heads[1];
  at[2] = number % p->heads[2];
}

/* Where a head of an operand starts. */
NP_INLINE ptrdiff_t start_of(const size_t *at, const ptrdiff_t *strides) {
  return (ptrdiff_t)at[0] * strides[0] + (ptrdiff_t)at[1] * strides[1] +
         (ptrdiff_t)at[2] * strides[2];
}

/* Set the position of the first query row, and leave out keys that are too far in front of all
 * rows for `window_size`: their number, which callers add to the addresses of keys, values and
 * mask. `keys` are those there are. */
NP_INLINE size_t np_hide_keys(struct np_attention_params *p, size_t position) {
  const size_t size = p->visible.window_size;
  const size_t hidden = size > 0 && position + 1 > size ? position + 1 - size : 0;
  p->keys -= hidden;
  p->visible.position = position - hidden;
  return hidden;
}

NP_DECLARE_FROM_SSE4(np_attention_head, np_attention_head);
NP_DECLARE_FROM_SSE4(np_attention_cache, np_attention_cache);
