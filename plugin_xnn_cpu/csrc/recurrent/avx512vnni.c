/* A step of a recurrence with weights of int8, for AVX-512 with VNNI: an instruction multiplies
 * four states of each of 16 units with their weights, and adds the products. */
#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#include <immintrin.h>

#define BYTES
#define LANES 16
#define ROWS 4
#define CODE np_recurrent_vnni
#define TARGET __attribute__((target("arch=x86-64-v4,avx512vnni")))
#include "recurrent/code.h"
#endif
