/* KV caches in narrow types, and attention over them. Read by cffi too: no directives but simple
 * constants. */
#pragma once

#include "attention/attention.h"

/* Element types of caches. A cache of int8 has one float32 scale for each of its rows of `depth`
 * elements, in the same order; they lie behind its elements. An element times its scale is what it
 * stands for. */
#define NP_CACHE_FLOAT32 0
#define NP_CACHE_FLOAT16 1
#define NP_CACHE_BFLOAT16 2
#define NP_CACHE_INT8 3

/* Rows of a cache that are attended at a time: scores, their exponentials and the weighted sum of
 * values, before these are merged with those of other chunks. */
#define NP_CACHE_CHUNK 512

/* Query rows of a head that are attended so, at most: one token's, of all heads that share keys. */
#define NP_CACHE_MAX_ROWS 32

/* np_appended_attention whose keys and values are narrow; their strides are in elements. With
 * `at_once` set, caches are read in chunks; else those of a head are upcast before. */
struct np_narrow_attention_params {
  struct np_appended_attention_params appended;
  int32_t type;            /* NP_CACHE_* */
  size_t cache_elements[2]; /* of all keys, and of all values */
};

/* Floats of the workspace for attention of few query rows, `params->keys` at most, in chunks. */
size_t np_chunked_floats(const struct np_attention_params *params, size_t threads);

/* New rows, of float32, are narrowed and written behind those that a cache has; operands are those
 * of np_append. Axes are those of the new rows but the last one, which has `depth` elements. */
struct np_narrow_append_params {
  size_t rank;
  size_t sizes[8];
  ptrdiff_t in_strides[8];
  ptrdiff_t out_strides[8];
  size_t depth;
  ptrdiff_t depth_stride; /* of the new rows */
  size_t new_rows;
  size_t capacity;       /* in rows */
  size_t row_elements;   /* from a row of the cache to the next one */
  size_t cache_elements; /* of the whole cache */
  int32_t type;          /* NP_CACHE_* */
};
