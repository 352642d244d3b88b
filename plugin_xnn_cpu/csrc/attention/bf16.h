/* Attention of many query rows by tiles of bfloat16: how keys and values are packed, and its code. */
#pragma once

#include "attention/narrow_job.h"

#define NP_BF16_QUERY_ROWS 32  /* of a block: two tiles */
#define NP_BF16_BLOCK_KEYS 256 /* whose scores are in memory at a time */
#define NP_BF16_PANEL 32       /* columns of a panel; K is padded to as many, with zeros */

/* Keys that rows of a block see: from `first` on, a multiple of NP_BF16_PANEL, and in front of `last`.
 * Those in front of `clear`, a multiple too, are not masked for any row. */
typedef struct {
  size_t first;
  size_t clear;
  size_t last;
} np_bf16_seen;

typedef struct {
  const np_chunk_job *operands; /* keys and values of any type; its `chunks` and `partial` are not read */
  size_t first;                 /* of the heads whose keys and values are packed */
  uint16_t *packed;             /* of each: its keys, then its values */
  np_bf16_seen *seen;           /* by the mask, of each block of rows; NULL where it was not read */
} np_bf16_attention;

/* Pack NP_BF16_PANEL keys and values from number `panel` of them on, of head `head` of those that
 * are packed. Keys are [panels of keys][pairs of depth][NP_BF16_PANEL][2], values [panels of
 * values][pairs of keys][NP_BF16_PANEL][2]. */
typedef void np_attention_bf16_pack(const np_bf16_attention *job, size_t head, size_t panel);

/* Find the keys that rows of a block see by the mask, which is added and the same for all heads. */
typedef void np_attention_bf16_look(const np_bf16_attention *job, size_t block);

/* Attend NP_BF16_QUERY_ROWS rows, or those that are left, of query head `head`. */
typedef void np_attention_bf16_block(const np_bf16_attention *job, size_t head, size_t block,
                                     uint8_t *scratch);

#ifdef NP_CHOOSES_CPU
/* Where NP_HAS_AVX512AMX. */
np_attention_bf16_pack np_attention_bf16_pack_avx512amx;
np_attention_bf16_look np_attention_bf16_look_avx512amx;
np_attention_bf16_block np_attention_bf16_block_avx512amx;
#endif

NP_INLINE size_t np_bf16_wide(size_t size) {
  return np_ceil_div(size, NP_BF16_PANEL) * NP_BF16_PANEL;
}

/* Elements of the packed keys of a head, and of its keys and values. */
NP_INLINE size_t np_bf16_keys_size(const struct np_attention_params *p) {
  return np_bf16_wide(p->keys) * np_bf16_wide(p->depth);
}
NP_INLINE size_t np_bf16_head_size(const struct np_attention_params *p) {
  return np_bf16_keys_size(p) + np_bf16_wide(p->keys) * np_bf16_wide(p->values);
}

/* Bytes of what is seen of all blocks of rows, whole cache lines. */
NP_INLINE size_t np_bf16_seen_size(const struct np_attention_params *p) {
  const size_t blocks = np_ceil_div(p->rows, NP_BF16_QUERY_ROWS);
  return np_ceil_div(blocks * sizeof(np_bf16_seen), 64) * 64;
}

/* Query heads that share keys and values. */
NP_INLINE size_t np_bf16_sharing(const struct np_attention_params *p) {
  return p->k_strides[2] == 0 && p->v_strides[2] == 0 ? p->heads[2] : 1;
}

/* Bytes of a thread's scratch: the block's queries, scores and weighted values. */
NP_INLINE size_t np_bf16_scratch_size(const struct np_attention_params *p) {
  const size_t queries = np_bf16_wide(p->depth) * sizeof(uint16_t);
  const size_t floats = NP_BF16_BLOCK_KEYS + np_bf16_wide(p->values);
  return NP_BF16_QUERY_ROWS * (queries + floats * sizeof(float));
}

/* Attend all query rows; `operands` has keys and values as they are stored. */
void np_attend_bf16(const np_chunk_job *operands, np_workers *workers);
