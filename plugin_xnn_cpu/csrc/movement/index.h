/* Operators that gather and scatter by computed indices. Read by cffi too: no directives but simple
 * constants. */
#pragma once

#include "elementwise/typed.h"

/* What becomes of an element and its update. */
enum np_scatter {
  NP_SCATTER_NONE = 0,
  NP_SCATTER_ADD = 1,
  NP_SCATTER_MUL = 2,
  NP_SCATTER_MIN = 3,
  NP_SCATTER_MAX = 4
};

/* GatherElements: out[i, j, ..] = data[i, indices[i, j, ..], ..], and ScatterElements: the other
 * way. `sizes` are those of the indices, which are dense; each but that of `axis` is at most the
 * data's. */
struct np_elements_params {
  size_t rank; /* 1 to 8 */
  size_t axis;
  size_t sizes[8];
  ptrdiff_t strides[8]; /* of the data, in elements */
  size_t axis_size;     /* of the data */
  size_t data_bytes;
  int32_t element_size; /* 1, 2, 4 or 8 */
  int32_t index_size;   /* 4 or 8 */
  int32_t reduction;    /* enum np_scatter */
  int32_t type;         /* NP_TYPE_* of reductions: float32, float64, int32 or int64 */
};

/* GatherND and ScatterND: rows of the data, each at a tuple of indices. */
struct np_gather_nd_params {
  size_t batches;
  size_t tuples; /* of a batch */
  size_t depth;  /* indices of a tuple: 0 to 8 */
  size_t sizes[8];
  ptrdiff_t strides[8];   /* of the data's indexed axes, in bytes */
  ptrdiff_t batch_stride; /* in bytes */
  size_t row;             /* elements */
  size_t data_bytes;
  int32_t element_size;
  int32_t index_size;
  int32_t reduction;
  int32_t type;
};

/* TopK of [outer, size, inner]: values [outer, count, inner], then, 8 bytes for each of these on,
 * their int64 indices. Largest ones first, or smallest; of equal ones the first come first. NaN is
 * larger than any number. */
struct np_top_k_params {
  size_t outer;
  size_t size;
  size_t inner;
  size_t count;
  int32_t largest;
  int32_t type; /* NP_TYPE_*, one of the same */
};
