/* Attention of many query rows by tiles of AMX; attention/bf16.c says how it is done.
 *
 * Queries times their scale, keys, exponentials and values are rounded to bfloat16, to nearest even;
 * accumulators, masks and the softmax are float32. An exponential is 2^t for t in two parts: its
 * floor, which is the exponent, and a polynomial of the rest, whose relative error of 2^-13.7 is
 * far below that of rounding. Subnormal numbers count as 0. */
#include <math.h>

#include "attention/bf16.h"
#include "simd/amx.h"
#include "simd/f32.h"
#include "simd/polynomial.h"
#include "simd/transpose_lanes.h"

#include "attention/narrow_load.h"
#include "attention/softmax_code.h"

#define PANEL NP_BF16_PANEL
#define PAIR 2
#define TILE_PAIRS 16
#define TILE_K (PAIR * TILE_PAIRS)
#define ROWS NP_BF16_QUERY_ROWS
#define KEYS NP_BF16_BLOCK_KEYS

/* Two vectors as bfloat16, one behind the other. */
NP_INLINE __m512i round_both(vec low, vec high) {
  return (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}

/* LANES elements of a row from `d` on, times `scale`; 0 behind `size`. */
NP_INLINE vec scaled_elements(const char *row, size_t d, size_t size, float scale, const int type) {
  vec x = zero();
  if (d + LANES <= size) {
    x = load_elements(row, d, type);
  } else if (d < size) {
    x = load_some_elements(row, d, size - d, type);
  }
  if (type == NP_CACHE_INT8) x *= scale;
  return x;
}

/* Rows of a head's keys or values. */
typedef struct {
  const char *from;    /* the first row */
  ptrdiff_t stride;    /* in bytes */
  const float *scales; /* of int8 */
  ptrdiff_t step;      /* of scales */
  size_t count;
  size_t size;         /* elements of a row */
} operand_rows;

NP_INLINE operand_rows rows_of(const np_chunk_job *o, const size_t *at, size_t first, size_t count,
                               const int values) {
  const struct np_attention_params *p = o->task->params;
  const ptrdiff_t *strides = values ? p->v_strides : p->k_strides;
  const float *scales = values ? o->v_scales : o->k_scales;
  const size_t size = values ? p->values : p->depth;
  const ptrdiff_t start = start_of(at, strides) + (ptrdiff_t)first * strides[3];
  const ptrdiff_t bytes = (ptrdiff_t)size_of_type(o->type);
  return (operand_rows){
      .from = (values ? o->v : o->k) + start * bytes,
      .stride = strides[3] * bytes,
      .scales = scales == NULL ? NULL : scales + start / (ptrdiff_t)size,
      .step = strides[3] / (ptrdiff_t)size,
      .count = count,
      .size = size,
  };
}

NP_INLINE float scale_of(const operand_rows *r, size_t n) {
  return r->scales == NULL ? 1.0f : r->scales[(ptrdiff_t)n * r->step];
}

/* A panel of keys: to[pair of depth][key][2]. */
NP_INLINE void pack_keys(const operand_rows *r, uint16_t *to, const int type) {
  const size_t pairs = np_bf16_wide(r->size) / PAIR;
  for (size_t half = 0; half < PANEL; half += LANES) {
    for (size_t pair = 0; pair < pairs; pair += LANES) {
      vec x[LANES];
      for (size_t i = 0; i < LANES; i++) {
        x[i] = zero();
        if (half + i >= r->count) continue;
        const char *row = r->from + (ptrdiff_t)(half + i) * r->stride;
        const float scale = scale_of(r, half + i);
        const size_t d = pair * PAIR;
        x[i] = (vec)round_both(scaled_elements(row, d, r->size, scale, type),
                               scaled_elements(row, d + LANES, r->size, scale, type));
      }
      transpose_lanes(x);
      for (size_t i = 0; i < LANES; i++) {
        store((float *)(void *)(to + ((pair + i) * PANEL + half) * PAIR), x[i]);
      }
    }
  }
}

/* PANEL rows of values: to[pair of rows][column][2] in each panel of columns, `panel_size` elements
 * apart. */
NP_INLINE void pack_values(const operand_rows *r, uint16_t *to, size_t panel_size, const int type) {
  const __m512i interleaved = _mm512_set_epi16(
      31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
      23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (size_t n = 0; n < PANEL; n += PAIR) {
    const char *row = r->from + (ptrdiff_t)n * r->stride;
    for (size_t e = 0; e < np_bf16_wide(r->size); e += LANES) {
      vec x[PAIR];
      for (size_t i = 0; i < PAIR; i++) {
        x[i] = zero();
        if (n + i >= r->count) continue;
        x[i] = scaled_elements(row + (ptrdiff_t)i * r->stride, e, r->size, scale_of(r, n + i), type);
      }
      const __m512i pairs = _mm512_permutexvar_epi16(interleaved, round_both(x[0], x[1]));
      uint16_t *at = to + e / PANEL * panel_size + (n / PAIR * PANEL + e % PANEL) * PAIR;
      _mm512_storeu_si512(at, pairs);
    }
  }
}

void NP_OF_ISA(np_attention_bf16_pack)(const np_bf16_attention *job, size_t head, size_t panel) {
  const np_chunk_job *o = job->operands;
  const struct np_attention_params *p = o->task->params;
  size_t at[3];
  place_of(p, (job->first + head) * np_bf16_sharing(p), at);
  const size_t first = panel * PANEL, count = np_min(p->keys - first, PANEL);
  const size_t wide_keys = np_bf16_wide(p->keys);
  const operand_rows keys = rows_of(o, at, first, count, 0);
  const operand_rows values = rows_of(o, at, first, count, 1);
  uint16_t *to = job->packed + head * np_bf16_head_size(p);
  uint16_t *to_keys = to + first * np_bf16_wide(p->depth);
  uint16_t *to_values = to + np_bf16_keys_size(p) + first * PANEL;
#define NP_PACK(type)               \
  pack_keys(&keys, to_keys, type);  \
  pack_values(&values, to_values, wide_keys * PANEL, type);
  NP_SWITCH_TYPE(o->type, NP_PACK)
#undef NP_PACK
}

/* Rows of tiles, times `steps` tiles of a panel: added to the accumulators of a block. */
NP_INLINE void multiply_panel(const void *rows, size_t row_bytes, const uint16_t *panel,
                              size_t steps, const int a_tiles) {
  const uint8_t *first = rows;
  const uint8_t *a[2] = {first, first + (a_tiles > 1 ? NP_AMX_ROWS * row_bytes : 0)};
  np_amx_aside aside = {.lines = 0};
  np_amx_accumulate(a, row_bytes, (const uint8_t *)panel, steps, TILE_PAIRS, &aside, a_tiles, 2,
                    NP_AMX_BF16);
}

/* DO(instruction, tile, address) for the accumulators of a block, whose rows lie `stride` bytes
 * apart. */
#define EACH_ACCUMULATOR(DO, to, stride, a_tiles)                  \
  do {                                                             \
    float *const first_ = (to);                                    \
    DO(0, first_, stride);                                         \
    DO(1, first_ + LANES, stride);                                 \
    if (a_tiles > 1) {                                             \
      float *const second_ = first_ + NP_AMX_ROWS * (stride) / sizeof(float); \
      DO(2, second_, stride);                                      \
      DO(3, second_ + LANES, stride);                              \
    }                                                              \
  } while (0)

/* What a block of query rows is computed in. */
typedef struct {
  uint16_t *queries; /* [ROWS][depth] */
  float *scores;     /* [ROWS][KEYS]; then their exponentials as bfloat16, in the same rows */
  float *weighted;   /* [ROWS][values] */
  float most[ROWS];  /* the largest score so far */
  float sum[ROWS];   /* of exponentials */
} block_memory;

NP_INLINE void multiply_keys(const block_memory *b, const uint16_t *keys, size_t depth, size_t count,
                             const int a_tiles) {
  const size_t stride = KEYS * sizeof(float);
  for (size_t n = 0; n < count; n += PANEL, keys += depth * PANEL) {
    np_amx_zero();
    multiply_panel(b->queries, depth * sizeof *keys, keys, depth / TILE_K, a_tiles);
    EACH_ACCUMULATOR(NP_AMX_STORE, b->scores + n, stride, a_tiles);
  }
}

NP_INLINE void multiply_values(const block_memory *b, const uint16_t *values, size_t panel_size,
                               size_t width, size_t count, const int a_tiles) {
  const size_t stride = width * sizeof(float);
  for (size_t e = 0; e < width; e += PANEL, values += panel_size) {
    EACH_ACCUMULATOR(NP_AMX_LOAD, b->weighted + e, stride, a_tiles);
    multiply_panel(b->scores, KEYS * sizeof(float), values, np_ceil_div(count, TILE_K), a_tiles);
    EACH_ACCUMULATOR(NP_AMX_STORE, b->weighted + e, stride, a_tiles);
  }
}

/* 2^t for t of at most 0; NaN stays. */
NP_INLINE vec power_of_2(vec t) {
  const int less_floor = 0x9; /* t - floor(t) */
  const vec r = (vec)_mm512_reduce_ps((__m512)t, less_floor);
  const vec p = NP_VECTOR_POLYNOMIAL(4, r, 0.999925219f, 0.695833523f, 0.226067207f, 0.0780244866f);
  return (vec)_mm512_scalef_ps((__m512)p, (__m512)t);
}

#define LOG2_E 1.44269504f

/* The lanes of vector `n` / LANES of a row that are in front of `count`; others become `other`. */
NP_INLINE vec in_front(vec x, size_t n, size_t count, float other) {
  const __mmask16 some = n >= count ? 0 : first_lanes(np_min(count - n, LANES));
  return (vec)_mm512_mask_blend_ps(some, _mm512_set1_ps(other), (__m512)x);
}

/* The largest of `count` scores, or -infinity. */
NP_INLINE float largest_score(const float *row, size_t count) {
  vec most[4];
  UNROLL for (int i = 0; i < 4; i++) most[i] = broadcast(-INFINITY);
  size_t n = 0;
  for (; n + 4 * LANES <= count; n += 4 * LANES) {
    UNROLL for (int i = 0; i < 4; i++) most[i] = larger(load(row + n + i * LANES), most[i]);
  }
  for (; n < count; n += LANES) most[0] = larger(in_front(load(row + n), n, count, -INFINITY), most[0]);
  return largest_of(larger(larger(most[0], most[1]), larger(most[2], most[3])));
}

/* A row to exp(row - most) as bfloat16, in place: `count` scores, then zeros up to the tile that key
 * `keys` - 1 is in. Returns the sum, before exponentials are rounded. */
NP_INLINE float exponentiate_to_bf16(float *row, size_t count, size_t keys, float most) {
  uint16_t *to = (uint16_t *)(void *)row;
  vec sum[2] = {zero(), zero()};
  size_t n = 0;
  for (; n + TILE_K <= count; n += TILE_K) {
    vec x[2];
    UNROLL for (int i = 0; i < 2; i++) {
      x[i] = power_of_2((load(row + n + i * LANES) - most) * LOG2_E);
      sum[i] += x[i];
    }
    _mm512_storeu_si512(to + n, round_both(x[0], x[1]));
  }
  if (n < count) {
    vec x[2];
    UNROLL for (int i = 0; i < 2; i++) {
      const size_t at = n + (size_t)i * LANES;
      x[i] = in_front(power_of_2((load(row + at) - most) * LOG2_E), at, count, 0.0f);
      sum[i] += x[i];
    }
    _mm512_storeu_si512(to + n, round_both(x[0], x[1]));
    n += TILE_K;
  }
  for (; n < keys; n += TILE_K) _mm512_storeu_si512(to + n, _mm512_setzero_si512());
  return sum_of(sum[0] + sum[1]);
}

/* How many keys from `first_key` on a row sees, where there is no mask and they are the first ones of the
 * block; -1 where scores must be changed one by one. */
NP_INLINE ptrdiff_t seen_of(const struct np_attention_params *p, size_t row, size_t first_key) {
  const struct np_visible *v = &p->visible;
  const size_t last = v->position + (v->moves ? row : 0) + 1;
  if (p->mask != NP_MASK_NONE || p->softcap > 0.0f) return -1;
  if (v->window_size > 0 && last > v->window_size + first_key) return -1;
  if (!v->causal || last >= first_key + p->keys) return (ptrdiff_t)p->keys;
  return last > first_key ? (ptrdiff_t)(last - first_key) : 0;
}

/* Scores of `p->keys` keys from `first_key` on to exponentials; what was accumulated before is scaled
 * to the same largest score. */
NP_INLINE void weigh_rows(const struct np_attention_params *p, block_memory *b, const void *mask,
                          ptrdiff_t masked, size_t first_row, size_t rows, size_t first_key,
                          size_t width) {
  float largest[ROWS];
  size_t counts[ROWS];
  for (size_t m = 0; m < rows; m++) {
    float *row = b->scores + m * KEYS;
    const ptrdiff_t seen = seen_of(p, first_row + m, first_key);
    counts[m] = seen < 0 ? p->keys : (size_t)seen;
    if (seen >= 0) {
      largest[m] = largest_score(row, counts[m]);
      continue;
    }
    if (p->softcap > 0.0f) cap_row(row, p->keys, p->softcap);
    if (p->visible.causal || p->visible.window_size > 0) {
      hide_unseen(&p->visible, first_row + m, first_key, row, p->keys);
    }
    largest[m] = mask_any(p, row, mask, masked + (ptrdiff_t)m * p->mask_strides[3]);
  }
  for (size_t m = 0; m < rows; m++) {
    const float most = largest[m] > b->most[m] ? largest[m] : b->most[m];
    /* Where all are masked, exponentials are 0, and NaN stays. */
    const float sum = exponentiate_to_bf16(b->scores + m * KEYS, counts[m], p->keys,
                                           most == -INFINITY ? 0.0f : most);
    if (most == b->most[m]) {
      b->sum[m] += sum;
      continue;
    }
    const vec factor = power_of_2((b->most[m] - broadcast(most)) * LOG2_E);
    float *weighted = b->weighted + m * width;
    for (size_t e = 0; e < width; e += LANES) store(weighted + e, load(weighted + e) * factor);
    b->sum[m] = b->sum[m] * factor[0] + sum;
    b->most[m] = most;
  }
}

/* Queries times `scale` to bfloat16, with zeros up to whole tiles. */
NP_INLINE void round_queries(const float *q, ptrdiff_t stride, size_t rows, size_t depth, float scale,
                             uint16_t *to) {
  for (size_t m = 0; m < rows; m++, q += stride) {
    for (size_t d = 0; d < depth; d += 2 * LANES, to += 2 * LANES) {
      const char *row = (const char *)q;
      const vec low = scaled_elements(row, d, depth, 1.0f, NP_CACHE_FLOAT32) * scale;
      const vec high = scaled_elements(row, d + LANES, depth, 1.0f, NP_CACHE_FLOAT32) * scale;
      _mm512_storeu_si512(to, round_both(low, high));
    }
  }
}

/* Rows divided by the sum of their weights. */
NP_INLINE void store_results(const struct np_attention_params *p, const block_memory *b, size_t rows,
                             size_t width, float *out) {
  for (size_t m = 0; m < rows; m++, out += p->out_strides[3]) {
    float sum = b->sum[m];
    if (b->most[m] == -INFINITY && sum == 0.0f) sum = NAN; /* softmax of nothing but -infinity */
    const int empty = p->safe && sum != sum;
    const float factor = 1.0f / sum;
    for (size_t e = 0; e < p->values; e += LANES) {
      const vec x = load(b->weighted + m * width + e) * factor;
      store_some(out + e, empty ? zero() : x, np_min(LANES, p->values - e));
    }
  }
}

NP_INLINE np_bf16_seen keys_of_block(const np_bf16_attention *job, size_t row, size_t rows) {
  const struct np_attention_params *p = job->operands->task->params;
  const struct np_visible *v = &p->visible;
  const size_t first = v->position + (v->moves ? row : 0) + 1, size = v->window_size;
  const size_t last = first + (v->moves ? rows - 1 : 0);
  np_bf16_seen seen = {
      .first = size > 0 && first > size ? (first - size) / PANEL * PANEL : 0,
      .last = v->causal ? np_min(p->keys, last) : p->keys,
  };
  if (job->seen != NULL) {
    const np_bf16_seen *masked = &job->seen[row / ROWS];
    seen.first = np_max(seen.first, masked->first);
    seen.last = np_min(seen.last, masked->last);
    seen.clear = masked->clear;
  }
  return seen;
}

/* Whether all elements of a panel of the mask, of whole vectors, have these bits. */
NP_INLINE int panel_is(const float *mask, ptrdiff_t stride, size_t rows, int32_t bits) {
  const __m512i same = _mm512_set1_epi32(bits);
  __m512i other = _mm512_setzero_si512();
  for (size_t m = 0; m < rows; m++, mask += stride) {
    const __m512i a = _mm512_loadu_si512(mask), b = _mm512_loadu_si512(mask + LANES);
    other = _mm512_or_si512(other, _mm512_xor_si512(a, same));
    other = _mm512_or_si512(other, _mm512_xor_si512(b, same));
  }
  return _mm512_test_epi32_mask(other, other) == 0;
}

void NP_OF_ISA(np_attention_bf16_look)(const np_bf16_attention *job, size_t block) {
  const np_attention_job *task = job->operands->task;
  const struct np_attention_params *p = task->params;
  const size_t row = block * ROWS, rows = np_min(p->rows - row, ROWS);
  const ptrdiff_t stride = p->mask_strides[3];
  const float *mask = (const float *)task->mask + (ptrdiff_t)row * stride;
  const int32_t hidden = (int32_t)np_bits_of(-INFINITY);
  const size_t whole = p->keys / PANEL * PANEL;
  np_bf16_seen seen = {0, 0, p->keys};
  int is_hidden = 1; /* whether no row sees the panel that is cut off */
  for (size_t n = whole; n < p->keys; n++) {
    for (size_t m = 0; m < rows; m++) {
      is_hidden &= np_bits_of(mask[(ptrdiff_t)m * stride + (ptrdiff_t)n]) == (uint32_t)hidden;
    }
  }
  if (is_hidden) seen.last = whole;
  while (seen.clear < whole && panel_is(mask + seen.clear, stride, rows, 0)) seen.clear += PANEL;
  while (seen.first < whole && panel_is(mask + seen.first, stride, rows, hidden)) {
    seen.first += PANEL;
  }
  if (seen.last == whole) {
    while (seen.last > seen.first && panel_is(mask + seen.last - PANEL, stride, rows, hidden)) {
      seen.last -= PANEL;
    }
  }
  job->seen[block] = seen;
}

NP_INLINE void attend_block(const np_bf16_attention *job, size_t head, size_t row, size_t rows,
                            block_memory *b, const int a_tiles) {
  const np_attention_job *task = job->operands->task;
  struct np_attention_params p = *task->params;
  size_t at[3];
  place_of(&p, head, at);
  const size_t depth = np_bf16_wide(p.depth), width = np_bf16_wide(p.values);
  const size_t panel_size = np_bf16_wide(p.keys) * PANEL;
  const uint16_t *keys =
      job->packed + (head / np_bf16_sharing(&p) - job->first) * np_bf16_head_size(&p);
  const uint16_t *values = keys + np_bf16_keys_size(&p);
  const float *q = task->q + start_of(at, p.q_strides) + (ptrdiff_t)row * p.q_strides[3];
  const ptrdiff_t masked = start_of(at, p.mask_strides) + (ptrdiff_t)row * p.mask_strides[3];
  round_queries(q, p.q_strides[3], rows, p.depth, p.scale, b->queries);
  memset(b->weighted, 0, rows * width * sizeof *b->weighted);
  for (size_t m = 0; m < rows; m++) {
    b->most[m] = -INFINITY;
    b->sum[m] = 0.0f;
  }
  const np_bf16_seen seen = keys_of_block(job, row, rows);
  const int32_t mask = p.mask;
  for (size_t n = seen.first; n < seen.last; n += p.keys) {
    const int is_clear = n < seen.clear;
    p.mask = is_clear ? NP_MASK_NONE : mask;
    p.keys = np_min((is_clear ? np_min(seen.clear, seen.last) : seen.last) - n, KEYS);
    multiply_keys(b, keys + n * depth, depth, p.keys, a_tiles);
    weigh_rows(&p, b, task->mask, masked + (ptrdiff_t)n * p.mask_strides[4], row, rows, n, width);
    multiply_values(b, values + n * PANEL, panel_size, width, p.keys, a_tiles);
  }
  float *out = task->out + start_of(at, p.out_strides) + (ptrdiff_t)row * p.out_strides[3];
  store_results(&p, b, rows, width, out);
}

void NP_OF_ISA(np_attention_bf16_block)(const np_bf16_attention *job, size_t head, size_t block,
                                        uint8_t *scratch) {
  const struct np_attention_params *p = job->operands->task->params;
  const size_t row = block * ROWS, rows = np_min(p->rows - row, ROWS);
  block_memory b;
  b.scores = (float *)(void *)scratch;
  b.weighted = b.scores + ROWS * KEYS;
  b.queries = (uint16_t *)(void *)(b.weighted + ROWS * np_bf16_wide(p->values));
  const size_t first = np_min(rows, NP_AMX_ROWS);
  const np_amx_shape shape = {{first, rows > first ? rows - first : first}, TILE_PAIRS};
  np_amx_configure(&shape);
  if (rows > NP_AMX_ROWS) {
    attend_block(job, head, row, rows, &b, 2);
  } else {
    attend_block(job, head, row, rows, &b, 1);
  }
  np_amx_release();
}
