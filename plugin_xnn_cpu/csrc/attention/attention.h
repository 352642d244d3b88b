/* Attention. Read by cffi too: no directives but simple constants. */
#pragma once

#include "movement/copy.h"
#include "runtime/isa.h"

/* A block of query rows in attention; their accumulators are kept aside. */
#define NP_ATTENTION_MAX_ROWS 48

/* What a mask does to the scores, which are multiplied by `scale` first. */
#define NP_MASK_NONE 0
#define NP_MASK_ADDED 1  /* floats that are added */
#define NP_MASK_KEPT 2   /* bytes: where they are 0, the score becomes `fill` */
#define NP_MASK_FILLED 3 /* bytes: where they are not 0, the score becomes `fill` */

/* Keys that a query row does not see, beside those of the mask. The row's own position is
 * `position`, and that of each further row one more where `moves` is set: rows that are heads of
 * one query are all at one position. Where `causal` is set, keys behind it are not seen; where
 * `window_size` is not 0, none but the last `window_size` up to it are. */
struct np_visible {
  size_t position;
  size_t window_size;
  int32_t causal;
  int32_t moves;
};

/* out[h, m, :] = softmax(q[h, m, :] · k[h, :, :] · scale + mask[h, m, :]) · v[h] over all h below
 * `heads`: batches, groups, and heads in each group, which share keys and values where these have
 * a stride of 0. q is of rows × depth, k of keys × depth, v of keys × values, whose last axes are
 * dense. A stride is 0 where an operand is broadcast; the mask's last one is 0 or 1. */
struct np_attention_params {
  size_t heads[3];
  size_t rows;
  size_t keys;
  size_t depth;
  size_t values;
  ptrdiff_t q_strides[4];
  ptrdiff_t k_strides[4];
  ptrdiff_t v_strides[4];
  ptrdiff_t out_strides[4];
  ptrdiff_t mask_strides[5];
  int32_t mask; /* NP_MASK_* */
  float fill;
  float scale;
  float softcap; /* c: scores become c · tanh(scores / c) before they are masked; 0 for nothing */
  struct np_visible visible;
  int32_t safe;          /* rows of scores whose exponentials are NaN become zeros */
  size_t block;          /* query rows whose scores are in memory at a time */
  size_t parts;          /* that the rows of a head are divided into, for threads */
  size_t part_rows;      /* rows of a part */
  int32_t unpacked;      /* keys and values are multiplied as they are: for few query rows */
  int32_t target;        /* NP_TARGET_* */
  size_t thread_scratch; /* floats of the workspace that each thread has for itself */
  /* Heads of keys and values that are rounded to bfloat16 and packed at a time, where tiles multiply:
   * attention/bf16.c. 0 where all is computed in float32. */
  size_t packed_heads;
};

/* Heads whose packed keys and values have no more bytes, one at least; and the bytes of the workspace
 * of attention with so many `packed_heads`. */
size_t np_attention_bf16_heads(const struct np_attention_params *params, size_t most_bytes);
size_t np_attention_bf16_bytes(const struct np_attention_params *params, size_t threads);

/* Query rows of a head that are computed while its cache is copied. */
#define NP_ATTENTION_CACHE_ROWS 8

/* Attention whose first `past` keys and values are those of caches, dense in the last two axes, and
 * belong where its keys and values lie, in front of the others: they are written there. Where
 * `at_once` is set, no two heads share keys or values, there are no more rows than are computed so,
 * and a head is computed while its cache is copied; else the caches are copied first. Where
 * `streamed` is set, the copies are non-temporal stores. */
struct np_cached_attention_params {
  struct np_attention_params attention; /* of no rows where there is only something to copy */
  struct np_copy_params copies[2];
  size_t cache_input; /* of keys; that of values follows */
  size_t past;
  ptrdiff_t k_strides[3]; /* of the caches' heads */
  ptrdiff_t v_strides[3];
  int32_t at_once;
  int32_t streamed;
};

/* Attention over the rows that a KV cache of `attention.keys` rows has so far: the number of rows
 * before this run, which is the position of the first query row where there is a visible, an int64 operand, and `new_rows` that this run has written behind them. The
 * strides of keys and values are those of the whole cache. A mask has a column for each row that
 * there is, or one column; where it has more, its other strides are in rows of the mask. */
struct np_appended_attention_params {
  struct np_attention_params attention;
  size_t length_input; /* of the number of rows */
  size_t new_rows;
  int32_t mask_rows; /* whether the mask's strides are in rows */
  int32_t at_once;   /* whether few query rows read keys and values once, in blocks */
  int32_t chunked;   /* whether more rows of the cache than a chunk are attended in chunks */
};
