/* Attention, as its code for each instruction set has it. */
#ifndef NARROWPASS_ATTENTION_H
#define NARROWPASS_ATTENTION_H

#include "run.h"

typedef struct {
  const struct np_attention_params *params;
  const float *q;
  const float *k;
  const float *v;
  const void *mask;
  float *out;
  float *scratch;
  size_t heads; /* that come one after the other; 0 where each is divided into parts */
} np_attention_job;

/* Rows from `first` to `last` of one head. */
typedef void np_attention_head(const np_attention_job *task, size_t number, size_t first,
                               size_t last, float *scratch);

np_attention_head np_attention_head_plain;
#ifdef NP_CHOOSES_CPU
np_attention_head np_attention_head_avx2, np_attention_head_avx512;
#endif

#endif
