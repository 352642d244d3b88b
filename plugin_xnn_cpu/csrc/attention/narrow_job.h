/* Attention over caches in chunks, as its code for each instruction set has it. */
#pragma once

#include "attention/head.h"
#include "attention/narrow.h"

/* The largest score of a query row in a chunk, and the sum of the exponentials; the weighted sum of
 * values lies behind. */
#define NP_CHUNK_HEADER 2

typedef struct {
  const np_attention_job *task; /* with the number of rows that there are as `keys` */
  int32_t type;                 /* NP_CACHE_* */
  const char *k;
  const char *v;
  const float *k_scales; /* NULL but for int8 */
  const float *v_scales;
  size_t chunks;
  float *partial; /* for each head, chunk and query row: the header, and the sum */
} np_chunk_job;

/* One chunk of one head. */
typedef void np_attention_chunk(const np_chunk_job *job, size_t head, size_t chunk,
                                float *scratch);

/* Merge the chunks of one head to its result. */
typedef void np_attention_merge(const np_chunk_job *job, size_t head);

/* Upcast all rows of keys and values of a head to dense rows. */
typedef void np_attention_upcast(const np_chunk_job *job, size_t head, float *keys, float *values);

NP_DECLARE_FROM_SSE4(np_attention_chunk, np_attention_chunk);
NP_DECLARE_FROM_SSE4(np_attention_merge, np_attention_merge);
NP_DECLARE_FROM_SSE4(np_attention_upcast, np_attention_upcast);

/* Bytes of an element of a cache. */
NP_INLINE size_t size_of_type(const int type) {
  return type == NP_CACHE_FLOAT32 ? 4 : type == NP_CACHE_INT8 ? 1 : 2;
}

/* Floats of the workspace for the chunks of all heads, and for a chunk that a thread attends. */
NP_INLINE size_t np_partial_floats(const struct np_attention_params *p) {
  const size_t heads = p->heads[0] * p->heads[1] * p->heads[2];
  const size_t rows = heads * np_ceil_div(p->keys, NP_CACHE_CHUNK) * p->rows;
  return rows * (NP_CHUNK_HEADER + p->values);
}

NP_INLINE size_t np_scratch_floats(const struct np_attention_params *p) {
  const size_t most_lanes = 16;
  const size_t floats = p->rows * (NP_CACHE_CHUNK + p->depth) + most_lanes * p->depth;
  return np_ceil_div(floats, most_lanes) * most_lanes;
}

/* The chunks of keys and values from row `first` of each head on; `elements` of both caches where
 * they are int8. */
np_chunk_job np_chunks_of(const np_attention_job *task, int32_t type, const size_t *elements,
                          size_t first);

/* Attend few query rows over caches of any type, in chunks. `task` has params whose `keys` are the
 * rows that there are from row `first` of each cache on. */
void np_attend_chunks(const np_attention_job *task, int32_t type, const size_t *cache_elements,
                      size_t first, np_workers *workers);
