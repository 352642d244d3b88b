/* Selection of the epilogue; see epilogue/epilogue.h. */
#include "epilogue/epilogue.h"

#include "runtime/kernel.h"

NP_DECLARE_FOR_ISAS(np_epilogue_tile, np_epilogue_tile);

np_epilogue_tile *np_epilogue_for(int32_t target) {
  return NP_FOR_ISA(np_epilogue_tile, target);
}
