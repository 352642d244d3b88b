/* GEMM with a matrix of 4 or 8 bits, in blocks with a scale and a zero point each.
 *
 * What is packed for them is written by np_nbits_pack. Read by cffi too: no directives but simple
 * constants. */
#ifndef NARROWPASS_GEMV_NBITS_H
#define NARROWPASS_GEMV_NBITS_H

#include "runtime/isa.h"

/* Changes whenever packed bytes are laid out otherwise. */
#define NP_NBITS_LAYOUT 1

/* Of a panel. */
#define NP_NBITS_COLUMNS 32

/* Up to so many rows the matrix is read as it is packed; with more, parts of it are upcast
 * first. */
#define NP_NBITS_GEMV_ROWS 4

/* Inputs that are upcast at a time. */
#define NP_NBITS_K_BLOCK 256

/* float out[m, n] = clamp(sum over k of in[m, k] * (weight[n, k] - zero[n, k / block]) *
 * scale[n, k / block] + bias[n], low, high). `block` is a multiple of 8. */
struct np_nbits_params {
  const void *packed;
  size_t rows;
  size_t inputs;
  size_t outputs;
  size_t block;
  int32_t bits; /* 4 or 8 */
  float low;
  float high;
  int32_t target;        /* NP_TARGET_* */
  size_t thread_scratch; /* floats of the workspace that each thread has, beyond few rows */
};

/* Bytes of a packed matrix of outputs × inputs. */
size_t np_nbits_packed_size(size_t outputs, size_t inputs, size_t block, size_t bits);

/* weights[outputs][blocks of inputs, whole ones], of bytes; numbers[2][outputs][blocks] of float32,
 * which are scales and zero points; `bias` may be NULL. */
void np_nbits_pack(size_t outputs, size_t inputs, size_t block, size_t bits, const void *weights,
                   const void *numbers, const void *bias, void *packed);

#endif
