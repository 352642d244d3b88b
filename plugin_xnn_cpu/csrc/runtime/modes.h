/* Modes of floating point: whether subnormal operands and results are 0. */
#pragma once

#include <stdint.h>

#if defined(__x86_64__)
#define NP_ZEROED 0x8040u /* MXCSR: subnormal operands and results are 0 */

static inline uint64_t np_modes(void) { return __builtin_ia32_stmxcsr(); }
static inline void np_set_modes(uint64_t modes) { __builtin_ia32_ldmxcsr((unsigned)modes); }
#elif defined(__aarch64__)
#define NP_ZEROED ((uint64_t)1 << 24 | (uint64_t)1 << 19) /* FPCR: FZ and FZ16 */

static inline uint64_t np_modes(void) {
  uint64_t modes;
  __asm__ __volatile__("mrs %0, fpcr" : "=r"(modes));
  return modes;
}

static inline void np_set_modes(uint64_t modes) {
  __asm__ __volatile__("msr fpcr, %0" : : "r"(modes));
}
#else
#define NP_ZEROED 0

static inline uint64_t np_modes(void) { return 0; }
static inline void np_set_modes(uint64_t modes) { (void)modes; }
#endif

/* Let subnormal numbers be 0, if `disable` is set; returns the modes before. */
static inline uint64_t np_disable_denormals(int disable) {
  const uint64_t before = np_modes();
  if (disable) np_set_modes(before | NP_ZEROED);
  return before;
}
