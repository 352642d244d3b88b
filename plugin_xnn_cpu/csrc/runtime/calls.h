/* The calls of the tape, from kernels.def. */
#pragma once

#include <stdatomic.h>

#include "runtime/tape.h"

/* What a step runs. */
enum np_call {
#define NP_OPERATOR(call, setup, summary) NP_##call,
#define NP_CONVERTED(call, function, type, file, summary) NP_##call,
#define NP_KERNEL(call, function, type, file, summary) NP_##call,
#include "kernels.def"
};

/* A call of a kernel: its parameters and operands. */
typedef struct {
  const void *params;
  const void *const *inputs; /* NULL for those that a step lacks */
  void *out;
  uint8_t *scratch;    /* the workspace */
  np_workers *workers; /* NULL for none */
  atomic_int outside;  /* whether an index is out of range */
} np_job;

/* Returns 0 or a status. */
typedef int np_kernel(np_job *job);

/* Sets up the step's XNNPACK operator and runs it. */
typedef int np_converted_operator(np_job *job, xnn_operator_t op);

#define NP_CONVERTED(call, function, type, file, summary) np_converted_operator function;
#define NP_KERNEL(call, function, type, file, summary) np_kernel function;
#include "kernels.def"
