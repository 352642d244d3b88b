/* Attention, softmax(q·kᵀ · scale + mask)·v, without a matrix of scores in memory.
 *
 * One head at a time: its keys are packed in panels of columns and its values in dense rows, then a
 * block of query rows has its scores computed, exponentiated and multiplied with the values while
 * they lie in cache. Each operand is read where it is, by strides: heads that lie side by side in
 * the rows of a projection need not be moved apart. Few query rows, as one token has, are
 * multiplied with keys and values as they are: packing would read each as often as the GEMV does.
 *
 * Softmax takes the largest score of the row away first, as is usual, and divides after the matmul
 * with the values: rows of `values` numbers instead of rows of `keys`. */
#include "attention/bf16.h"

static void part(void *context, size_t thread, size_t index) {
  const np_attention_job *task = context;
  const struct np_attention_params *p = task->params;
  const size_t number = index / p->parts;
  const size_t first = index % p->parts * p->part_rows;
  const size_t last = first + p->part_rows < p->rows ? first + p->part_rows : p->rows;
  float *scratch = task->scratch + thread * p->thread_scratch;
  NP_FROM_SSE4(np_attention_head, p->target)(task, number, first, last, scratch);
}

static size_t heads_of(const struct np_attention_params *p) {
  return p->heads[0] * p->heads[1] * p->heads[2];
}

static double work_of(const struct np_attention_params *p) {
  const double scores = (double)heads_of(p) * (double)(p->rows * p->keys);
  return scores * (double)(p->depth + p->values);
}

static np_attention_job attention_of(const struct np_attention_params *p, np_job *job) {
  const void *const *inputs = job->inputs;
  return (np_attention_job){
      .params = p,
      .q = inputs[0],
      .k = inputs[1],
      .v = inputs[2],
      .mask = p->mask == NP_MASK_NONE ? NULL : inputs[3],
      .out = job->out,
      .scratch = (float *)(void *)job->scratch,
      .heads = p->parts == 1 ? heads_of(p) : 0,
  };
}

static int attend(const struct np_attention_params *p, np_job *job) {
  np_attention_job task = attention_of(p, job);
  if (p->packed_heads > 0) {
    const np_chunk_job operands = np_chunks_of(&task, NP_CACHE_FLOAT32, NULL, 0);
    np_attend_bf16(&operands, job->workers);
    return 0;
  }
  np_workers *const used = work_of(p) < NP_SMALL_FLOAT32 ? NULL : job->workers;
  np_parallel_for(used, part, &task, heads_of(p) * p->parts, NP_DISABLE_DENORMALS);
  return 0;
}

int np_attention(np_job *job) { return attend(job->params, job); }

static void cache_part(void *context, size_t thread, size_t index) {
  const np_attention_job *task = context;
  const struct np_attention_params *p = task->params;
  NP_FROM_SSE4(np_attention_cache, p->target)
  (task, index, task->scratch + thread * p->thread_scratch);
}

/* Of what attention reads, and both caches behind. */
int np_cached_attention(np_job *job) {
  const struct np_cached_attention_params *c = job->params;
  const struct np_attention_params *p = &c->attention;
  const void *const *caches = job->inputs + c->cache_input;
  if (!c->at_once) {
    for (int i = 0; i < 2; i++) {
      np_job copy = {&c->copies[i], &caches[i], (void *)job->inputs[1 + i], NULL, job->workers, 0};
      np_copy(&copy);
    }
    return p->rows == 0 ? 0 : attend(p, job);
  }
  np_attention_job task = attention_of(p, job);
  task.cached = c;
  task.past_k = caches[0];
  task.past_v = caches[1];
  /* Copies from and to memory take longer than what is computed. */
  np_workers *const used = work_of(p) < NP_SMALL_FLOAT32 && !c->streamed ? NULL : job->workers;
  np_parallel_for(used, cache_part, &task, heads_of(p), NP_DISABLE_DENORMALS);
  return 0;
}

/* The rows of a KV cache before a run, or -1 where the new ones do not fit. It may lie where others
 * write meanwhile: it is read once, and what was read checked. */
static int64_t length_of(const void *length, size_t capacity, size_t new_rows) {
  const int64_t found = *(const volatile int64_t *)length;
  return found >= 0 && new_rows <= capacity && found <= (int64_t)(capacity - new_rows) ? found : -1;
}

int np_appended_attention(np_job *job) {
  const struct np_appended_attention_params *a = job->params;
  struct np_cached_attention_params cached = {.attention = a->attention};
  struct np_attention_params *p = &cached.attention;
  const int64_t length = length_of(job->inputs[a->length_input], p->keys, a->new_rows);
  if (length < 0) return NP_STATUS_INDEX;
  p->keys = (size_t)length + a->new_rows;
  if (p->keys == 0) return NP_STATUS_INDEX;
  for (int i = 0; i < 4 && a->mask_rows; i++) p->mask_strides[i] *= (ptrdiff_t)p->keys;
  const ptrdiff_t from = (ptrdiff_t)np_hide_keys(p, (size_t)length);
  const size_t mask_size = p->mask == NP_MASK_ADDED ? sizeof(float) : 1;
  const void *inputs[4] = {
      job->inputs[0],
      (const float *)job->inputs[1] + from * p->k_strides[3],
      (const float *)job->inputs[2] + from * p->v_strides[3],
      NULL,
  };
  if (p->mask != NP_MASK_NONE) {
    inputs[3] = (const char *)job->inputs[3] + from * p->mask_strides[4] * (ptrdiff_t)mask_size;
  }
  np_job seen = {job->params, inputs, job->out, job->scratch, job->workers, 0};
  if (a->chunked && p->keys > NP_CACHE_CHUNK) {
    const np_attention_job chunked = attention_of(p, &seen);
    np_attend_chunks(&chunked, NP_CACHE_FLOAT32, NULL, 0, job->workers);
    return 0;
  }
  if (!a->at_once) return attend(p, &seen);
  /* All rows are cached ones, which lie where they belong. */
  cached.past = p->keys;
  for (int i = 0; i < 3; i++) {
    cached.k_strides[i] = p->k_strides[i];
    cached.v_strides[i] = p->v_strides[i];
  }
  np_attention_job task = attention_of(p, &seen);
  task.cached = &cached;
  task.past_k = task.k;
  task.past_v = task.v;
  np_workers *const used = work_of(p) < NP_SMALL_FLOAT32 ? NULL : job->workers;
  np_parallel_for(used, cache_part, &task, heads_of(p), NP_DISABLE_DENORMALS);
  return 0;
}
