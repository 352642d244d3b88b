/* Attention, as its code for each instruction set has it. */
#pragma once

#include "attention/attention.h"
#include "runtime/kernel.h"

#define NP_ATTENTION_SKINNY_ROWS 4 /* from so many rows of a part on, keys and values are packed */

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

NP_DECLARE_FOR_ISAS(np_attention_head, np_attention_head);
NP_DECLARE_FOR_ISAS(np_attention_cache, np_attention_cache);
