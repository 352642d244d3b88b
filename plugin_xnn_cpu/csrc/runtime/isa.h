/* The instruction sets in use: those of the processor and the build, or fewer.
 *
 * Levels are ordered; each has all that the ones before it have. Read by cffi too: no directives
 * but simple constants. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* NP_TARGET_BEST stands for the level in use. SSE4 and PLAIN are x86-64-v2 at least: PLAIN rounds a
 * multiplication and an addition once, as FMA does, so that results have the bits of the levels
 * after it; SSE4 rounds twice, in a tenth of the time. AVX2 is x86-64-v3, with FMA and F16C; AVX512
 * is x86-64-v4: F, BW, CD, DQ, VL. AVX512AMX has the tiles of AMX, of int8 and of bfloat16. Other
 * processors than x86-64 have PLAIN. */
#define NP_TARGET_BEST 0
#define NP_TARGET_SSE4 1
#define NP_TARGET_PLAIN 2
#define NP_TARGET_AVX2 3
#define NP_TARGET_AVX512 4
#define NP_TARGET_AVX512VNNI 5
#define NP_TARGET_AVX512BF16 6
#define NP_TARGET_AVX512AMX 7

/* Whether the build has kernels for a level. */
bool np_isa_is_built(int32_t level);

/* The level of the processor, with AMX where the operating system permits it. */
int32_t np_isa_of_processor(void);

/* The same, or the highest level below it that the build has kernels for. */
int32_t np_isa_detected(void);

/* What becomes of AMX, whether or not np_isa_cap caps it: it can be used; the processor lacks it; or
 * it has it, but the operating system does not permit it, or the build lacks it. */
#define NP_AMX_USABLE 0
#define NP_AMX_ABSENT 1
#define NP_AMX_REFUSED 2
#define NP_AMX_NOT_BUILT 3
int32_t np_isa_amx(void);

/* The level in use: the detected one, SSE4 where that is x86-64 without FMA, or that of np_isa_cap.
 */
int32_t np_isa(void);

/* The level of code for a target: the target's, but no higher than the one in use. */
int32_t np_isa_for(int32_t target);

/* Whether VBMI is in use, which no level has. */
bool np_isa_has_vbmi(void);

/* Whether Neon's dot product (SDOT) is in use, which no level of x86-64 has. */
bool np_isa_has_neon_dot(void);

/* Cap the level in use of our kernels; where the processor has no FMA, PLAIN takes the place of SSE4.
 * What no level has is not used then. To be called before any operator is created. */
void np_isa_cap(int32_t level);
