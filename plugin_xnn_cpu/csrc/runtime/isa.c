/* The instruction sets in use; see runtime/isa.h. */
#define _GNU_SOURCE /* syscall */
#include "runtime/isa.h"

#include "runtime/kernel.h"

#ifdef NP_CHOOSES_CPU
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)
#endif
#endif

static int32_t level_in_use;
static int32_t amx = NP_AMX_ABSENT;
static bool vbmi_in_use;
static bool neon_dot_in_use;

#ifdef NP_CHOOSES_CPU
#define CPUID_AMX ((1u << 22) | (1u << 24) | (1u << 25)) /* leaf 7, EDX: BF16, TILE, INT8 */
#define XCR0_TILES ((1u << 17) | (1u << 18))             /* TILECFG, TILEDATA */
#define REQUEST_STATE_PERMISSION 0x1023 /* ARCH_REQ_XCOMP_PERM, of Linux 5.16 and later */
#define TILE_DATA_STATE 18

/* Ask for the permission that Linux wants before tiles are used: for the process, its threads, and
 * its children unless they execute another program. */
static int32_t request_amx(void) {
  uint32_t a, b, c, d;
  if (!__builtin_cpu_supports("avx512bf16")) return NP_AMX_ABSENT;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & CPUID_AMX) != CPUID_AMX) {
    return NP_AMX_ABSENT;
  }
#if !NP_HAS_AVX512AMX
  return NP_AMX_NOT_BUILT;
#else
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  if ((a & XCR0_TILES) != XCR0_TILES) return NP_AMX_REFUSED;
  const long status = syscall(SYS_arch_prctl, REQUEST_STATE_PERMISSION, TILE_DATA_STATE);
  return status == 0 ? NP_AMX_USABLE : NP_AMX_REFUSED;
#endif
}
#endif

int32_t np_isa_amx(void) { return amx; }

bool np_isa_is_built(int32_t level) {
  switch (level) {
#ifdef __x86_64__
    case NP_TARGET_SSE4: return true;
#endif
    case NP_TARGET_PLAIN: return NP_HAS_PLAIN;
    case NP_TARGET_AVX2: return NP_HAS_AVX2;
    case NP_TARGET_AVX512: return NP_HAS_AVX512;
    case NP_TARGET_AVX512VNNI: return NP_HAS_AVX512VNNI;
    case NP_TARGET_AVX512BF16: return NP_HAS_AVX512BF16;
    case NP_TARGET_AVX512AMX: return NP_HAS_AVX512AMX;
    default: return false;
  }
}

int32_t np_isa_of_processor(void) {
#ifdef NP_CHOOSES_CPU
  if (!__builtin_cpu_supports("x86-64-v3")) return NP_TARGET_PLAIN;
  if (!__builtin_cpu_supports("x86-64-v4")) return NP_TARGET_AVX2;
  if (!__builtin_cpu_supports("avx512vnni")) return NP_TARGET_AVX512;
  if (!__builtin_cpu_supports("avx512bf16")) return NP_TARGET_AVX512VNNI;
  const bool has_amx = amx == NP_AMX_USABLE || amx == NP_AMX_NOT_BUILT;
  return has_amx ? NP_TARGET_AVX512AMX : NP_TARGET_AVX512BF16;
#else
  return NP_TARGET_PLAIN;
#endif
}

int32_t np_isa_detected(void) {
  int32_t level = np_isa_of_processor();
  while (level > NP_TARGET_SSE4 && !np_isa_is_built(level)) level--;
  return level;
}

/* When the library is loaded, so that threads only read. */
__attribute__((constructor)) static void detect(void) {
#ifdef NP_CHOOSES_CPU
  __builtin_cpu_init();
  vbmi_in_use = __builtin_cpu_supports("avx512vbmi") != 0;
  amx = request_amx();
#endif
#if defined(__aarch64__) && defined(__linux__)
  neon_dot_in_use = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__ARM_FEATURE_DOTPROD)
  neon_dot_in_use = true;
#endif
  level_in_use = np_isa_detected();
#ifdef __x86_64__
  if (level_in_use == NP_TARGET_PLAIN) level_in_use = NP_TARGET_SSE4;
#endif
}

int32_t np_isa(void) { return level_in_use; }

int32_t np_isa_for(int32_t target) {
  return target == NP_TARGET_BEST || target > level_in_use ? level_in_use : target;
}

bool np_isa_has_vbmi(void) { return vbmi_in_use; }

bool np_isa_has_neon_dot(void) { return neon_dot_in_use; }

void np_isa_cap(int32_t level) {
  const int32_t most = np_isa_detected();
  level_in_use = level < most ? level : most;
  vbmi_in_use = false;
  neon_dot_in_use = false;
}
