/* Attention over KV caches of float32, float16, bfloat16 or int8, which are read as they are.
 *
 * A token's few query rows are attended in chunks of rows of the cache, which threads divide among
 * themselves: a head with a long cache is no longer one thread's (flash-decoding; Dao et al., 2023).
 * Elements are upcast in registers; scores, exponentials and accumulators are float32. Each chunk has its
 * largest score, the sum of its exponentials and its weighted sum of values; they are merged at the
 * end, in the order of chunks, so that results do not depend on the number of threads.
 *
 * A prompt's many query rows are multiplied with packed keys and values as those of float32 caches
 * are: packed as bfloat16 where tiles multiply, else the rows of a head are upcast before. */
#include "attention/bf16.h"

typedef struct {
  const np_chunk_job *job;
  float *scratch;
} chunk_context;

static void chunk_part(void *context, size_t thread, size_t index) {
  const chunk_context *c = context;
  const np_chunk_job *job = c->job;
  NP_FROM_SSE4(np_attention_chunk, job->task->params->target)
  (job, index / job->chunks, index % job->chunks,
   c->scratch + thread * np_scratch_floats(job->task->params));
}

size_t np_chunked_floats(const struct np_attention_params *params, size_t threads) {
  return np_partial_floats(params) + threads * np_scratch_floats(params);
}

static void merge_part(void *context, size_t thread, size_t index) {
  const chunk_context *c = context;
  (void)thread;
  NP_FROM_SSE4(np_attention_merge, c->job->task->params->target)(c->job, index);
}

static size_t heads_of(const struct np_attention_params *p) {
  return p->heads[0] * p->heads[1] * p->heads[2];
}

static double work_of(const struct np_attention_params *p) {
  const double scores = (double)heads_of(p) * (double)(p->rows * p->keys);
  return scores * (double)(p->depth + p->values);
}

np_chunk_job np_chunks_of(const np_attention_job *task, int32_t type, const size_t *elements,
                          size_t first) {
  const struct np_attention_params *p = task->params;
  const ptrdiff_t k_start = (ptrdiff_t)first * p->k_strides[3];
  const ptrdiff_t v_start = (ptrdiff_t)first * p->v_strides[3];
  const ptrdiff_t size = (ptrdiff_t)size_of_type(type);
  np_chunk_job job = {
      .task = task,
      .type = type,
      .k = (const char *)task->k,
      .v = (const char *)task->v,
      .chunks = np_ceil_div(p->keys, NP_CACHE_CHUNK),
      .partial = task->scratch,
  };
  if (type == NP_CACHE_INT8) {
    job.k_scales = (const float *)(const void *)(job.k + elements[0]);
    job.v_scales = (const float *)(const void *)(job.v + elements[1]);
    job.k_scales += k_start / (ptrdiff_t)p->depth;
    job.v_scales += v_start / (ptrdiff_t)p->values;
  }
  job.k += k_start * size;
  job.v += v_start * size;
  return job;
}

void np_attend_chunks(const np_attention_job *task, int32_t type, const size_t *cache_elements,
                      size_t first, np_workers *workers) {
  const struct np_attention_params *p = task->params;
  const np_chunk_job job = np_chunks_of(task, type, cache_elements, first);
  const size_t heads = heads_of(p);
  chunk_context context = {
      .job = &job,
      .scratch = job.partial + np_partial_floats(p),
  };
  np_workers *const used = work_of(p) < NP_SMALL_FLOAT32 ? NULL : workers;
  np_parallel_for(used, chunk_part, &context, heads * job.chunks, NP_DISABLE_DENORMALS);
  np_workers *const few = (double)(heads * job.chunks * p->rows * p->values) < NP_SMALL_FLOAT32
                              ? NULL
                              : workers;
  np_parallel_for(few, merge_part, &context, heads, NP_DISABLE_DENORMALS);
}

typedef struct {
  const np_chunk_job *job;
  struct np_attention_params params; /* of what is upcast */
} upcast_context;

/* A part of the rows of a head. */
static void upcast_part(void *context, size_t thread, size_t index) {
  const upcast_context *c = context;
  const struct np_attention_params *p = c->job->task->params;
  const size_t number = index / p->parts, first = index % p->parts * p->part_rows;
  float *keys = c->job->task->scratch + thread * p->thread_scratch;
  float *values = keys + p->keys * p->depth;
  NP_FROM_SSE4(np_attention_upcast, p->target)(c->job, number, keys, values);
  np_attention_job task = *c->job->task;
  task.params = &c->params;
  task.k = keys;
  task.v = values;
  task.heads = 0;
  NP_FROM_SSE4(np_attention_head, p->target)
  (&task, number, first, np_min(first + p->part_rows, p->rows), values + p->keys * p->values);
}

int np_narrow_attention(np_job *job) {
  const struct np_narrow_attention_params *a = job->params;
  struct np_attention_params p = a->appended.attention;
  const int64_t length = *(const volatile int64_t *)job->inputs[a->appended.length_input];
  const size_t new_rows = a->appended.new_rows;
  if (length < 0 || new_rows > p.keys) return NP_STATUS_INDEX;
  if (length > (int64_t)(p.keys - new_rows)) return NP_STATUS_INDEX;
  p.keys = (size_t)length + new_rows;
  if (p.keys == 0) return NP_STATUS_INDEX;
  for (int i = 0; i < 4 && a->appended.mask_rows; i++) p.mask_strides[i] *= (ptrdiff_t)p.keys;
  const size_t hidden = np_hide_keys(&p, (size_t)length);
  const ptrdiff_t mask_size = p.mask == NP_MASK_ADDED ? sizeof(float) : 1;
  const ptrdiff_t mask_start = (ptrdiff_t)hidden * p.mask_strides[4] * mask_size;
  const np_attention_job task = {
      .params = &p,
      .q = job->inputs[0],
      .k = job->inputs[1],
      .v = job->inputs[2],
      .mask = p.mask == NP_MASK_NONE ? NULL : (const char *)job->inputs[3] + mask_start,
      .out = job->out,
      .scratch = (float *)(void *)job->scratch,
  };
  if (a->appended.at_once) {
    np_attend_chunks(&task, a->type, a->cache_elements, hidden, job->workers);
    return 0;
  }
  const np_chunk_job chunks = np_chunks_of(&task, a->type, a->cache_elements, hidden);
  if (p.packed_heads > 0) {
    np_attend_bf16(&chunks, job->workers);
    return 0;
  }
  upcast_context context = {.job = &chunks, .params = p};
  for (int i = 0; i < 3; i++) context.params.k_strides[i] = context.params.v_strides[i] = 0;
  context.params.k_strides[3] = (ptrdiff_t)p.depth;
  context.params.v_strides[3] = (ptrdiff_t)p.values;
  np_workers *const used = work_of(&p) < NP_SMALL_FLOAT32 ? NULL : job->workers;
  np_parallel_for(used, upcast_part, &context, heads_of(&p) * p.parts, NP_DISABLE_DENORMALS);
  return 0;
}
