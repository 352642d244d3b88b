/* The calls of the tape, from kernels.def. */
#pragma once

#include "runtime/tape.h"

/* What a step runs. */
enum np_call {
#define NP_OPERATOR(call, setup, summary) NP_##call,
#define NP_CONVERTED(call, function, type, file, summary) NP_##call,
#define NP_KERNEL(call, function, type, file, summary) NP_##call,
#define NP_SCRATCH_KERNEL(call, function, type, file, summary) NP_##call,
#include "kernels.def"
};

/* Inputs that a step lacks are NULL. */
typedef int np_kernel(const void *params, const void *const *inputs, void *out,
                      np_workers *workers);

typedef int np_scratch_kernel(const void *params, const void *const *inputs, void *out,
                              void *workspace, np_workers *workers);

/* Sets up the step's XNNPACK operator and runs it. */
typedef int np_converted_operator(const np_step *step, const void *rows, void *out,
                                  void *workspace, np_workers *workers);

#define NP_CONVERTED(call, function, type, file, summary) np_converted_operator function;
#define NP_KERNEL(call, function, type, file, summary) np_kernel function;
#define NP_SCRATCH_KERNEL(call, function, type, file, summary) np_scratch_kernel function;
#include "kernels.def"
