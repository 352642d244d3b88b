/* Pooling, and reductions along axes. Read by cffi too: no directives but simple constants. */
#pragma once

#include <stdint.h>

#include "conv/image.h"

/* The greatest elements, or the means, of kernel windows of [batch, height, width, channels]. Pads
 * are above and to the left, and count for nothing; a kernel window has an element in the image. */
struct np_pool_params {
  struct np_image_sizes image;
  size_t kernel[2]; /* height, width */
  size_t strides[2];
  size_t dilations[2];
  size_t pads[2];
  int32_t maximum;
};

/* Sizes and strides of some axes, the last one changing fastest. */
struct np_reduction_axes {
  size_t rank;
  size_t sizes[8];
  ptrdiff_t strides[8];
};

#define NP_REDUCTION_SUM 0
#define NP_REDUCTION_PROD 1
#define NP_REDUCTION_MAX 2
#define NP_REDUCTION_MIN 3
#define NP_REDUCTION_L1 4
#define NP_REDUCTION_SUM_SQUARES 5
#define NP_REDUCTION_MEAN 6

/* A reduction along axes. The innermost axis is dense: `columns` results lie along it, or where
 * these are 0, `row` elements of which each result is computed. The other axes are `kept` or
 * `reduced`, in order, with so many elements; a part is a `tile` of results. */
struct np_typed_reduction_params {
  struct np_reduction_axes kept;
  struct np_reduction_axes reduced;
  size_t kept_count;
  size_t reduced_count;
  size_t columns;
  size_t row;
  size_t tile;
  int32_t op;     /* NP_REDUCTION_* */
  int32_t type;   /* NP_TYPE_* */
  int32_t target; /* NP_TARGET_* */
};
