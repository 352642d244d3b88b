/* Rotary embedding: pairs of numbers turned by angles, which cosines and sines are given of.
 *
 * Operands are read by strides, so that heads stay where a projection has put them. A piece of a
 * row is read as a whole before anything of it is written: the result may take the place of the
 * operand. */
#include <string.h>

#include "runtime/kernel.h"

/* Pairs of each row's first `rotated` numbers, (a, b), become (a·cos - b·sin, b·cos + a·sin); the
 * rest stay. Pairs lie half of `rotated` apart, or side by side where `interleaved`. Cosines and
 * sines are rows of `rotated` numbers that lie like those which they are for, or of half as many
 * where both of a pair share them. Rows are
 * dense; strides, of what is before them, may be 0. */
struct np_rotary_params {
  size_t sizes[3];
  size_t depth;
  size_t rotated;
  ptrdiff_t x_strides[3];
  ptrdiff_t cos_strides[3];
  ptrdiff_t sin_strides[3];
  ptrdiff_t out_strides[3];
  int32_t interleaved;
  int32_t halved;
};

#define PAIRS 64

typedef struct {
  const struct np_rotary_params *params;
  const float *x;
  const float *cosines;
  const float *sines;
  float *out;
} job;

/* Pairs that lie a half apart. `apart` is how far the second one's cosine and sine lie from the
 * first one's: as far as the pair, or 0 where both have the same. */
NP_MULTIVERSIONED(void, turn_halves,
                  (const float *x, const float *cosines, const float *sines, float *out,
                   size_t half, size_t distance),
                  (x, cosines, sines, out, half, distance)) {
  float first[PAIRS], second[PAIRS];
  for (size_t start = 0; start < half; start += PAIRS) {
    const size_t count = half - start < PAIRS ? half - start : PAIRS;
    memcpy(first, x + start, count * sizeof(float));
    memcpy(second, x + half + start, count * sizeof(float));
    const float *c = cosines + start, *s = sines + start;
    float *to = out + start;
    for (size_t i = 0; i < count; i++) to[i] = first[i] * c[i] - second[i] * s[i];
    c += distance;
    s += distance;
    to += half;
    for (size_t i = 0; i < count; i++) to[i] = second[i] * c[i] + first[i] * s[i];
  }
}

/* Pairs that lie side by side; so do their cosines and sines, if there are two of each. */
NP_MULTIVERSIONED(void, turn_neighbours,
                  (const float *x, const float *cosines, const float *sines, float *out,
                   size_t half, size_t step),
                  (x, cosines, sines, out, half, step)) {
  float read[2 * PAIRS];
  const size_t next = step - 1;
  for (size_t start = 0; start < half; start += PAIRS) {
    const size_t count = half - start < PAIRS ? half - start : PAIRS;
    memcpy(read, x + 2 * start, 2 * count * sizeof(float));
    const float *c = cosines + step * start, *s = sines + step * start;
    float *to = out + 2 * start;
    for (size_t i = 0; i < count; i++) {
      const float a = read[2 * i], b = read[2 * i + 1];
      to[2 * i] = a * c[step * i] - b * s[step * i];
      to[2 * i + 1] = b * c[step * i + next] + a * s[step * i + next];
    }
  }
}

static void rows(void *context, size_t start, size_t count) {
  const job *task = context;
  const struct np_rotary_params *p = task->params;
  const size_t half = p->rotated / 2;
  for (size_t row = start; row < start + count; row++) {
    size_t rest = row;
    ptrdiff_t from = 0, to = 0, cosine = 0, sine = 0;
    for (int axis = 2; axis >= 0; axis--) {
      const ptrdiff_t at = (ptrdiff_t)(rest % p->sizes[axis]);
      rest /= p->sizes[axis];
      from += at * p->x_strides[axis];
      to += at * p->out_strides[axis];
      cosine += at * p->cos_strides[axis];
      sine += at * p->sin_strides[axis];
    }
    const float *x = task->x + from, *c = task->cosines + cosine, *s = task->sines + sine;
    float *out = task->out + to;
    if (p->interleaved) {
      turn_neighbours(x, c, s, out, half, p->halved ? 1 : 2);
    } else {
      turn_halves(x, c, s, out, half, p->halved ? 0 : half);
    }
    const size_t left = p->depth - p->rotated;
    if (left > 0) memmove(out + p->rotated, x + p->rotated, left * sizeof(float));
  }
}

int np_rotary(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_rotary_params *p = params;
  const size_t count = p->sizes[0] * p->sizes[1] * p->sizes[2];
  if (count == 0 || p->depth == 0) return 0;
  job task = {p, inputs[0], inputs[1], inputs[2], out};
  np_workers *const used =
      count * p->depth * sizeof(float) < NP_PARALLEL_MIN_BYTES ? NULL : workers;
  const size_t tile = 1 + NP_PARALLEL_MIN_BYTES / 8 / p->depth;
  np_parallel_for_tiles(used, rows, &task, count, tile, NP_DISABLE_DENORMALS);
  return 0;
}
