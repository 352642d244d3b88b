/* The table of calls. Read by cffi too: no directives but simple constants. */
#pragma once

#include "runtime/tape.h"

/* A row of kernels.def: the name of the call, its struct of parameters and the file that defines
 * it, both empty for an operator of XNNPACK, and what it computes. */
typedef struct {
  const char *call;
  const char *params;
  const char *file;
  const char *summary;
} np_call_row;

/* By number of the call. */
extern const np_call_row np_call_rows[];
extern const size_t np_call_count;

/* Run one step; see np_run. */
int np_run_step(const np_step *step, void *const *buffers, void *workspace, np_workers *workers);
