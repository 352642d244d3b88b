/* Which instruction sets the build has kernels for: NP_HAS_* are 1 or 0. It defines NP_WITHOUT_* for
 * the levels that it leaves out (build_tools/instruction_sets.py). */
#pragma once

/* Functions for certain instruction sets may be written, and chosen among when they are called. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NP_CHOOSES_CPU
#endif

#ifdef NP_WITHOUT_PLAIN /* on x86-64, where SSE4 is the base */
#define NP_HAS_PLAIN 0
#else
#define NP_HAS_PLAIN 1
#endif

#if defined(NP_CHOOSES_CPU) && !defined(NP_WITHOUT_AVX2)
#define NP_HAS_AVX2 1
#else
#define NP_HAS_AVX2 0
#endif

#if defined(NP_CHOOSES_CPU) && !defined(NP_WITHOUT_AVX512)
#define NP_HAS_AVX512 1
#else
#define NP_HAS_AVX512 0
#endif

#if NP_HAS_AVX512 && !defined(NP_WITHOUT_AVX512VNNI)
#define NP_HAS_AVX512VNNI 1
#else
#define NP_HAS_AVX512VNNI 0
#endif

#if NP_HAS_AVX512VNNI && !defined(NP_WITHOUT_AVX512BF16)
#define NP_HAS_AVX512BF16 1
#else
#define NP_HAS_AVX512BF16 0
#endif

#if NP_HAS_AVX512BF16 && !defined(NP_WITHOUT_AVX512AMX)
#define NP_HAS_AVX512AMX 1
#else
#define NP_HAS_AVX512AMX 0
#endif
