/* Epilogues with registers of eight floats. */
#include "run.h"

#ifdef NP_CHOOSES_CPU
#define LANES 8
#define EPILOGUE np_epilogue_tile_avx2
#define TARGET __attribute__((target("arch=x86-64-v3")))
#include "epilogue_code.h"
#endif
