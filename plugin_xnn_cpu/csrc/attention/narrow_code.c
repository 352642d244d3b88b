/* Attention over caches in chunks, for one instruction set; attention/narrow.c says how it is
 * done. */
#include <math.h>

#include "attention/narrow_job.h"
#include "simd/f32.h"
#include "simd/polynomial.h"

#include "attention/narrow_load.h"
#include "attention/narrow_scores.h"
#include "attention/narrow_values.h"
#include "attention/softmax_code.h"

/* row[n] *= scales[n · step]. */
NP_INLINE void scale_row(float *row, size_t keys, const float *scales, ptrdiff_t step) {
  size_t n = 0;
  for (; step == 1 && n + LANES <= keys; n += LANES) store(row + n, load(row + n) * load(scales + n));
  for (; n < keys; n++) row[n] *= scales[(ptrdiff_t)n * step];
}

/* Where row `first` of a head's keys or values lies, in elements. */
NP_INLINE ptrdiff_t row_of(const size_t *at, const ptrdiff_t *strides, size_t first) {
  return start_of(at, strides) + (ptrdiff_t)first * strides[3];
}

void NP_OF_ISA(np_attention_chunk)(const np_chunk_job *job, size_t head, size_t chunk,
                                   float *scratch) {
  struct np_attention_params p = *job->task->params;
  const np_attention_job task = {.params = &p, .mask = job->task->mask};
  const size_t depth = p.depth, values = p.values, rows = p.rows;
  const size_t first = chunk * NP_CACHE_CHUNK;
  const size_t size = size_of_type(job->type);
  const size_t keys = np_min(p.keys - first, NP_CACHE_CHUNK);
  size_t at[3];
  place_of(&p, head, at);
  const float *q = job->task->q + start_of(at, p.q_strides);
  const ptrdiff_t k_row = row_of(at, p.k_strides, first), v_row = row_of(at, p.v_strides, first);
  const char *k = job->k + k_row * (ptrdiff_t)size, *v = job->v + v_row * (ptrdiff_t)size;
  const ptrdiff_t k_stride = p.k_strides[3] * (ptrdiff_t)size;
  const ptrdiff_t v_stride = p.v_strides[3] * (ptrdiff_t)size;
  float *scores = scratch, *scaled = scores + rows * NP_CACHE_CHUNK;
  float *upcast = scaled + rows * depth;
  for (size_t m = 0; m < rows; m++) {
    for (size_t d = 0; d < depth; d++) {
      scaled[m * depth + d] = q[(ptrdiff_t)m * p.q_strides[3] + (ptrdiff_t)d] * p.scale;
    }
  }
#define NP_SCORES(type) \
  chunk_scores(scaled, rows, k, k_stride, keys, depth, scores, upcast, type);
  NP_SWITCH_TYPE(job->type, NP_SCORES)
#undef NP_SCORES
  const size_t part = values + NP_CHUNK_HEADER;
  float *partial = job->partial + (head * job->chunks + chunk) * rows * part;
  const ptrdiff_t masked = start_of(at, p.mask_strides) + (ptrdiff_t)first * p.mask_strides[4];
  p.keys = keys;
  for (size_t m = 0; m < rows; m++) {
    float *row = scores + m * NP_CACHE_CHUNK;
    if (job->k_scales) {
      const ptrdiff_t step = p.k_strides[3] / (ptrdiff_t)depth;
      scale_row(row, keys, job->k_scales + k_row / (ptrdiff_t)depth, step);
    }
    if (p.softcap > 0.0f) cap_row(row, keys, p.softcap);
    if (p.visible.causal || p.visible.window_size > 0) {
      hide_unseen(&p.visible, m, first, row, keys);
    }
    const float most =
        mask_any(&p, row, task.mask, masked + (ptrdiff_t)m * p.mask_strides[3]);
    partial[m * part] = most;
    /* Where all are masked, exponentials are 0, and NaN stays. */
    partial[m * part + 1] = exponentiate(row, keys, most == -INFINITY ? 0.0f : most);
    if (job->v_scales) {
      const ptrdiff_t step = p.v_strides[3] / (ptrdiff_t)values;
      scale_row(row, keys, job->v_scales + v_row / (ptrdiff_t)values, step);
    }
  }
  float *weighted = partial + NP_CHUNK_HEADER;
#define NP_VALUES(type) \
  chunk_values(scores, rows, v, v_stride, keys, values, weighted, (ptrdiff_t)part, type);
  NP_SWITCH_TYPE(job->type, NP_VALUES)
#undef NP_VALUES
}

void NP_OF_ISA(np_attention_merge)(const np_chunk_job *job, size_t head) {
  const struct np_attention_params *p = job->task->params;
  const size_t part = p->values + NP_CHUNK_HEADER, values = p->values;
  size_t at[3];
  place_of(p, head, at);
  const float *first = job->partial + head * job->chunks * p->rows * part;
  for (size_t m = 0; m < p->rows; m++) {
    float *out = job->task->out + start_of(at, p->out_strides) + (ptrdiff_t)m * p->out_strides[3];
    const float *from = first + m * part;
    float most = -INFINITY, sum = 0.0f;
    for (size_t c = 0; c < job->chunks; c++) {
      const float here = from[c * p->rows * part];
      most = here > most ? here : most;
    }
    memset(out, 0, values * sizeof *out);
    for (size_t c = 0; c < job->chunks; c++) {
      const float *chunk = from + c * p->rows * part;
      /* A chunk that is masked has accumulators of 0; they stay where the difference would be NaN. */
      const float factor =
          chunk[0] == -INFINITY ? 1.0f : exp_of_at_most_0(broadcast(chunk[0] - most))[0];
      sum += factor * chunk[1];
      for (size_t e = 0; e < values; e++) out[e] += factor * chunk[NP_CHUNK_HEADER + e];
    }
    if (most == -INFINITY && sum == 0.0f) sum = NAN; /* softmax of nothing but -infinity */
    const int empty = p->safe && sum != sum;
    const float scale = 1.0f / sum;
    for (size_t e = 0; e < values; e++) out[e] = empty ? 0.0f : out[e] * scale;
  }
}

void NP_OF_ISA(np_attention_upcast)(const np_chunk_job *job, size_t head, float *keys,
                                    float *values) {
  const struct np_attention_params *p = job->task->params;
  size_t at[3];
  place_of(p, head, at);
  for (int each = 0; each < 2; each++) {
    const ptrdiff_t *strides = each ? p->v_strides : p->k_strides;
    const size_t depth = each ? p->values : p->depth;
    const char *from = each ? job->v : job->k;
    const float *scales = each ? job->v_scales : job->k_scales;
    float *to = each ? values : keys;
    for (size_t n = 0; n < p->keys; n++, to += depth) {
      const ptrdiff_t row = row_of(at, strides, n);
      const char *read = from + row * (ptrdiff_t)size_of_type(job->type);
#define NP_UPCAST(type) upcast_row(read, depth, to, type);
      NP_SWITCH_TYPE(job->type, NP_UPCAST)
#undef NP_UPCAST
      if (scales == NULL) continue;
      const float scale = scales[row / (ptrdiff_t)depth];
      for (size_t d = 0; d < depth; d++) to[d] *= scale;
    }
  }
}
