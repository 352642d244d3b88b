/* Selection of the epilogue; see epilogue/epilogue.h. */
#include <math.h>

#include "epilogue/plan.h"
#include "runtime/kernel.h"

NP_DECLARE_FROM_SSE4(np_epilogue_tile, np_epilogue_tile);

np_epilogue_tile *np_epilogue_for(int32_t target) {
  return NP_FROM_SSE4(np_epilogue_tile, target);
}

np_epilogue_plan np_epilogue_plan_of(const struct np_epilogue *epilogue, const float *residual,
                                     int32_t target) {
  const int32_t place = epilogue->residual;
  const int clamps = epilogue->function == NP_EPILOGUE_CLAMP && place != NP_RESIDUAL_AFTER;
  np_epilogue_plan plan = {
      .tile = clamps ? NULL : np_epilogue_for(target),
      .epilogue = *epilogue,
      .before = place == NP_RESIDUAL_BEFORE ? residual : NULL,
      .after = place == NP_RESIDUAL_AFTER ? residual : NULL,
      .low = clamps ? epilogue->low : -INFINITY,
      .high = clamps ? epilogue->high : INFINITY,
  };
  /* What is added before is part of the accumulators already when the epilogue begins. */
  if (place == NP_RESIDUAL_BEFORE) plan.epilogue.residual = NP_RESIDUAL_NONE;
  return plan;
}
