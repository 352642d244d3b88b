/* The instruction sets in use; see runtime/isa.h. */
#include "runtime/isa.h"

#include "runtime/kernel.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)
#endif
#endif

static int32_t level_in_use;
static bool vbmi_in_use;
static bool neon_dot_in_use;

int32_t np_isa_detected(void) {
#ifdef NP_CHOOSES_CPU
  if (!__builtin_cpu_supports("x86-64-v3")) return NP_TARGET_PLAIN;
  if (!__builtin_cpu_supports("x86-64-v4")) return NP_TARGET_AVX2;
  if (!__builtin_cpu_supports("avx512vnni")) return NP_TARGET_AVX512;
  if (!__builtin_cpu_supports("avx512bf16")) return NP_TARGET_AVX512VNNI;
  return NP_TARGET_AVX512BF16;
#else
  return NP_TARGET_PLAIN;
#endif
}

/* When the library is loaded, so that threads only read. */
__attribute__((constructor)) static void detect(void) {
#ifdef NP_CHOOSES_CPU
  __builtin_cpu_init();
  vbmi_in_use = __builtin_cpu_supports("avx512vbmi") != 0;
#endif
#if defined(__aarch64__) && defined(__linux__)
  neon_dot_in_use = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__ARM_FEATURE_DOTPROD)
  neon_dot_in_use = true;
#endif
  level_in_use = np_isa_detected();
}

int32_t np_isa(void) { return level_in_use; }

int32_t np_isa_for(int32_t target) {
  return target == NP_TARGET_BEST || target > level_in_use ? level_in_use : target;
}

bool np_isa_has_vbmi(void) { return vbmi_in_use; }

bool np_isa_has_neon_dot(void) { return neon_dot_in_use; }

void np_isa_cap(int32_t level) {
  if (level < level_in_use) level_in_use = level;
  vbmi_in_use = false;
  neon_dot_in_use = false;
}
