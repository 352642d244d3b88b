/* What the recurrence shares with its code for each instruction set. */
#ifndef NARROWPASS_RECURRENT_H
#define NARROWPASS_RECURRENT_H

#include "recurrent_kernels.h"
#include "run.h"

typedef struct {
  const struct np_recurrent_params *params;
  const float *gates;
  const int32_t *lengths; /* NULL where all sequences have `steps` rows */
  float *out;
  float *hidden[2]; /* [directions, batch, padded]: a step reads one and writes the other */
  float *cell;      /* the same; of an LSTM */
  float *reset;     /* the same: the state that was reset, of a GRU */
  size_t padded;    /* hidden units in whole vectors */
  size_t step;      /* in which all threads are */
} np_recurrent_job;

/* Compute blocks of units from `first` to `last` of a direction in one step. Of NP_RECURRENT_GRU,
 * `phase` 0 computes the gates and the reset state, 1 the new state; others have phase 0 only. */
typedef void np_recurrent_code(const np_recurrent_job *job, size_t direction, size_t step,
                               size_t first, size_t last, int phase);

np_recurrent_code np_recurrent_plain, np_recurrent_avx2, np_recurrent_avx512;

/* Gates whose weights lie side by side, and those of the second phase. */
NP_INLINE size_t np_recurrent_gates(int32_t kind) {
  return kind == NP_RECURRENT_LSTM ? 4 : kind == NP_RECURRENT_RNN ? 1 : 3;
}

NP_INLINE size_t np_recurrent_extras(const struct np_recurrent_params *p) {
  return p->kind == NP_RECURRENT_GRU_AFTER ? 1 : p->peepholes ? 3 : 0;
}

#endif
