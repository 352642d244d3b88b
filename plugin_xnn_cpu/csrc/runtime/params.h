/* Kernels of our own: what XNNPACK lacks, or does in more passes over memory than are needed.
 *
 * Each has a struct of parameters; the caller has checked that all sizes and strides stay inside
 * the buffers. Strides and offsets are in elements. Read by cffi too: no directives but simple
 * constants. */
#ifndef NARROWPASS_RUNTIME_PARAMS_H
#define NARROWPASS_RUNTIME_PARAMS_H

#include "runtime/isa.h"
#include "xnnpack/xnnpack.h"

#define NP_MAX_DIMS 8


/* out[offset + i·out_strides] = in[offset + i·in_strides] over all indices i below `sizes`. */
struct np_copy_params {
  size_t rank;
  size_t sizes[8];
  ptrdiff_t in_strides[8];
  ptrdiff_t out_strides[8];
  ptrdiff_t in_offset;
  ptrdiff_t out_offset;
  size_t element_size;
};

/* out = condition ? x : y, each broadcast by strides of 0; out is dense. */
struct np_where_params {
  size_t rank;
  size_t sizes[8];
  ptrdiff_t strides[3][8];
  size_t element_size;
};

/* out[o, i, :] = in[o, index[i], :]; rows of `row_bytes`; negative indices count from the end. */
struct np_gather_params {
  size_t outer;
  size_t axis;
  size_t indices;
  size_t row_bytes;
  size_t index_size;
};

/* out[b, i, :, :] = past[b, i, :, :] with update[b, i, :, :] from row starts[b] on, or from row 0;
 * `inner` values of i. Rows beyond the end go to the beginning where `circular` is set. No size is
 * 0, and there are no more new rows than rows. */
struct np_scatter_rows_params {
  size_t batches;
  size_t inner;
  size_t rows;
  size_t new_rows;
  size_t row_bytes;
  int32_t has_starts;
  int32_t circular;
};

/* float out[i, :] = table[index[i], :] * scale[index[i]], of a table of int8; one scale for all rows
 * where `scale_step` is 0. Negative indices count from the end. */
struct np_gather_s8_params {
  size_t rows;
  size_t row_size;
  size_t indices;
  size_t index_size;
  size_t scale_step;
};

/* out = (x - mean) / sqrt(variance + epsilon) · scale + bias over rows of `columns`, dense, of which
 * there are as many as the product of `sizes`; x may be the sum of x and `added`. Where the sum is
 * wanted too it goes to `sum_offset` behind the result, which else is 0. */
struct np_layer_norm_params {
  size_t sizes[3];
  size_t columns;
  ptrdiff_t x_strides[3];
  ptrdiff_t added_strides[3];
  size_t sum_offset;
  float epsilon;
  int32_t has_bias;
  int32_t has_added;
  int32_t root_mean_square; /* no mean is taken away */
  int32_t target;           /* NP_TARGET_* */
};

/* out = min(max(a + b, low), high), all of `count` elements. */
struct np_add_clamp_params {
  size_t count;
  float low;
  float high;
};

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

/* out = x · logistic(slope · x + cubic · x³) of `rows` rows of `columns`, times `factor` where there is
 * one; strides are those of rows. */
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

/* out[n, p, c] = in[n, c, p], of 2 to 4 channels, and elements of 1 or 4 bytes. */
struct np_interleave_params {
  size_t images;
  size_t channels;
  size_t pixels;
  size_t element_size;
};

/* The greatest elements, or the means, of windows of [batch, height, width, channels]. Pads are
 * above and to the left, and count for nothing; a window has an element in the image. */
struct np_pool_params {
  size_t batch;
  size_t height;
  size_t width;
  size_t channels;
  size_t out_height;
  size_t out_width;
  size_t window[2];
  size_t strides[2];
  size_t dilations[2];
  size_t pads[2];
  int32_t maximum;
};

/* Sizes and strides of some axes, the last one changing fastest. */
struct np_extremes_axes {
  size_t rank;
  size_t sizes[8];
  ptrdiff_t strides[8];
};

/* The greatest, or least, elements along axes. The innermost axis is dense: `columns` results lie
 * along it, or where these are 0, `row` elements of which each result is made. The other axes are
 * `kept` or `reduced`, in order, with so many elements; a part is a `tile` of results. */
struct np_extremes_params {
  struct np_extremes_axes kept;
  struct np_extremes_axes reduced;
  size_t kept_count;
  size_t reduced_count;
  size_t columns;
  size_t row;
  size_t tile;
  int32_t least;
};

#define NP_CONVERT_F16_TO_F32 0
#define NP_CONVERT_F32_TO_F16 1
#define NP_CONVERT_BF16_TO_F32 2
#define NP_CONVERT_F32_TO_BF16 3
#define NP_CONVERT_ROUND_TO_F16 4 /* float32 with the values of the narrower type */
#define NP_CONVERT_ROUND_TO_BF16 5

/* out[i] = in[i], rounded to nearest even where it is narrower; infinity where that is too large. */
struct np_convert_params {
  size_t count;
  int32_t conversion;
};

/* Of a product that is computed narrow: its float32 rows are rounded into the start of the
 * workspace; a float16 result comes to byte `output_offset` of it, and is widened. */
struct np_narrow_params {
  size_t inputs;
  size_t outputs;
  size_t output_offset;
};

/* Of a product whose rows are quantized: integers of `rows` × `channels` lie at the start of the
 * workspace, then what they stand for, and which rows cannot be quantized, a byte each. */
struct np_int8_params {
  xnn_operator_t to_int8;
  int32_t is_unsigned; /* integers from 0 to 255, which some processors multiply faster */
  size_t rows;
  size_t channels;
  size_t outputs;
  size_t ranges_offset;
  size_t odd_offset;
  size_t scratch_offset; /* of XNNPACK's */
  const struct np_few_rows_params *few; /* what multiplies instead of XNNPACK, or NULL */
};

/* Of a product of int8 rows, all with one scale and zero point, that gives float32. `ranges` has
 * as many of these as rows, and what kernels read beyond. Where the kernel takes integers from 0 to
 * 255 the rows are moved up by 128, at the start of the workspace. */
struct np_s8_f32_params {
  size_t count; /* of the elements of all rows */
  const struct xnn_quantization_params *ranges;
  int32_t is_unsigned;
  size_t scratch_offset; /* of XNNPACK's */
};

/* int8 out[i] = min(max(rint(x[i] / scale), low), high) + zero_point; `low` and `high` keep the sum
 * in [-128, 127]. NaN becomes `low`. Where `columns` is not 0, rows of so many elements are
 * multiplied before by those of a second input, of float32. */
struct np_quantize_params {
  size_t count;
  size_t columns;
  float scale;
  float low;
  float high;
  int32_t zero_point;
};

/* float out[i] = (x[i] - zero_point) * scale. */
struct np_dequantize_params {
  size_t count;
  float scale;
  int32_t zero_point;
};

/* out[i] = table[x[i]], of bytes. */
struct np_table_params {
  size_t count;
  uint8_t table[256];
};

/* A block of query rows in attention; their sums are kept aside. */
#define NP_ATTENTION_MOST_ROWS 48

/* What a mask does to the scores, which are multiplied by `scale` first. */
#define NP_MASK_NONE 0
#define NP_MASK_ADDED 1  /* floats that are added */
#define NP_MASK_KEPT 2   /* bytes: where they are 0, the score becomes `fill` */
#define NP_MASK_FILLED 3 /* bytes: where they are not 0, the score becomes `fill` */

/* out[h, m, :] = softmax(q[h, m, :] · k[h, :, :] · scale + mask[h, m, :]) · v[h] over all h below
 * `heads`: batches, groups, and heads in each group, which share keys and values where these have
 * a stride of 0. q is of rows × depth, k of keys × depth, v of keys × values, whose last axes are
 * dense. A stride is 0 where an operand is broadcast; the mask's last one is 0 or 1. */
struct np_attention_params {
  size_t heads[3];
  size_t rows;
  size_t keys;
  size_t depth;
  size_t values;
  ptrdiff_t q_strides[4];
  ptrdiff_t k_strides[4];
  ptrdiff_t v_strides[4];
  ptrdiff_t out_strides[4];
  ptrdiff_t mask_strides[5];
  int32_t mask; /* NP_MASK_* */
  float fill;
  float scale;
  int32_t safe;     /* a row of scores whose exponentials are NaN gives zeros */
  size_t block;     /* query rows whose scores are in memory at a time */
  size_t parts;     /* that the rows of a head are divided into, for threads */
  size_t part_rows; /* rows of a part */
  int32_t target;        /* NP_TARGET_* */
  size_t thread_scratch; /* floats of the workspace that each thread has for itself */
};

/* Query rows of a head that are computed while its cache is copied. */
#define NP_ATTENTION_CACHE_ROWS 8

/* Attention whose first `past` keys and values are those of caches, dense in the last two axes, and
 * belong where its keys and values lie, in front of the others: they are written there. Where `at_once`
 * is set, no two heads share keys or values, there are no more rows than are computed so, and a head is
 * computed while its cache is copied; else the caches are copied first. Where `streamed` is set, what
 * is copied is written past the caches of the processor. */
struct np_cached_attention_params {
  struct np_attention_params attention; /* of no rows where there is only something to copy */
  struct np_copy_params copies[2];
  size_t first_cache; /* which input it is; the other one follows */
  size_t past;
  ptrdiff_t k_strides[3]; /* of the caches' heads */
  ptrdiff_t v_strides[3];
  int32_t at_once;
  int32_t streamed;
};

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

#define NP_METER_OFF 0
#define NP_METER_EXTREMES 1
#define NP_METER_COUNTS 2

/* What is kept of a value. Extremes are compared as integers: the bits of a float, all but the
 * sign turned over where that is set. Bin i of `bins` is as narrowpass.meters.Counts has it. */
typedef struct {
  int32_t kind;
  int32_t folded;    /* magnitudes are counted */
  int32_t low;
  int32_t high;
  size_t bins;
  double below;      /* bins below zero */
  double scale;
  int64_t zeros;
  int64_t *counts;   /* [bins] */
  uint32_t *scratch; /* np_meter_words() for each thread */
} np_meter;

/* Words of scratch memory that a thread needs, on its own cache lines. */
size_t np_meter_words(size_t bins);

struct np_observe_params {
  size_t count;
  np_meter *meter;
};

#endif
