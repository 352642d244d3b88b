/* For tests: executes the instructions of AVX512-BF16 on processors that have AVX-512 without them.
 *
 * Such a processor raises SIGILL. The handler decodes the instruction, computes its result,
 * writes that into the registers as they lie in the signal's frame, and steps over it. Whatever else
 * raises the signal ends the process as usual. Linux on x86-64 only. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#define DOT_PRODUCTS 0 /* vdpbf16ps */
#define ROUNDED 1  /* vcvtneps2bf16 */
#define ROUNDED_PAIRS 2 /* vcvtne2ps2bf16 */

static uint64_t executed[3];
static uint32_t upper_ymm, masks, upper_zmm, high_zmm; /* where components of the state are */
static struct sigaction before;

typedef struct {
  int what;
  int size;   /* bytes of a vector */
  int target; /* register */
  int second; /* register: the first source of two */
  int source; /* register, or -1: memory */
  const uint8_t *memory;
  int is_broadcast;
  int mask; /* register, 0 for none */
  int zeroes;
  int length;
} instruction;

static const int GENERAL[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

/* Decodes the memory operand; returns the number of bytes after the ModRM byte. */
static int address(const uint8_t *at, int mod, int rm, int x, int b, int scale,
                   const greg_t *registers, const uint8_t *start, instruction *found) {
  int64_t place = 0;
  int length = 0, base = rm | b << 3, is_relative = 0, has_base = 1;
  if (rm == 4) {
    const uint8_t sib = at[length++];
    const int index = (sib >> 3 & 7) | x << 3;
    if (index != 4) place += registers[GENERAL[index]] << (sib >> 6);
    base = (sib & 7) | b << 3;
    has_base = mod != 0 || (sib & 7) != 5;
  } else if (mod == 0 && rm == 5) {
    has_base = 0;
    is_relative = 1;
  }
  if (has_base) place += registers[GENERAL[base]];
  if (mod == 1) {
    place += (int8_t)at[length++] * scale;
  } else if (mod == 2 || !has_base) {
    int32_t displacement;
    memcpy(&displacement, at + length, 4);
    length += 4;
    place += displacement;
  }
  if (is_relative) place += (int64_t)(at + length - start) + registers[REG_RIP];
  found->memory = (const uint8_t *)place;
  return length;
}

static int decode(const uint8_t *code, const greg_t *registers, instruction *found) {
  if (code[0] != 0x62 || (code[1] & 0x0f) != 2 || (code[2] & 0x84) != 4) return 0; /* map 2, W0 */
  const int prefix = code[2] & 3, opcode = code[4], modrm = code[5];
  if (opcode == 0x52 && prefix == 2) {
    found->what = DOT_PRODUCTS;
  } else if (opcode == 0x72 && (prefix == 2 || prefix == 3)) {
    found->what = prefix == 2 ? ROUNDED : ROUNDED_PAIRS;
  } else {
    return 0;
  }
  const int r = !(code[1] & 0x80), x = !(code[1] & 0x40), b = !(code[1] & 0x20);
  const int high = !(code[1] & 0x10);
  if ((code[3] >> 5 & 3) == 3) return 0;
  found->size = 16 << (code[3] >> 5 & 3);
  found->is_broadcast = code[3] >> 4 & 1;
  found->second = (~code[2] >> 3 & 15) | (code[3] & 8 ? 0 : 16);
  found->mask = code[3] & 7;
  found->zeroes = code[3] >> 7;
  found->target = (modrm >> 3 & 7) | r << 3 | high << 4;
  const int mod = modrm >> 6, rm = modrm & 7;
  if (mod == 3) {
    if (found->is_broadcast) return 0;
    found->source = rm | b << 3 | x << 4;
    found->length = 6;
  } else {
    const int scale = found->is_broadcast ? 4 : found->size;
    found->source = -1;
    found->length = 6 + address(code + 6, mod, rm, x, b, scale, registers, code, found);
  }
  return 1;
}

static void read_register(const uint8_t *state, int number, uint8_t *out) {
  if (number >= 16) {
    memcpy(out, state + high_zmm + 64 * (number - 16), 64);
    return;
  }
  memcpy(out, state + 160 + 16 * number, 16);
  memcpy(out + 16, state + upper_ymm + 16 * number, 16);
  memcpy(out + 32, state + upper_zmm + 32 * number, 32);
}

static void write_register(uint8_t *state, int number, const uint8_t *in) {
  if (number >= 16) {
    memcpy(state + high_zmm + 64 * (number - 16), in, 64);
    return;
  }
  memcpy(state + 160 + 16 * number, in, 16);
  memcpy(state + upper_ymm + 16 * number, in + 16, 16);
  memcpy(state + upper_zmm + 32 * number, in + 32, 32);
}

/* Components that were not in use count as zeros; from now on they are in use. */
static void take_all(uint8_t *state) {
  const uint32_t places[8] = {0, 160, upper_ymm, 0, 0, masks, upper_zmm, high_zmm};
  const uint32_t sizes[8] = {0, 256, 256, 0, 0, 64, 512, 1024};
  uint64_t used;
  memcpy(&used, state + 512, sizeof used);
  for (int i = 1; i < 8; i++) {
    if (sizes[i] != 0 && !(used >> i & 1)) memset(state + places[i], 0, sizes[i]);
    if (sizes[i] != 0) used |= 1ull << i;
  }
  memcpy(state + 512, &used, sizeof used);
}

static float without_subnormals(float x) { return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x; }

static float wide(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return without_subnormals(value);
}

static uint16_t narrow(float x) {
  uint32_t bits;
  x = without_subnormals(x);
  memcpy(&bits, &x, sizeof bits);
  if (isnan(x)) return (uint16_t)(bits >> 16 | 0x40);
  const uint32_t rest = bits & 0xffff, kept = bits >> 16;
  return (uint16_t)(kept + (rest > 0x8000 || (rest == 0x8000 && (kept & 1))));
}

static void compute(const instruction *i, uint8_t *state) {
  uint8_t old[64], second[64], source[64], result_bytes[64] = {0};
  read_register(state, i->target, old);
  read_register(state, i->second, second);
  if (i->source >= 0) {
    read_register(state, i->source, source);
  } else if (i->is_broadcast) {
    for (int k = 0; k < i->size; k += 4) memcpy(source + k, i->memory, 4);
  } else {
    memcpy(source, i->memory, (size_t)i->size);
  }
  uint64_t chosen = ~0ull;
  if (i->mask != 0) memcpy(&chosen, state + masks + 8 * i->mask, sizeof chosen);
  const int element = i->what == DOT_PRODUCTS ? 4 : 2;
  const int elements = i->what == ROUNDED ? i->size / 4 : i->size / element;
  const float *numbers = (const float *)source, *others = (const float *)second;
  for (int k = 0; k < elements; k++) {
    uint8_t *to = result_bytes + k * element;
    if (!(chosen >> k & 1)) {
      if (!i->zeroes) memcpy(to, old + k * element, (size_t)element);
    } else if (i->what == DOT_PRODUCTS) {
      float sum;
      memcpy(&sum, old + 4 * k, 4);
      for (int half = 1; half >= 0; half--) {
        uint16_t a, b;
        memcpy(&a, second + 4 * k + 2 * half, 2);
        memcpy(&b, source + 4 * k + 2 * half, 2);
        sum = without_subnormals(fmaf(wide(a), wide(b), without_subnormals(sum)));
      }
      memcpy(to, &sum, 4);
    } else {
      /* Of two sources the second one, which may be in memory, fills the lower half. */
      const int half = i->size / 4;
      const uint16_t result = narrow(k < half ? numbers[k] : others[k - half]);
      memcpy(to, &result, 2);
    }
  }
  write_register(state, i->target, result_bytes);
}

static void handle(int number, siginfo_t *info, void *context) {
  ucontext_t *here = context;
  greg_t *registers = here->uc_mcontext.gregs;
  uint8_t *state = (uint8_t *)here->uc_mcontext.fpregs;
  instruction found = {0};
  (void)info;
  if (!decode((const uint8_t *)registers[REG_RIP], registers, &found)) {
    sigaction(number, &before, NULL); /* it is raised again */
    return;
  }
  take_all(state);
  compute(&found, state);
  __atomic_fetch_add(&executed[found.what], 1, __ATOMIC_RELAXED);
  registers[REG_RIP] += found.length;
}

/* Begin and end to handle the signal. */
int start(void) {
  uint32_t a, c, d;
  __cpuid_count(0xd, 2, a, upper_ymm, c, d);
  __cpuid_count(0xd, 5, a, masks, c, d);
  __cpuid_count(0xd, 6, a, upper_zmm, c, d);
  __cpuid_count(0xd, 7, a, high_zmm, c, d);
  struct sigaction ours = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
  return sigaction(SIGILL, &ours, &before);
}

int stop(void) { return sigaction(SIGILL, &before, NULL); }

uint64_t count(int what) { return executed[what]; }

/* Instructions of all forms, to be compared with their definition. Each takes three vectors of
 * 64 bytes and a mask, and replaces the first one; `third` has 64 readable bytes at ±256 too. */
#define FORM(name, text)                                                                         \
  __attribute__((target("avx512f,avx512bw"))) void name(void *first, const void *second,         \
                                                        const void *third, uint64_t mask) {      \
    __asm__ volatile("kmovq %3, %%k3\n\tvmovdqu8 (%0), %%zmm21\n\tvmovdqu8 (%1), %%zmm30\n\t"    \
                     "vmovdqu8 (%2), %%zmm9\n\tmov %2, %%r13\n\tmov $2, %%r9d\n\t" text          \
                     "\n\tvmovdqu8 %%zmm21, (%0)"                                                 \
                     :                                                                           \
                     : "r"(first), "r"(second), "r"(third), "r"(mask)                            \
                     : "memory", "r9", "r13", "k3", "xmm1", "xmm2", "xmm9", "xmm21", "xmm30");                   \
  }

FORM(dot_registers, "vdpbf16ps %%zmm9, %%zmm30, %%zmm21")
FORM(dot_low_registers,
     "vmovdqa64 %%zmm30, %%zmm1\n\tvmovdqa64 %%zmm21, %%zmm2\n\tvdpbf16ps %%zmm9, %%zmm1, %%zmm2\n\t"
     "vmovdqa64 %%zmm2, %%zmm21")
FORM(dot_memory, "vdpbf16ps (%2), %%zmm30, %%zmm21")
FORM(dot_near, "vdpbf16ps -128(%%r13), %%zmm30, %%zmm21")
FORM(dot_far, "vdpbf16ps 132(%2), %%zmm30, %%zmm21")
FORM(dot_indexed, "vdpbf16ps 64(%%r13,%%r9,8), %%zmm30, %%zmm21")
FORM(dot_broadcast, "vdpbf16ps 12(%%r13)%{1to16%}, %%zmm30, %%zmm21")
FORM(dot_merged, "vdpbf16ps %%zmm9, %%zmm30, %%zmm21%{%%k3%}")
FORM(dot_zeroed, "vdpbf16ps 8(%2,%%r9,4)%{1to16%}, %%zmm30, %%zmm21%{%%k3%}%{z%}")
FORM(dot_half, "vdpbf16ps %%ymm9, %%ymm30, %%ymm21")
FORM(rounded, "vcvtneps2bf16 %%zmm30, %%ymm21")
FORM(rounded_memory, "vcvtneps2bf16 64(%2), %%ymm21%{%%k3%}")
FORM(rounded_zeroed, "vcvtneps2bf16 %%zmm30, %%ymm21%{%%k3%}%{z%}")
FORM(rounded_pairs, "vcvtne2ps2bf16 %%zmm9, %%zmm30, %%zmm21")
FORM(rounded_pairs_memory, "vcvtne2ps2bf16 (%2), %%zmm30, %%zmm21%{%%k3%}")
