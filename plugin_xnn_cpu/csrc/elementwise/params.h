/* Elementwise operators, casts, reductions and normalizations of any element type.
 *
 * The caller has checked that all sizes and strides stay inside the buffers. Strides are in
 * elements. Read by cffi too: no directives but simple constants. */
#ifndef NARROWPASS_ELEMENTWISE_PARAMS_H
#define NARROWPASS_ELEMENTWISE_PARAMS_H

#include "runtime/params.h"

/* Element types. bool is a byte of 0 or 1. */
#define NP_TYPE_BOOL 0
#define NP_TYPE_U8 1
#define NP_TYPE_I8 2
#define NP_TYPE_U16 3
#define NP_TYPE_I16 4
#define NP_TYPE_U32 5
#define NP_TYPE_I32 6
#define NP_TYPE_U64 7
#define NP_TYPE_I64 8
#define NP_TYPE_F32 9
#define NP_TYPE_F64 10

#define NP_MATH_ERF 0
#define NP_MATH_SOFTPLUS 1
#define NP_MATH_SOFTSIGN 2
#define NP_MATH_SELU 3
#define NP_MATH_CELU 4
#define NP_MATH_MISH 5
#define NP_MATH_THRESHOLDED_RELU 6
#define NP_MATH_SHRINK 7
#define NP_MATH_HARD_SIGMOID 8
#define NP_MATH_SWISH 9
#define NP_MATH_TAN 10
#define NP_MATH_ASIN 11
#define NP_MATH_ACOS 12
#define NP_MATH_ATAN 13
#define NP_MATH_SINH 14
#define NP_MATH_COSH 15
#define NP_MATH_ASINH 16
#define NP_MATH_ACOSH 17
#define NP_MATH_ATANH 18

/* float out[i] = f(in[i]), with up to two parameters. */
struct np_math_params {
  size_t count;
  int32_t function; /* NP_MATH_* */
  float alpha;
  float beta;
};

#define NP_BINARY_ADD 0
#define NP_BINARY_SUB 1
#define NP_BINARY_MUL 2
#define NP_BINARY_DIV 3
#define NP_BINARY_MOD 4
#define NP_BINARY_FMOD 5
#define NP_BINARY_POW 6
#define NP_BINARY_MAX 7
#define NP_BINARY_MIN 8
#define NP_BINARY_AND 9
#define NP_BINARY_OR 10
#define NP_BINARY_XOR 11
#define NP_BINARY_SHL 12
#define NP_BINARY_SHR 13
#define NP_BINARY_EQ 14
#define NP_BINARY_LT 15
#define NP_BINARY_LE 16

/* out = a op b, each broadcast by strides of 0; out is dense, of bool for comparisons. In the last
 * axis strides are 0 or 1. */
struct np_typed_binary_params {
  size_t rank;
  size_t sizes[8];
  ptrdiff_t strides[2][8];
  int32_t op;   /* NP_BINARY_* */
  int32_t type; /* NP_TYPE_* of the operands */
};

#define NP_UNARY_NEG 0
#define NP_UNARY_ABS 1
#define NP_UNARY_SIGN 2
#define NP_UNARY_NOT 3
#define NP_UNARY_INVERT 4
#define NP_UNARY_IS_NAN 5
#define NP_UNARY_IS_INF 6

/* out[i] = op in[i]; the last two give bool. */
struct np_typed_unary_params {
  size_t count;
  int32_t op;       /* NP_UNARY_* */
  int32_t type;     /* NP_TYPE_* of the operand */
  int32_t positive; /* whether infinity counts, for NP_UNARY_IS_INF */
  int32_t negative; /* whether -infinity does */
};

/* out[i] = in[i], of another type: integers wrap, floats lose what is behind the point. What is out
 * of the range of int32 or int64 becomes the least number, as x86 has it. */
struct np_cast_params {
  size_t count;
  int32_t from; /* NP_TYPE_* */
  int32_t to;
};

#define NP_REDUCTION_SUM 0
#define NP_REDUCTION_PROD 1
#define NP_REDUCTION_MAX 2
#define NP_REDUCTION_MIN 3
#define NP_REDUCTION_SUM_ABS 4
#define NP_REDUCTION_SUM_SQUARES 5
#define NP_REDUCTION_MEAN 6

/* A reduction along axes, of which the others are as in np_extremes_params. */
struct np_typed_reduction_params {
  struct np_extremes_axes kept;
  struct np_extremes_axes reduced;
  size_t kept_count;
  size_t reduced_count;
  size_t columns;
  size_t row;
  size_t tile;
  int32_t op;   /* NP_REDUCTION_* */
  int32_t type; /* NP_TYPE_* */
};

#define NP_ROWS_LOG_SOFTMAX 0
#define NP_ROWS_HARDMAX 1
#define NP_ROWS_L1 2
#define NP_ROWS_L2 3

/* A function of rows of float: the logarithm of softmax; 1 at the first greatest element and 0
 * elsewhere; a row divided by its norm, or zeros where that is 0. */
struct np_rows_params {
  size_t rows;
  size_t columns; /* not 0 */
  int32_t function; /* NP_ROWS_* */
};

/* Each group of channels of each image gets mean 0 and variance 1, then scale and bias of each
 * channel. Images are [channels, pixels], or [pixels, channels] where `channels_last`. */
struct np_group_norm_params {
  size_t images;
  size_t channels;
  size_t pixels;
  size_t groups; /* divides channels */
  float epsilon;
  int32_t channels_last;
  int32_t by_group; /* scale and bias are of groups */
};

/* x · scale + shift, clamped, with a scale and a shift for each channel. */
struct np_affine_params {
  size_t images;
  size_t channels;
  size_t pixels;
  float low;
  float high;
  int32_t channels_last;
};

/* x / (bias + alpha / size · Σ x²)^beta; the sum is over `size` channels around each. Images are
 * [channels, pixels], or [pixels, channels] where `channels_last`. */
struct np_lrn_params {
  size_t images;
  size_t channels;
  size_t pixels;
  size_t size;
  float alpha;
  float beta;
  float bias;
  int32_t channels_last;
};

#endif
