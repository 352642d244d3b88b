/* Elementwise operators of any element type. Read by cffi too: no directives but simple
 * constants. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Element types. bool is a byte of 0 or 1. */
#define NP_TYPE_BOOL 0
#define NP_TYPE_UINT8 1
#define NP_TYPE_INT8 2
#define NP_TYPE_UINT16 3
#define NP_TYPE_INT16 4
#define NP_TYPE_UINT32 5
#define NP_TYPE_INT32 6
#define NP_TYPE_UINT64 7
#define NP_TYPE_INT64 8
#define NP_TYPE_FLOAT32 9
#define NP_TYPE_FLOAT64 10

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
#define NP_BINARY_EQUAL 14
#define NP_BINARY_LESS 15
#define NP_BINARY_LESS_OR_EQUAL 16

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
#define NP_UNARY_ISNAN 5
#define NP_UNARY_ISINF 6

/* out[i] = op in[i]; the last two are of bool. */
struct np_typed_unary_params {
  size_t count;
  int32_t op;       /* NP_UNARY_* */
  int32_t type;     /* NP_TYPE_* of the operand */
  int32_t positive; /* whether infinity counts, for NP_UNARY_ISINF */
  int32_t negative; /* whether -infinity does */
};
