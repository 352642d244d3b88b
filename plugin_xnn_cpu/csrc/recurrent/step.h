/* What the recurrence shares with its code for each instruction set. */
#pragma once

#include "recurrent/recurrent.h"
#include "runtime/kernel.h"

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
  uint8_t *rows;    /* quantized states, of each direction and part */
} np_recurrent_job;

/* States [batch, hidden in fours] of a direction as bytes with an offset of 128, their scales, and
 * what each sequence's bytes without that offset add up to. */
typedef struct {
  uint8_t *bytes;
  float *scales;
  int32_t *acc;
} np_recurrent_rows;

/* Compute blocks of units from `first` to `last` of a direction in one step. Of NP_RECURRENT_GRU,
 * `phase` 0 computes the gates and the reset state, 1 the new state; others have phase 0 only.
 * `number` is that of the part. */
typedef void np_recurrent_code(const np_recurrent_job *job, size_t direction, size_t step,
                               size_t first, size_t last, size_t number, int phase);

NP_DECLARE_FROM_SSE4(np_recurrent_code, np_recurrent);
NP_DECLARE_FROM_SSE4(np_recurrent_code, np_recurrent_int8); /* of int8 weights */
np_recurrent_code np_recurrent_int8_avx512vnni;

/* Gates whose weights lie side by side, and those of the second phase. */
NP_INLINE size_t np_recurrent_gates(int32_t kind) {
  return kind == NP_RECURRENT_LSTM ? 4 : kind == NP_RECURRENT_RNN ? 1 : 3;
}

NP_INLINE size_t np_recurrent_extras(const struct np_recurrent_params *p) {
  return p->kind == NP_RECURRENT_GRU_AFTER ? 1 : p->peepholes ? 3 : 0;
}

/* Bytes that a part needs for quantized states, in whole floats. */
NP_INLINE size_t np_recurrent_row_bytes(size_t batch, size_t hidden) {
  return batch * ((hidden + 3) / 4 * 4 + sizeof(float) + sizeof(int32_t));
}

NP_INLINE np_recurrent_rows np_recurrent_rows_of(const np_recurrent_job *job, size_t direction,
                                                 size_t number) {
  const struct np_recurrent_params *p = job->params;
  const size_t parts = p->parts == 0 ? 1 : p->parts;
  uint8_t *at =
      job->rows + (direction * parts + number) * np_recurrent_row_bytes(p->batch, p->hidden);
  float *scales = (float *)at;
  int32_t *acc = (int32_t *)(scales + p->batch);
  return (np_recurrent_rows){(uint8_t *)(acc + p->batch), scales, acc};
}

/* Packed bytes of a direction whose weights are int8. */
NP_INLINE size_t np_recurrent_direction_bytes(const struct np_recurrent_params *p, size_t padded) {
  const size_t gates = np_recurrent_gates(p->kind);
  return padded * (gates * ((p->hidden + 3) / 4 * 4 + 8) + 4 * np_recurrent_extras(p));
}
