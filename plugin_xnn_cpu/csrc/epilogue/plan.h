/* How a kernel ends whose accumulators take a residual, and are clamped, in registers. */
#pragma once

#include "epilogue/epilogue.h"

typedef struct {
  np_epilogue_tile *tile; /* what follows; NULL where clamping is all that there is */
  struct np_epilogue epilogue;
  const float *before; /* residuals, one of which is there at most */
  const float *after;
  float low; /* of clamping; infinite where `tile` follows */
  float high;
} np_epilogue_plan;

np_epilogue_plan np_epilogue_plan_of(const struct np_epilogue *epilogue, const float *residual,
                                     int32_t target);
