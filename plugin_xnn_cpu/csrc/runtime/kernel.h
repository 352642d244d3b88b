/* What the kernels share. */
#pragma once

#include <string.h>

#include "runtime/calls.h"
#include "runtime/cancel.h"
#include "runtime/isa.h"
#include "runtime/levels.h"
#include "runtime/team.h"

#define NP_DISABLE_DENORMALS 0x00000001

/* Into each clone of the caller. */
#define NP_INLINE static inline __attribute__((always_inline))

/* Function multiversioning: begins the function `name`, whose body follows, compiled for several
 * levels of instruction sets, and called by the one in use. `params` are its parameters in
 * brackets, `args` their names. */
#ifdef NP_CHOOSES_CPU
#define NP_MULTIVERSIONED(type, name, params, args)           \
  NP_INLINE type name##_body params;                          \
  NP_CLONE_AVX512(type, name, params, args)                   \
  NP_CLONE_AVX2(type, name, params, args)                     \
  __attribute__((noinline)) static type name##_plain params { \
    return name##_body args;                                  \
  }                                                           \
  static type name params {                                   \
    NP_CALL_AVX512(name, args)                                \
    NP_CALL_AVX2(name, args)                                  \
    return name##_plain args;                                 \
  }                                                           \
  NP_INLINE type name##_body params
#else
#define NP_MULTIVERSIONED(type, name, params, args) static type name params
#endif

#if NP_HAS_AVX512
#define NP_CLONE_AVX512(type, name, params, args)                              \
  __attribute__((target("arch=x86-64-v4"))) static type name##_avx512 params { \
    return name##_body args;                                                   \
  }
#define NP_CALL_AVX512(name, args) \
  if (np_isa() >= NP_TARGET_AVX512) return name##_avx512 args;
#else
#define NP_CLONE_AVX512(type, name, params, args)
#define NP_CALL_AVX512(name, args)
#endif

#if NP_HAS_AVX2
#define NP_CLONE_AVX2(type, name, params, args)                              \
  __attribute__((target("arch=x86-64-v3"))) static type name##_avx2 params { \
    return name##_body args;                                                 \
  }
#define NP_CALL_AVX2(name, args) \
  if (np_isa() == NP_TARGET_AVX2) return name##_avx2 args;
#else
#define NP_CLONE_AVX2(type, name, params, args)
#define NP_CALL_AVX2(name, args)
#endif

/* The same of a tile's function: it computes `count` elements of `job` from `start` on. */
#define NP_TILE(name) \
  NP_MULTIVERSIONED(void, name, (np_job * job, size_t start, size_t count), (job, start, count))

/* What a template defines for each instruction set (build_tools/instruction_sets.py): its
 * declaration, and the fastest for this processor that the target, NP_TARGET_*, allows. A level
 * that the build lacks is not referred to. */
#if NP_HAS_AVX512
#define NP_OR_AVX512(name, target, other) \
  (np_isa_for(target) >= NP_TARGET_AVX512 ? name##_avx512 : (other))
#else
#define NP_OR_AVX512(name, target, other) ((void)(target), (other))
#endif

#if NP_HAS_AVX2
#define NP_OR_AVX2(name, target, other) \
  (np_isa_for(target) == NP_TARGET_AVX2 ? name##_avx2 : (other))
#else
#define NP_OR_AVX2(name, target, other) ((void)(target), (other))
#endif

#define NP_DECLARE_FOR_ISAS(type, name) extern type name##_plain, name##_avx2, name##_avx512
#define NP_FOR_ISA(name, target) \
  NP_OR_AVX512(name, target, NP_OR_AVX2(name, target, name##_plain))

/* The same of a template that has code for SSE4 too; PLAIN's serves it otherwise. */
#ifdef __x86_64__
#define NP_DECLARE_FROM_SSE4(type, name) \
  NP_DECLARE_FOR_ISAS(type, name);       \
  extern type name##_sse4
#if NP_HAS_PLAIN
#define NP_FROM_SSE4(name, target) \
  (np_isa_for(target) == NP_TARGET_SSE4 ? name##_sse4 : NP_FOR_ISA(name, target))
#else
#define NP_FROM_SSE4(name, target) \
  NP_OR_AVX512(name, target, NP_OR_AVX2(name, target, name##_sse4))
#endif
#else
#define NP_DECLARE_FROM_SSE4 NP_DECLARE_FOR_ISAS
#define NP_FROM_SSE4 NP_FOR_ISA
#endif

/* Below this many bytes, waking the workers costs more than it saves. */
#ifndef NP_PARALLEL_MIN_BYTES
#define NP_PARALLEL_MIN_BYTES 65536
#endif

/* The same in multiplications, of depthwise convolutions, other kernels of float32, and int8 and
 * bfloat16. */
#define NP_SMALL_DEPTHWISE 1e5
#define NP_SMALL_FLOAT32 2e5
#define NP_SMALL_NARROW 4e5

/* Multiplications by a column of a panel of weights above which it is asked before each panel
 * whether the run is stopped. */
#define NP_SLOW 4096

NP_INLINE size_t np_min(size_t a, size_t b) { return a < b ? a : b; }
NP_INLINE size_t np_max(size_t a, size_t b) { return a > b ? a : b; }
NP_INLINE size_t np_ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

/* Some of `all` elements: from `first` on, up to `end`. */
typedef struct {
  size_t first;
  size_t count;
  size_t end;
} np_range;

/* Those of part `index`, where each part has `size` elements, and the last one what is left. */
NP_INLINE np_range np_range_of(size_t index, size_t size, size_t all) {
  const size_t first = index * size, count = np_min(size, all - first);
  return (np_range){first, count, first + count};
}

/* Elements of a loop between two looks at whether the run is stopped; what a copy has, in bytes, is
 * enough for non-temporal stores. */
#define NP_STRETCH ((size_t)1 << 18)
#define NP_COPY_STRETCH ((size_t)1 << 26)

/* Where a loop over `count` elements, now at `at`, looks next. */
NP_INLINE size_t np_stretch(size_t at, size_t count) {
  return count - at < NP_STRETCH ? count : at + NP_STRETCH;
}

/* memcpy, which ends early where the run is stopped. */
NP_INLINE void np_copy_bytes(void *to, const void *from, size_t bytes) {
  for (; bytes > NP_COPY_STRETCH && !np_cancel_check(); bytes -= NP_COPY_STRETCH) {
    memcpy(to, from, NP_COPY_STRETCH);
    to = (char *)to + NP_COPY_STRETCH;
    from = (const char *)from + NP_COPY_STRETCH;
  }
  memcpy(to, from, np_min(bytes, NP_COPY_STRETCH));
}

NP_INLINE uint32_t np_bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

NP_INLINE float np_float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* Where element `index` of an array of `sizes` lies in each of `count` operands, by their strides;
 * the last dimension changes fastest. */
NP_INLINE void np_offsets(size_t index, size_t rank, const size_t *sizes, const size_t count,
                          const ptrdiff_t *const *strides, ptrdiff_t *offsets) {
  for (size_t i = 0; i < count; i++) offsets[i] = 0;
  for (size_t dim = rank; dim-- > 0;) {
    const ptrdiff_t at = (ptrdiff_t)(index % sizes[dim]);
    index /= sizes[dim];
    for (size_t i = 0; i < count; i++) offsets[i] += at * strides[i][dim];
  }
}

NP_INLINE size_t np_element_count(size_t rank, const size_t *sizes) {
  size_t count = 1;
  for (size_t dim = 0; dim < rank; dim++) count *= sizes[dim];
  return count;
}

/* The statement DO(type), with the unsigned integer type of an element of 1, 2, 4 or 8 bytes. */
#define NP_SWITCH_SIZE(size, DO)                    \
  switch (size) {                                   \
    case 1: DO(uint8_t) break;                      \
    case 2: DO(uint16_t) break;                     \
    case 4: DO(uint32_t) break;                     \
    default: DO(uint64_t) break;                    \
  }

/* DO(name, type) for each type of integers. */
#define NP_EACH_INTEGER(DO)                                                               \
  DO(u8, uint8_t)                                                                         \
  DO(i8, int8_t)                                                                          \
  DO(u16, uint16_t) DO(i16, int16_t) DO(u32, uint32_t) DO(i32, int32_t) DO(u64, uint64_t) \
      DO(i64, int64_t)

/* What begins with `name` by NP_TYPE_*; bool is that of uint8. */
#define NP_BY_TYPE(name)                                             \
  {name##u8,  name##u8,  name##i8,  name##u16, name##i16, name##u32, \
   name##i32, name##u64, name##i64, name##f32, name##f64}

/* Mark the begin and the end of a run; NULL for no workers. */
void np_workers_begin(np_workers *workers);
void np_workers_end(np_workers *workers);

/* The pool of XNNPACK's operators; NULL for no workers. */
pthreadpool_t np_workers_pool(np_workers *workers);

/* Threads that compute, with the one that calls: 1 for no workers. */
size_t np_workers_threads(const np_workers *workers);

/* The workers, or NULL where a job of so many bytes is not worth waking them. */
NP_INLINE np_workers *np_workers_for(size_t bytes, np_workers *workers) {
  return bytes < NP_PARALLEL_MIN_BYTES ? NULL : workers;
}

/* Compute parts 0 to `count` - 1, by the caller alone where `workers` is NULL or has another job;
 * `flags` are 0 or NP_DISABLE_DENORMALS. */
void np_parallel_for(np_workers *workers, np_part *part, void *context, size_t count,
                     int32_t flags);

/* Elements of a job from `start` on. */
typedef void np_tile(np_job *job, size_t start, size_t count);

/* A part of a job, computed by a thread. */
typedef void np_job_part(np_job *job, size_t thread, size_t index);

/* Compute `count` elements in tiles of `size`, of which the last may have fewer; by the caller
 * alone where `bytes` are not worth more. Returns 0, or NP_STATUS_INDEX. */
int np_for_tiles(np_job *job, np_tile *tile, size_t count, size_t size, size_t bytes,
                 int32_t flags);

/* Compute parts 0 to `count` - 1; by the caller alone where they are `small`. Returns the same. */
int np_for_parts(np_job *job, np_job_part *part, size_t count, int small, int32_t flags);

NP_INLINE void np_index_outside(np_job *job) {
  atomic_store_explicit(&job->outside, 1, memory_order_relaxed);
}

/* An index of 4 or 8 bytes, of which negative ones count from the end of an axis; `size` or more
 * where it is outside. Others may write to a feed meanwhile: the index is read once, and what was
 * read is checked. */
NP_INLINE size_t np_read_index(const void *indices, size_t bytes, size_t i, size_t size) {
  const int64_t read = bytes == 8 ? ((const volatile int64_t *)indices)[i]
                                  : (int64_t)((const volatile int32_t *)indices)[i];
  return (size_t)(read < 0 ? read + (int64_t)size : read);
}
