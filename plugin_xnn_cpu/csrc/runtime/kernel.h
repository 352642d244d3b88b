/* What the kernels share. */
#ifndef NARROWPASS_RUNTIME_KERNEL_H
#define NARROWPASS_RUNTIME_KERNEL_H

#include "runtime/calls.h"
#include "runtime/isa.h"
#include "runtime/team.h"

#define NP_DISABLE_DENORMALS 0x00000001

/* Functions for certain instruction sets may be written, and chosen among when they are called. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NP_CHOOSES_CPU
#endif

/* Into each clone of the caller. */
#define NP_INLINE static inline __attribute__((always_inline))

/* Function multiversioning: begins the function `name`, whose body follows, compiled for several
 * levels of instruction sets, and called by the one in use. `params` are its parameters in
 * brackets, `args` their names. */
#ifdef NP_CHOOSES_CPU
#define NP_MULTIVERSIONED(type, name, params, args)                            \
  NP_INLINE type name##_body params;                                           \
  __attribute__((target("arch=x86-64-v4"))) static type name##_avx512 params { \
    return name##_body args;                                                   \
  }                                                                            \
  __attribute__((target("arch=x86-64-v3"))) static type name##_avx2 params {   \
    return name##_body args;                                                   \
  }                                                                            \
  __attribute__((noinline)) static type name##_plain params {                  \
    return name##_body args;                                                   \
  }                                                                            \
  static type name params {                                                    \
    if (np_isa() >= NP_TARGET_AVX512) return name##_avx512 args;               \
    return np_isa() == NP_TARGET_AVX2 ? name##_avx2 args : name##_plain args;  \
  }                                                                            \
  NP_INLINE type name##_body params
#else
#define NP_MULTIVERSIONED(type, name, params, args) static type name params
#endif

/* What a template defines for each instruction set (build_tools/instruction_sets.py): its
 * declaration, and the fastest for this processor that the target, NP_TARGET_*, allows. */
#ifdef NP_CHOOSES_CPU
#define NP_DECLARE_FOR_ISAS(type, name) extern type name##_plain, name##_avx2, name##_avx512
#define NP_FOR_ISA(name, target)                              \
  (np_isa_for(target) >= NP_TARGET_AVX512  ? name##_avx512    \
   : np_isa_for(target) == NP_TARGET_AVX2 ? name##_avx2       \
                                          : name##_plain)
#else
#define NP_DECLARE_FOR_ISAS(type, name) extern type name##_plain
#define NP_FOR_ISA(name, target) ((void)(target), name##_plain)
#endif

/* Below this many bytes, waking the workers costs more than it saves. */
#define NP_PARALLEL_MIN_BYTES 65536

/* Mark the begin and the end of a run; NULL for no workers. */
void np_workers_begin(np_workers *workers);
void np_workers_end(np_workers *workers);

/* The pool of XNNPACK's operators; NULL for no workers. */
pthreadpool_t np_workers_pool(np_workers *workers);

/* Threads that compute, with the one that calls: 1 for no workers. */
size_t np_workers_threads(const np_workers *workers);

/* Compute parts 0 to `count` - 1, by the caller alone where `workers` is NULL or has another job;
 * `flags` are 0 or NP_DISABLE_DENORMALS. */
void np_parallel_for(np_workers *workers, np_part *part, void *context, size_t count,
                     int32_t flags);

/* Elements from `start` on. */
typedef void np_tile(void *context, size_t start, size_t count);

/* Compute `count` elements in tiles of `size`, of which the last may have fewer. */
void np_parallel_for_tiles(np_workers *workers, np_tile *tile, void *context, size_t count,
                           size_t size, int32_t flags);

/* The parameters and operands of a kernel, for its parts. */
typedef struct {
  const void *params;
  const void *const *inputs;
  void *out;
  atomic_int outside; /* whether an index is out of range */
} np_job;

/* The same for a kernel's tiles or parts, whose context is `job`: by the caller alone where `bytes`
 * are fewer than NP_PARALLEL_MIN_BYTES. They return 0, or NP_STATUS_INDEX. */
int np_run_tiles(np_job job, np_tile *tile, size_t count, size_t size, size_t bytes, int32_t flags,
                 np_workers *workers);
int np_run_parts(np_job job, np_part *part, size_t count, size_t bytes, np_workers *workers);

/* out[i] = table[in[i]], of bytes; the table has 256. */
void np_lookup_bytes(const uint8_t *table, const uint8_t *in, uint8_t *out, size_t count);

#endif
