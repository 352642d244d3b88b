/* Operators in plain C behind the interface that narrowpass-xnn-cpu uses of XNNPACK.
 *
 * They stand in for XNNPACK where no build of it can be had. Each kind of operator is a struct that
 * begins with `xnn_operator`. All run on the calling thread: what takes most of a model's time,
 * matmuls, convolutions and attention, has kernels of its own in csrc. */
#pragma once

#include <stdlib.h>

#include "xnnpack/xnnpack.h"

#define NP_DIMS XNN_MAX_TENSOR_DIMS

struct xnn_operator {
  void (*run)(const struct xnn_operator *op);
  void *owned; /* freed with the operator; NULL for none */
  const void *a, *b;
  void *out;
  bool sized, set_up;
};

/* Allocates an operator of `size` bytes into `*out`; NULL where memory is out. */
void *np_portable_new(size_t size, void (*run)(const struct xnn_operator *op), xnn_operator_t *out);

/* Set operands of an operator that has been sized. */
enum xnn_status np_portable_set_up(xnn_operator_t op, const void *a, const void *b, void *out);

/* Whether an operator is of the kind that `run` runs. */
static inline bool np_portable_is(xnn_operator_t op, void (*run)(const struct xnn_operator *op)) {
  return op != NULL && op->run == run;
}

static inline float np_portable_clamp(float x, float low, float high) {
  /* NaN stays NaN. */
  return x < low ? low : x > high ? high : x;
}

/* Round to nearest even into [low, high]; NaN becomes `high`. */
static inline int32_t np_portable_round(float x, float low, float high) {
  const float inside = x < high ? (x > low ? x : low) : high;
  return (int32_t)__builtin_rintf(inside);
}
