#define _GNU_SOURCE
#include "xnnpack/allocator.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* As XNNPACK declares it. */
struct xnn_allocator {
  void *context;
  void *(*allocate)(void *context, size_t size);
  void *(*reallocate)(void *context, void *block, size_t size);
  void (*deallocate)(void *context, void *block);
  void *(*aligned_allocate)(void *context, size_t alignment, size_t size);
  void (*aligned_deallocate)(void *context, void *block);
};

/* An operator has one to three kilobytes, in up to three blocks. */
#define BLOCK 8192
#define BLOCKS 16
#define ALIGNMENT 128

static atomic_bool lacked, used;

int np_xnn_lacked_memory(void) { return atomic_exchange(&lacked, 0); }

int np_xnn_has_reserve(void) { return used; }

#ifndef NP_PORTABLE

#include "xnnpack/dynamic.h"

static _Alignas(ALIGNMENT) unsigned char reserve[BLOCKS][BLOCK];
static atomic_bool taken[BLOCKS];

static void *take_reserve(size_t alignment, size_t size) {
  if (size > BLOCK || alignment > ALIGNMENT) return NULL;
  for (int i = 0; i < BLOCKS; i++) {
    if (atomic_exchange(&taken[i], 1)) continue;
    lacked = 1;
    return reserve[i];
  }
  return NULL;
}

static int is_reserve(const void *block) {
  const uintptr_t start = (uintptr_t)reserve, at = (uintptr_t)block;
  return at >= start && at < start + sizeof reserve;
}

static void *allocate(void *context, size_t size) {
  void *block = malloc(size);
  return block != NULL ? block : take_reserve(1, size);
}

static void release(void *context, void *block) {
  if (is_reserve(block))
    taken[((uintptr_t)block - (uintptr_t)reserve) / BLOCK] = 0;
  else
    free(block);
}

static void *reallocate(void *context, void *block, size_t size) {
  if (!is_reserve(block)) return realloc(block, size);
  void *grown = malloc(size);
  if (grown == NULL) return NULL;
  memcpy(grown, block, size < BLOCK ? size : BLOCK);
  release(context, block);
  return grown;
}

static void *aligned_allocate(void *context, size_t alignment, size_t size) {
  const size_t rest = size % alignment;
  const size_t whole = rest ? size + (alignment - rest) : size;
  used = 1;
  void *block = whole < size ? NULL : aligned_alloc(alignment, whole);
  return block != NULL ? block : take_reserve(alignment, size);
}

/* XNNPACK keeps the first allocator that it gets. A constructor of its library initializes it with
 * none, before any code of this one runs: the dynamic linker binds that call to this function, which
 * stands before XNNPACK's in the scope of both. */
__attribute__((visibility("default"))) enum xnn_status xnn_initialize(
    const struct xnn_allocator *allocator) {
  static const struct xnn_allocator with_reserve = {
      .allocate = allocate,
      .reallocate = reallocate,
      .deallocate = release,
      .aligned_allocate = aligned_allocate,
      .aligned_deallocate = release,
  };
  enum xnn_status (*theirs)(const struct xnn_allocator *);
  *(void **)&theirs = dlsym(RTLD_NEXT, "xnn_initialize");
  if (theirs == NULL) return xnn_status_uninitialized;
  return theirs(allocator != NULL ? allocator : &with_reserve);
}

#endif
