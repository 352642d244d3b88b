/* Rotary embedding: pairs of numbers turned by angles, which cosines and sines are given of.
 *
 * Operands are read by strides, so that heads stay where a projection has put them. A piece of a
 * row is read as a whole before anything of it is written: the result may take the place of the
 * operand. */
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

/* Pairs that lie a half apart. `distance` is how far the second one's cosine and sine lie from the
 * first one's: as far as the pair, or 0 where both have the same. A pair is read before it is written,
 * and the result lies where the operand does, or apart from it: no iteration reads what another
 * one wrote. */
NP_INLINE void rotate_halves(const float *x, const float *cosines, const float *sines, float *out,
                             const size_t half, const size_t distance) {
#pragma GCC ivdep
  for (size_t i = 0; i < half; i++) {
    const float a = x[i], b = x[half + i];
    out[i] = a * cosines[i] - b * sines[i];
    out[half + i] = b * cosines[distance + i] + a * sines[distance + i];
  }
}

/* Pairs that lie side by side; so do their cosines and sines, if there are two of each. */
NP_INLINE void rotate_interleaved(const float *x, const float *cosines, const float *sines,
                                  float *out, size_t half, size_t step) {
  float read[2 * PAIRS];
  const size_t next = step - 1;
  for (size_t start = 0; start < half; start += PAIRS) {
    const size_t count = np_min(half - start, PAIRS);
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

NP_TILE(rotate_rows) {
  const struct np_rotary_params *p = job->params;
  const size_t half = p->rotated / 2;
  const ptrdiff_t *const strides[] = {p->x_strides, p->cos_strides, p->sin_strides, p->out_strides};
  ptrdiff_t at[4];
  size_t left = 0; /* rows up to the end of the last axis */
  for (size_t row = start; row < start + count; row++) {
    if (left == 0) {
      np_offsets(row, 3, p->sizes, 4, strides, at);
      left = p->sizes[2] - row % p->sizes[2];
    }
    const float *x = (const float *)job->inputs[0] + at[0];
    const float *c = (const float *)job->inputs[1] + at[1];
    const float *s = (const float *)job->inputs[2] + at[2];
    float *out = (float *)job->out + at[3];
    if (p->interleaved) {
      rotate_interleaved(x, c, s, out, half, p->halved ? 1 : 2);
    } else if (p->halved) {
      rotate_halves(x, c, s, out, half, 0);
    } else {
      rotate_halves(x, c, s, out, half, half);
    }
    const size_t rest = p->depth - p->rotated;
    if (rest > 0) memmove(out + p->rotated, x + p->rotated, rest * sizeof(float));
    left--;
    for (int i = 0; i < 4; i++) at[i] += strides[i][2];
  }
}

int np_rotary(np_job *job) {
  const struct np_rotary_params *p = job->params;
  const size_t count = np_element_count(3, p->sizes);
  if (count == 0 || p->depth == 0) return 0;
  return np_for_tiles(job, rotate_rows, count, 1 + NP_PARALLEL_MIN_BYTES / 8 / p->depth,
                      count * p->depth * sizeof(float), NP_DISABLE_DENORMALS);
}
