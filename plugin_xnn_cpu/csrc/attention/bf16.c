/* Attention of many query rows, whose operands are rounded to bfloat16: what models accept that round
 * these rows otherwise (see `packed_heads`).
 *
 * Keys and values of some heads at a time are packed as tiles read them, in parts that threads
 * divide; then threads divide the blocks of query rows of all heads that read them. A block goes
 * over its keys in blocks, too, whose scores stay in L1: each has its largest score, by which
 * exponentials are scaled, and what was accumulated before is scaled anew where a larger one comes (online
 * softmax; Milakov and Gimelshein, 2018). Keys that no row of a block sees are left out:
 * behind a causal mask or a sliding window, or where a mask that all heads share is -infinity.
 * A block is one thread's, so that results do not depend on their number. */
#include "attention/bf16.h"

static size_t query_heads(const struct np_attention_params *p) {
  return p->heads[0] * p->heads[1] * p->heads[2];
}

size_t np_attention_bf16_bytes(const struct np_attention_params *params, size_t threads) {
  return np_bf16_seen_size(params) +
         params->packed_heads * np_bf16_head_size(params) * sizeof(uint16_t) +
         threads * np_bf16_scratch_size(params);
}

size_t np_attention_bf16_heads(const struct np_attention_params *params, size_t most_bytes) {
  const size_t fit = most_bytes / (np_bf16_head_size(params) * sizeof(uint16_t));
  return np_max(1, np_min(fit, query_heads(params) / np_bf16_sharing(params)));
}

#if NP_HAS_AVX512AMX
typedef struct {
  np_bf16_attention job;
  uint8_t *scratch;
} context;

static void pack_part(void *given, size_t thread, size_t index) {
  (void)thread;
  const context *c = given;
  const size_t panels = np_ceil_div(c->job.operands->task->params->keys, NP_BF16_PANEL);
  np_attention_bf16_pack_avx512amx(&c->job, index / panels, index % panels);
}

static void look_part(void *given, size_t thread, size_t index) {
  (void)thread;
  const context *c = given;
  np_attention_bf16_look_avx512amx(&c->job, index);
}

/* Whether to look at the mask before: it is added, and read by several heads. */
static int is_looked_at(const struct np_attention_params *p) {
  if (p->mask != NP_MASK_ADDED || p->mask_strides[4] != 1 || p->mask_strides[3] == 0) return 0;
  for (int i = 0; i < 3; i++) {
    if (p->heads[i] > 1 && p->mask_strides[i] != 0) return 0;
  }
  return 1;
}

static void block_part(void *given, size_t thread, size_t index) {
  const context *c = given;
  const struct np_attention_params *p = c->job.operands->task->params;
  const size_t blocks = np_ceil_div(p->rows, NP_BF16_QUERY_ROWS);
  const size_t head = c->job.first * np_bf16_sharing(p) + index / blocks;
  np_attention_bf16_block_avx512amx(&c->job, head, index % blocks,
                                    c->scratch + thread * np_bf16_scratch_size(p));
}

void np_attend_bf16(const np_chunk_job *operands, np_workers *workers) {
  const struct np_attention_params *p = operands->task->params;
  const size_t sharing = np_bf16_sharing(p), heads = query_heads(p) / sharing;
  const size_t panels = np_ceil_div(p->keys, NP_BF16_PANEL);
  const size_t blocks = np_ceil_div(p->rows, NP_BF16_QUERY_ROWS);
  uint8_t *scratch = (uint8_t *)(void *)operands->task->scratch;
  context c = {.job = {.operands = operands}};
  if (is_looked_at(p)) c.job.seen = (np_bf16_seen *)(void *)scratch;
  scratch += np_bf16_seen_size(p);
  c.job.packed = (uint16_t *)(void *)scratch;
  c.scratch = scratch + p->packed_heads * np_bf16_head_size(p) * sizeof(uint16_t);
  const double work = (double)(query_heads(p) * p->rows) * (double)(p->keys * (p->depth + p->values));
  np_workers *const used = work < NP_SMALL_NARROW ? NULL : workers;
  if (c.job.seen != NULL) np_parallel_for(used, look_part, &c, blocks, NP_DISABLE_DENORMALS);
  for (; c.job.first < heads; c.job.first += p->packed_heads) {
    const size_t packed = np_min(p->packed_heads, heads - c.job.first);
    np_parallel_for(used, pack_part, &c, packed * panels, NP_DISABLE_DENORMALS);
    np_parallel_for(used, block_part, &c, packed * sharing * blocks, NP_DISABLE_DENORMALS);
  }
}
#else
/* No target has tiles: `packed_heads` is 0. */
void np_attend_bf16(const np_chunk_job *operands, np_workers *workers) {
  (void)operands, (void)workers;
}
#endif
