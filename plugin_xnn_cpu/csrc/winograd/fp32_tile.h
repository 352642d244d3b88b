/* What is done with tiles of Winograd's algorithm before and after they are multiplied; see
 * winograd/fp32.c for what is computed. Written with vectors of the compiler, for each instruction
 * set, in winograd/fp32_code.c. */
#pragma once

#include "gemm/fp32/panel.h"

#define NP_WINOGRAD_MOST_ELEMENTS 36 /* of a transformed tile */

/* The four points of tiles of 4 x 4 beside 0 and infinity: both with either sign. All that is
 * defined of them for inputs and outputs is exact in float32, and errors are half of those of 1 and
 * 2. */
#define NP_WINOGRAD_NEAR 0.625f
#define NP_WINOGRAD_FAR 1.5f

/* Transform the tile whose pixels lie at `pixels`, row by row; element i of all channels goes to
 * to + i * stride. What follows the channels up to a whole vector of 16 is written too. */
typedef void np_winograd_transform(const float *const *pixels, size_t channels, float *to,
                                   size_t stride);

/* The accumulators of a tile and a panel of weights, and what they become. */
typedef struct {
  const float *acc;      /* of element 0 */
  size_t stride;         /* to the next element */
  const float *bias;     /* as many as columns, up to a whole vector */
  size_t columns;        /* of the panel */
  float *out;            /* of the first pixel */
  const float *residual; /* added to the accumulators; NULL for none; lies as `out` does */
  size_t row_stride;
  size_t pixel_stride;
  size_t rows; /* pixels of the tile that are part of the image */
  size_t pixels;
  float low;
  float high;
} np_winograd_tile;

typedef void np_winograd_finish(const np_winograd_tile *tile);

/* For tiles of 2 x 2 and of 4 x 4. */
typedef struct {
  np_winograd_transform *transform[2];
  np_winograd_finish *finish[2];
} np_winograd_code;

NP_DECLARE_FOR_ISAS(const np_winograd_code, np_winograd);
