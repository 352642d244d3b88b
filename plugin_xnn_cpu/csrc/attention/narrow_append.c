/* Rows narrowed to the type of a KV cache, and appended in place to those that it has so far. */
#include <math.h>

#include "attention/narrow.h"
#include "elementwise/half.h"

#define TILE 8 /* rows of a part */

typedef struct {
  const struct np_narrow_append_params *params;
  const float *in;
  char *out;     /* the cache, from the first new row on */
  float *scales; /* of that row; NULL but for int8 */
} append_job;

#define INT8_MOST 127.0f

/* A row to integers from -127 to 127, to nearest even; returns the scale. A row that is not finite
 * has a scale of NaN. */
NP_INLINE float quantize_row(const float *in, ptrdiff_t step, size_t depth, int8_t *out) {
  uint32_t most = 0; /* magnitudes are ordered as their bits are, NaN above infinity */
  for (size_t d = 0; d < depth; d++) {
    const uint32_t magnitude = np_bits_of(in[(ptrdiff_t)d * step]) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  }
  const float largest = np_float_of(most);
  const float scale = largest / INT8_MOST;
  /* The reciprocal of what is next to nothing is infinite: such a row is one of zeros. */
  const float factor = INT8_MOST / largest;
  const int kept = most < 0x7f800000u && factor <= 0x1.fffffep127f;
  const float used = kept ? factor : 0.0f;
  for (size_t d = 0; d < depth; d++) {
    const float x = kept ? in[(ptrdiff_t)d * step] * used : 0.0f;
    /* Adding 1.5 · 2^23 rounds to an integer, which is then in the low bits. */
    out[d] = (int8_t)np_bits_of(x + 12582912.0f);
  }
  if (most >= 0x7f800000u) return NAN;
  return kept ? scale : 0.0f;
}

NP_INLINE void narrow_row(const float *in, ptrdiff_t step, size_t depth, int32_t type, char *out,
                          float *scale) {
  if (type == NP_CACHE_INT8) {
    *scale = quantize_row(in, step, depth, (int8_t *)out);
    return;
  }
  uint16_t *to = (uint16_t *)(void *)out;
  if (type == NP_CACHE_FLOAT16) {
    for (size_t d = 0; d < depth; d++) to[d] = np_half_of(in[(ptrdiff_t)d * step]);
  } else {
    for (size_t d = 0; d < depth; d++) to[d] = np_bfloat_of(in[(ptrdiff_t)d * step]);
  }
}

NP_TILE(append_rows) {
  const append_job *a = job->params;
  const struct np_narrow_append_params *p = a->params;
  const ptrdiff_t *const strides[] = {p->in_strides, p->out_strides};
  const size_t size = p->type == NP_CACHE_INT8 ? 1 : 2;
  for (size_t i = start; i < start + count; i++) {
    ptrdiff_t at[2];
    np_offsets(i, p->rank, p->sizes, 2, strides, at);
    float *scale = a->scales ? a->scales + at[1] / (ptrdiff_t)p->depth : NULL;
    char *out = a->out + at[1] * (ptrdiff_t)size;
    if (p->depth_stride == 1) {
      narrow_row(a->in + at[0], 1, p->depth, p->type, out, scale);
    } else {
      narrow_row(a->in + at[0], p->depth_stride, p->depth, p->type, out, scale);
    }
  }
}

int np_narrow_append(np_job *job) {
  const struct np_narrow_append_params *p = job->params;
  /* It may lie where others write meanwhile: it is read once, and what was read checked. */
  const int64_t length = *(const volatile int64_t *)job->inputs[2];
  if (length < 0 || p->new_rows > p->capacity) return NP_STATUS_INDEX;
  if (length > (int64_t)(p->capacity - p->new_rows)) return NP_STATUS_INDEX;
  const size_t before = (size_t)length * p->row_elements;
  const size_t size = p->type == NP_CACHE_INT8 ? 1 : 2;
  char *const cache = job->out;
  append_job rows = {.params = p, .in = job->inputs[1], .out = cache + before * size};
  if (p->type == NP_CACHE_INT8) {
    rows.scales = (float *)(void *)(cache + p->cache_elements) + before / p->depth;
  }
  np_job inner = {&rows, job->inputs, job->out, NULL, job->workers, 0};
  const size_t count = np_element_count(p->rank, p->sizes);
  return np_for_tiles(&inner, append_rows, count, TILE, count * p->depth * 8, 0);
}
