/* How matrices of few bits lie, and their code for each instruction set.
 *
 * A panel has 32 columns: their bias; then for each block their scales and zero points, as
 * float32, then words
 * of 32 bits for each column, of 8 inputs each (4, of 8 bits), the first one in the low bits: to
 * take one out is a shift of whole registers, with no bytes to be upcast. */
#ifndef NARROWPASS_GEMV_NBITS_PANEL_H
#define NARROWPASS_GEMV_NBITS_PANEL_H

#include "gemv/nbits.h"
#include "runtime/kernel.h"

typedef struct {
  const struct np_nbits_params *params;
  const float *in;
  float *out;
  float *scratch;
} np_nbits_job;

NP_INLINE size_t np_nbits_blocks(size_t inputs, size_t block) {
  return (inputs + block - 1) / block;
}

/* Bytes of a block of a panel. */
NP_INLINE size_t np_nbits_block_size(size_t block, size_t bits) {
  return NP_NBITS_COLUMNS * (2 * sizeof(float) + block * bits / 8);
}

NP_INLINE size_t np_nbits_panel_size(size_t inputs, size_t block, size_t bits) {
  return NP_NBITS_COLUMNS * sizeof(float) +
         np_nbits_blocks(inputs, block) * np_nbits_block_size(block, bits);
}

/* All rows of one panel; `scratch` is of the thread. */
typedef void np_nbits_panel(const np_nbits_job *job, size_t panel, float *scratch);

NP_DECLARE_FOR_ISAS(np_nbits_panel, np_nbits_panel);

#endif
