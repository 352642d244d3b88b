/* exp, log, the logistic function and SiLU, and sqrt, right for all numbers: infinities, huge ones
 * and NaN, where XNNPACK's give something else. */
#include "simd/exp_log.h"

#define NP_FUNCTION_SIGMOID 0
#define NP_FUNCTION_SILU 1
#define NP_FUNCTION_EXP 2
#define NP_FUNCTION_SQRT 3
#define NP_FUNCTION_LOG 4
#define NP_FUNCTION_ROOT 5         /* to the power of 0.5: infinity of -infinity, where sqrt is NaN */
#define NP_FUNCTION_INVERSE_ROOT 6 /* to the power of -0.5 */

/* out[i] = function(x[i]). */
struct np_function_params {
  size_t count;
  int32_t function;
};

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

/* out[2 i] and out[2 i + 1] = softmax of x[2 i] and x[2 i + 1]; `count` pairs. Rows of two are
 * what XNNPACK's softmax is slowest at. */
struct np_softmax_pairs_params {
  size_t count;
};

#define TILE 4096

typedef struct {
  const void *params;
  const float *in;
  float *out;
} job;

NP_MULTIVERSIONED(void, silu, (const float *in, float *out, size_t count), (in, out, count)) {
  for (size_t i = 0; i < count; i++) out[i] = in[i] * logistic(in[i]);
}

NP_MULTIVERSIONED(void, sigmoid, (const float *in, float *out, size_t count), (in, out, count)) {
  for (size_t i = 0; i < count; i++) {
    const float s = logistic(in[i]);
    out[i] = in[i] != in[i] ? in[i] : s;
  }
}

NP_MULTIVERSIONED(void, exponential, (const float *in, float *out, size_t count),
                  (in, out, count)) {
  for (size_t i = 0; i < count; i++) out[i] = exponential_of(in[i]);
}

NP_MULTIVERSIONED(void, logarithm, (const float *in, float *out, size_t count), (in, out, count)) {
  for (size_t i = 0; i < count; i++) out[i] = logarithm_of(in[i]);
}

NP_MULTIVERSIONED(void, square_root, (const float *in, float *out, size_t count),
                  (in, out, count)) {
  for (size_t i = 0; i < count; i++) out[i] = sqrtf(in[i]);
}

/* As pow has it: the powers of -0 are those of 0, and those of -infinity those of infinity. */
NP_INLINE float root_of(float x) {
  const float root = sqrtf(x == 0.0f ? 0.0f : x);
  return x == -INFINITY ? INFINITY : root;
}

NP_MULTIVERSIONED(void, roots, (const float *in, float *out, size_t count), (in, out, count)) {
  for (size_t i = 0; i < count; i++) out[i] = root_of(in[i]);
}

NP_MULTIVERSIONED(void, inverse_roots, (const float *in, float *out, size_t count),
                  (in, out, count)) {
  for (size_t i = 0; i < count; i++) out[i] = 1.0f / root_of(in[i]);
}

NP_INLINE void gate_of(const float *in, const float *factor, float *out, size_t count, float slope,
                       float cubic, const int multiplies, const int is_cubic) {
  for (size_t i = 0; i < count; i++) {
    const float x = in[i];
    /* Without a cube there is none: 0 times an infinite one would be NaN. */
    const float steep = is_cubic ? slope + cubic * x * x : slope;
    const float gated = x * logistic(x * steep);
    out[i] = multiplies ? gated * factor[i] : gated;
  }
}

/* x · logistic(slope · x + cubic · x³), times `factor` if that is not NULL. */
NP_MULTIVERSIONED(void, gate,
                  (const float *in, const float *factor, float *out, size_t count, float slope,
                   float cubic),
                  (in, factor, out, count, slope, cubic)) {
  if (factor == NULL) {
    if (cubic == 0.0f) {
      gate_of(in, factor, out, count, slope, cubic, 0, 0);
    } else {
      gate_of(in, factor, out, count, slope, cubic, 0, 1);
    }
  } else if (cubic == 0.0f) {
    gate_of(in, factor, out, count, slope, cubic, 1, 0);
  } else {
    gate_of(in, factor, out, count, slope, cubic, 1, 1);
  }
}

typedef struct {
  const struct np_gate_params *params;
  const float *x;
  const float *factor;
  float *out;
} gate_job;

static void gate_part(void *context, size_t start, size_t count) {
  const gate_job *task = context;
  const struct np_gate_params *p = task->params;
  for (size_t row = start; row < start + count; row++) {
    const ptrdiff_t at = (ptrdiff_t)row;
    const float *factor = task->factor == NULL ? NULL : task->factor + at * p->factor_stride;
    gate(task->x + at * p->x_stride, factor, task->out + row * p->columns, p->columns, p->slope,
         p->cubic);
  }
}

int np_gate(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_gate_params *p = params;
  if (p->rows == 0 || p->columns == 0) return 0;
  const float *factor = p->has_factor ? (const float *)inputs[1] + p->factor_offset : NULL;
  gate_job task = {p, (const float *)inputs[0] + p->x_offset, factor, out};
  np_workers *const used = p->rows * p->columns * 4 < NP_PARALLEL_MIN_BYTES / 4 ? NULL : workers;
  const size_t tile = 1 + TILE / p->columns;
  np_parallel_for_tiles(used, gate_part, &task, p->rows, tile, NP_DISABLE_DENORMALS);
  return 0;
}

static void part(void *context, size_t start, size_t count) {
  const job *task = context;
  const float *in = task->in + start;
  float *out = task->out + start;
  switch (((const struct np_function_params *)task->params)->function) {
    case NP_FUNCTION_SIGMOID:
      sigmoid(in, out, count);
      break;
    case NP_FUNCTION_SILU:
      silu(in, out, count);
      break;
    case NP_FUNCTION_EXP:
      exponential(in, out, count);
      break;
    case NP_FUNCTION_LOG:
      logarithm(in, out, count);
      break;
    case NP_FUNCTION_ROOT:
      roots(in, out, count);
      break;
    case NP_FUNCTION_INVERSE_ROOT:
      inverse_roots(in, out, count);
      break;
    default:
      square_root(in, out, count);
  }
}

int np_function(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const struct np_function_params *p = params;
  job task = {p, inputs[0], out};
  if (p->count == 0) return 0;
  np_workers *const used = p->count * 4 < NP_PARALLEL_MIN_BYTES / 4 ? NULL : workers;
  /* The logistic function counts on powers of e to vanish; for the others all numbers count. */
  const int vanish = p->function == NP_FUNCTION_SIGMOID || p->function == NP_FUNCTION_SILU;
  np_parallel_for_tiles(used, part, &task, p->count, TILE, vanish ? NP_DISABLE_DENORMALS : 0);
  return 0;
}

NP_MULTIVERSIONED(void, softmax_pairs, (const float *in, float *out, size_t count),
                  (in, out, count)) {
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

static void pairs_part(void *context, size_t start, size_t count) {
  const job *task = context;
  softmax_pairs(task->in + 2 * start, task->out + 2 * start, count);
}

int np_softmax_pairs(const void *params, const void *const *inputs, void *out,
                     np_workers *workers) {
  const struct np_softmax_pairs_params *p = params;
  job task = {p, inputs[0], out};
  if (p->count == 0) return 0;
  np_workers *const used = p->count * 8 < NP_PARALLEL_MIN_BYTES / 4 ? NULL : workers;
  np_parallel_for_tiles(used, pairs_part, &task, p->count, TILE, NP_DISABLE_DENORMALS);
  return 0;
}
