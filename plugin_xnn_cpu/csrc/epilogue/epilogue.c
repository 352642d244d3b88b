/* Selection of the epilogue; see epilogue/epilogue.h. */
#include "epilogue/epilogue.h"

#include "runtime/kernel.h"

np_epilogue_tile np_epilogue_tile_plain;
#ifdef NP_CHOOSES_CPU
np_epilogue_tile np_epilogue_tile_avx2, np_epilogue_tile_avx512;
#endif

np_epilogue_tile *np_epilogue_for(int32_t target) {
#ifdef NP_CHOOSES_CPU
  const int32_t isa = np_isa_for(target);
  if (isa >= NP_TARGET_AVX512) return np_epilogue_tile_avx512;
  if (isa == NP_TARGET_AVX2) return np_epilogue_tile_avx2;
#else
  (void)target;
#endif
  return np_epilogue_tile_plain;
}
