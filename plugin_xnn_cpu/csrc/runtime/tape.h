/* The tape: a compiled sequence of operators and kernels over numbered buffers.
 *
 * The caller owns everything that a step names and keeps it alive while the tape is used. Read by
 * cffi too: no directives but simple constants. */
#pragma once

#include "runtime/isa.h"
#include "runtime/workers.h"
#include "xnnpack/xnnpack.h"

#define NP_MAX_INPUTS 6 /* of a step */
#define NP_MAX_DIMS 8   /* of what a kernel computes over */

/* Statuses of ours, beside those of XNNPACK. */
#define NP_STATUS_INDEX 100
#define NP_STATUS_CALL 101
#define NP_STATUS_CANCELLED 102

typedef struct {
  int32_t call;      /* enum np_call: a row of kernels.def */
  int32_t set_up;    /* 0: buffers changed since the last setup, or may change in each run */
  int32_t inputs[6]; /* buffer numbers */
  int32_t output;    /* buffer number */
  int32_t alone;     /* 1: an XNNPACK operator that is not worth waking the workers for */
  xnn_operator_t op;  /* NULL for kernels of ours */
  const void *params; /* of the struct that the row names; NULL for none */
} np_step;

/* Run `count` steps. `buffers` holds the address of each buffer, `workspace` what the operators'
 * reshape and the kernels' parameters asked for; `workers` may be NULL for none. Where
 * `nanoseconds` is not NULL, each step's time goes there. Returns 0, or the status of the step
 * whose index is then in `failed`.
 *
 * Where `ask` is not NULL it is asked some fifty times a second, by the thread that calls, between
 * steps and between the parts of our kernels. Anything but 0 ends the run with NP_STATUS_CANCELLED;
 * what it would have computed is then undefined. An operator of XNNPACK is computed to its end. */
int np_run(np_step *steps, size_t count, void *const *buffers, void *workspace,
           np_workers *workers, uint64_t *nanoseconds, size_t *failed, int (*ask)(void *context),
           void *context);

/* The arguments of a run of a tape again and again, for a caller that binds `buffers` itself. */
typedef struct {
  np_step *steps;
  size_t count;
  void **buffers;
  void *workspace;
  np_workers *workers;
} np_tape_call;

/* Run a `np_tape_call`, which nothing cancels; return 0, or the status of the step that failed. */
int np_tape_call_run(void *call);

/* Whether the bytes that kernels may read beyond `size` bytes at `start` lie in the page of the
 * last of these, which is mapped. */
int np_overread_stays_in_page(const void *start, size_t size);
