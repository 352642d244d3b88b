/* Which code ends products and convolutions; see epilogue.h. */
#include "epilogue.h"

#include "run.h"

np_epilogue_tile np_epilogue_tile_plain;
#ifdef NP_CHOOSES_CPU
np_epilogue_tile np_epilogue_tile_avx2, np_epilogue_tile_avx512;
#endif

np_epilogue_tile *np_epilogue_for(int32_t target) {
#ifdef NP_CHOOSES_CPU
  if (target == NP_TARGET_PLAIN) return np_epilogue_tile_plain;
  if (target != NP_TARGET_AVX2 && __builtin_cpu_supports("x86-64-v4")) {
    return np_epilogue_tile_avx512;
  }
  if (__builtin_cpu_supports("x86-64-v3")) return np_epilogue_tile_avx2;
#else
  (void)target;
#endif
  return np_epilogue_tile_plain;
}
