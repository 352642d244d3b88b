/* TopK: a binary heap of the best elements of a line so far, the worst at its root, then heap sort.
 * The heap lies in the place of the output's indices. */
#include <stdbool.h>

#include "movement/index.h"
#include "runtime/kernel.h"

/* Elements between two looks at whether the run is stopped. */
#define POLL 1024
#define STOPPED(i) ((i) % POLL == POLL - 1 && np_cancel_check())

/* NaN is larger than any number; of equal elements the first is better. */
#define TOP_K(name, type)                                                                        \
  static inline bool larger_##name(type a, type b) { return a > b || (a != a && b == b); }       \
                                                                                                 \
  static inline bool better_##name(const type *in, size_t step, bool largest, int64_t i,         \
                                   int64_t j) {                                                  \
    const type a = in[(size_t)i * step], b = in[(size_t)j * step];                               \
    if (largest ? larger_##name(a, b) : larger_##name(b, a)) return true;                        \
    return i < j && !(largest ? larger_##name(b, a) : larger_##name(a, b));                      \
  }                                                                                              \
                                                                                                 \
  static void sink_##name(const type *in, size_t step, bool largest, int64_t *heap, size_t root, \
                          size_t count) {                                                        \
    const int64_t item = heap[root * step];                                                      \
    size_t child;                                                                                \
    while ((child = 2 * root + 1) < count) {                                                     \
      if (child + 1 < count &&                                                                   \
          better_##name(in, step, largest, heap[child * step], heap[(child + 1) * step])) {      \
        child++;                                                                                 \
      }                                                                                          \
      if (better_##name(in, step, largest, heap[child * step], item)) break;                     \
      heap[root * step] = heap[child * step];                                                    \
      root = child;                                                                              \
    }                                                                                            \
    heap[root * step] = item;                                                                    \
  }                                                                                              \
                                                                                                 \
  static void line_##name(const struct np_top_k_params *p, const type *in, type *out,            \
                          int64_t *heap) {                                                       \
    const size_t step = p->inner, count = p->count;                                              \
    const bool largest = p->largest != 0;                                                        \
    for (size_t i = 0; i < count; i++) {                                                         \
      heap[i * step] = (int64_t)i;                                                               \
      if (STOPPED(i)) return;                                                                    \
    }                                                                                            \
    for (size_t i = count / 2; i-- > 0;) {                                                       \
      sink_##name(in, step, largest, heap, i, count);                                            \
      if (STOPPED(i)) return;                                                                    \
    }                                                                                            \
    for (size_t i = count; i < p->size; i++) {                                                   \
      if (STOPPED(i)) return;                                                                    \
      if (!better_##name(in, step, largest, (int64_t)i, heap[0])) continue;                      \
      heap[0] = (int64_t)i;                                                                      \
      sink_##name(in, step, largest, heap, 0, count);                                            \
    }                                                                                            \
    for (size_t left = count; left-- > 1;) {                                                     \
      if (STOPPED(left)) return;                                                                 \
      const int64_t worst = heap[0];                                                             \
      heap[0] = heap[left * step];                                                               \
      heap[left * step] = worst;                                                                 \
      sink_##name(in, step, largest, heap, 0, left);                                             \
    }                                                                                            \
    for (size_t i = 0; i < count; i++) {                                                         \
      out[i * step] = in[(size_t)heap[i * step] * step];                                         \
      if (STOPPED(i)) return;                                                                    \
    }                                                                                            \
  }                                                                                              \
                                                                                                 \
  static void lines_##name(np_job *job, size_t start, size_t many) {                             \
    const struct np_top_k_params *p = job->params;                                               \
    type *values = job->out;                                                                     \
    int64_t *indices = (int64_t *)job->out + p->outer * p->inner * p->count;                     \
    for (size_t i = start; i < start + many; i++) {                                              \
      const size_t from = i / p->inner * p->size * p->inner + i % p->inner;                      \
      const size_t to = i / p->inner * p->count * p->inner + i % p->inner;                       \
      line_##name(p, (const type *)job->inputs[0] + from, values + to, indices + to);            \
    }                                                                                            \
  }
TOP_K(f32, float)
TOP_K(f64, double)
TOP_K(i32, int32_t)
TOP_K(i64, int64_t)

int np_top_k(np_job *job) {
  static np_tile *const lines[] = {[NP_TYPE_FLOAT32] = lines_f32,
                                   [NP_TYPE_FLOAT64] = lines_f64,
                                   [NP_TYPE_INT32] = lines_i32,
                                   [NP_TYPE_INT64] = lines_i64};
  const struct np_top_k_params *p = job->params;
  const size_t total = p->outer * p->inner;
  if (total * p->count == 0) return 0;
  return np_for_tiles(job, lines[p->type], total, 1 + 2048 / p->size, 16 * total * p->size, 0);
}
