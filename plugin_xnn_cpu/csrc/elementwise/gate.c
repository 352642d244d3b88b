/* Gated activations, and softmax of two numbers, both by one logistic function. */
#include "simd/exp_log.h"

/* out = x · logistic(slope · x + cubic · x³) of `rows` rows of `columns`, times `factor` where
 * there is one; strides are those of rows. */
struct np_gate_params {
  size_t rows;
  size_t columns;
  ptrdiff_t x_offset;
  ptrdiff_t x_stride;
  ptrdiff_t factor_offset;
  ptrdiff_t factor_stride;
  float slope;
  float cubic;
  int32_t has_factor;
};

/* out[2 i] and out[2 i + 1] = softmax of x[2 i] and x[2 i + 1]; `count` pairs. Rows of two
 * would leave most lanes of a register idle. */
struct np_softmax_pairs_params {
  size_t count;
};

#define TILE 4096

NP_INLINE void gate_row(const float *in, const float *factor, float *out, size_t count, float slope,
                        float cubic, const int multiplies, const int is_cubic) {
  for (size_t i = 0; i < count;) {
    if (i > 0 && np_cancel_check()) return;
    for (const size_t next = np_stretch(i, count); i < next; i++) {
      const float x = in[i];
      /* Without a cube there is none: 0 times an infinite one would be NaN. */
      const float steep = is_cubic ? slope + cubic * x * x : slope;
      const float gated = x * logistic(x * steep);
      out[i] = multiplies ? gated * factor[i] : gated;
    }
  }
}

NP_TILE(gate_rows) {
  const struct np_gate_params *p = job->params;
  const float slope = p->slope, cubic = p->cubic;
  for (size_t row = start; row < start + count; row++) {
    const float *x = (const float *)job->inputs[0] + p->x_offset + (ptrdiff_t)row * p->x_stride;
    const float *factor =
        (const float *)job->inputs[1] + p->factor_offset + (ptrdiff_t)row * p->factor_stride;
    float *out = (float *)job->out + row * p->columns;
    if (!p->has_factor && cubic == 0.0f) {
      gate_row(x, NULL, out, p->columns, slope, cubic, 0, 0);
    } else if (!p->has_factor) {
      gate_row(x, NULL, out, p->columns, slope, cubic, 0, 1);
    } else if (cubic == 0.0f) {
      gate_row(x, factor, out, p->columns, slope, cubic, 1, 0);
    } else {
      gate_row(x, factor, out, p->columns, slope, cubic, 1, 1);
    }
  }
}

int np_gate(np_job *job) {
  const struct np_gate_params *p = job->params;
  if (p->columns == 0) return 0;
  return np_for_tiles(job, gate_rows, p->rows, 1 + TILE / p->columns, p->rows * p->columns * 16,
                      NP_DISABLE_DENORMALS);
}

NP_TILE(softmax_pairs) {
  const float *in = (const float *)job->inputs[0] + 2 * start;
  float *out = (float *)job->out + 2 * start;
  for (size_t i = 0; i < count; i++) {
    const float d = in[2 * i] - in[2 * i + 1];
    const float most = d < 0.0f ? in[2 * i + 1] : in[2 * i];
    const float e = exp_of_minus_magnitude(d);
    const float large = 1.0f / (1.0f + e) + (most - most); /* NaN where that is infinite */
    const float small = e * large;
    out[2 * i] = d != d ? d : d < 0.0f ? small : large;
    out[2 * i + 1] = d != d ? d : d < 0.0f ? large : small;
  }
}

int np_softmax_pairs(np_job *job) {
  const size_t count = ((const struct np_softmax_pairs_params *)job->params)->count;
  return np_for_tiles(job, softmax_pairs, count, TILE, count * 32, NP_DISABLE_DENORMALS);
}
