/* Attention, softmax(q·kᵀ · scale + mask)·v, without a matrix of scores in memory.
 *
 * One head at a time: its keys are packed in panels of columns and its values in dense rows, then a
 * block of query rows has its scores made, exponentiated and multiplied with the values while they
 * lie in cache. Each operand is read where it is, by strides: heads that lie side by side in the
 * rows of a projection need not be moved apart. Few query rows, as one token has, are multiplied
 * with keys and values as they are: packing would read each as often as the product does.
 *
 * Softmax takes the largest score of the row away first, as is usual, and divides after the product
 * with the values: rows of `values` numbers instead of rows of `keys`. */
#include "attention.h"

/* Multiplications below which waking the workers costs more than it saves. */
#define SMALL_WORK 2e5

/* The one for this CPU, whose registers the sizes of its tile fit. */
static np_attention_head *fitting(int32_t target) {
#ifdef NP_CHOOSES_CPU
  if (target == NP_TARGET_PLAIN) return np_attention_head_plain;
  if (target != NP_TARGET_AVX2 && __builtin_cpu_supports("x86-64-v4")) {
    return np_attention_head_avx512;
  }
  if (__builtin_cpu_supports("x86-64-v3")) return np_attention_head_avx2;
#else
  (void)target;
#endif
  return np_attention_head_plain;
}

static void part(void *context, size_t thread, size_t index) {
  const np_attention_job *task = context;
  const struct np_attention_params *p = task->params;
  const size_t number = index / p->parts;
  const size_t first = index % p->parts * p->part_rows;
  const size_t last = first + p->part_rows < p->rows ? first + p->part_rows : p->rows;
  float *scratch = task->scratch + thread * p->thread_scratch;
  fitting(p->target)(task, number, first, last, scratch);
}

int np_attention(const void *params, const void *const *inputs, void *out, void *workspace,
                 np_workers *workers) {
  const struct np_attention_params *p = params;
  const void *mask = p->mask == NP_MASK_NONE ? NULL : inputs[3];
  const size_t heads = p->heads[0] * p->heads[1] * p->heads[2];
  const double work = (double)heads * (double)(p->rows * p->keys) * (double)(p->depth + p->values);
  np_workers *const used = work < SMALL_WORK ? NULL : workers;
  np_attention_job task = {p, inputs[0], inputs[1], inputs[2], mask, out, workspace,
                           p->parts == 1 ? heads : 0};
  np_divide(used, part, &task, heads * p->parts, NP_DISABLE_DENORMALS);
  return 0;
}
