/* Ctrl-C between the tiles of XNNPACK's operators.
 *
 * XNNPACK divides what it computes into tiles, and hands them to functions of pthreadpool, with a
 * pool or without. The dynamic linker finds these here first: a tile is left out where the run is
 * stopped, and all else is done by the library's own functions. */
#ifndef NP_PORTABLE
#define _GNU_SOURCE /* RTLD_NOLOAD */

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "runtime/cancel.h"
#include "xnnpack/dynamic.h"
#include "xnnpack/xnnpack.h"

#define LIBRARY "libnarrowpass_xnn_threadpool.so" /* see build_tools/bundle.py */

typedef void (*function)(void);

/* What XNNPACK wants to have computed. */
typedef struct {
  function task;
  void *context;
  const np_cancellation *run;
} guarded;

static function find(_Atomic(function) *found, const char *name) {
  function known = atomic_load_explicit(found, memory_order_relaxed);
  if (known != NULL) return known;
  void *library = dlopen(LIBRARY, RTLD_LAZY | RTLD_NOLOAD);
  void *address = library == NULL ? NULL : dlsym(library, name);
  if (address == NULL) abort(); /* the linker has found it when the extension was loaded */
  known = (function)address;
  atomic_store_explicit(found, known, memory_order_relaxed);
  return known;
}

#define SIZES1 size_t a
#define SIZES2 SIZES1, size_t b
#define SIZES3 SIZES2, size_t c
#define SIZES4 SIZES3, size_t d
#define SIZES5 SIZES4, size_t e
#define SIZES6 SIZES5, size_t f
#define SIZES7 SIZES6, size_t g
#define SIZES8 SIZES7, size_t h
#define NAMES1 a
#define NAMES2 NAMES1, b
#define NAMES3 NAMES2, c
#define NAMES4 NAMES3, d
#define NAMES5 NAMES4, e
#define NAMES6 NAMES5, f
#define NAMES7 NAMES6, g
#define NAMES8 NAMES7, h

/* pthreadpool_parallelize_NAME: its tasks take TILE numbers, and itself RANGE. */
#define GUARD(NAME, TILE, RANGE)                                                           \
  typedef void task_##NAME(void *context, SIZES##TILE);                                    \
  typedef void parallelize_##NAME(pthreadpool_t pool, task_##NAME *task, void *context,    \
                                  SIZES##RANGE, uint32_t flags);                           \
  static void guard_##NAME(void *context, SIZES##TILE) {                                   \
    const guarded *all = context;                                                          \
    if (!np_cancel_stops(all->run)) ((task_##NAME *)all->task)(all->context, NAMES##TILE); \
  }                                                                                        \
  __attribute__((visibility("default"))) parallelize_##NAME pthreadpool_parallelize_##NAME; \
  void pthreadpool_parallelize_##NAME(pthreadpool_t pool, task_##NAME *task, void *context, \
                                      SIZES##RANGE, uint32_t flags) {                      \
    static _Atomic(function) found;                                                        \
    parallelize_##NAME *const run =                                                        \
        (parallelize_##NAME *)find(&found, "pthreadpool_parallelize_" #NAME);              \
    guarded all = {(function)task, context, np_cancel_run()};                              \
    if (all.run == NULL) {                                                                 \
      run(pool, task, context, NAMES##RANGE, flags);                                       \
    } else {                                                                               \
      run(pool, guard_##NAME, &all, NAMES##RANGE, flags);                                  \
    }                                                                                      \
  }

GUARD(1d, 1, 1)
GUARD(1d_with_thread, 2, 1)
GUARD(1d_tile_1d, 2, 2)
GUARD(1d_tile_1d_dynamic, 2, 2)
GUARD(1d_tile_1d_dynamic_with_thread, 3, 2)
GUARD(2d, 2, 2)
GUARD(2d_with_thread, 3, 2)
GUARD(2d_tile_1d, 3, 3)
GUARD(2d_tile_1d_dynamic, 3, 3)
GUARD(2d_tile_1d_dynamic_with_thread, 4, 3)
GUARD(2d_tile_2d, 4, 4)
GUARD(2d_tile_2d_dynamic, 4, 4)
GUARD(2d_tile_2d_dynamic_with_thread, 5, 4)
GUARD(3d, 3, 3)
GUARD(3d_tile_1d, 4, 4)
GUARD(3d_tile_1d_dynamic, 4, 4)
GUARD(3d_tile_1d_with_thread, 5, 4)
GUARD(3d_tile_1d_dynamic_with_thread, 5, 4)
GUARD(3d_tile_2d, 5, 5)
GUARD(3d_tile_2d_dynamic, 5, 5)
GUARD(3d_tile_2d_dynamic_with_thread, 6, 5)
GUARD(4d, 4, 4)
GUARD(4d_tile_2d, 6, 6)
GUARD(4d_tile_2d_dynamic, 6, 6)
GUARD(5d, 5, 5)
GUARD(5d_tile_2d, 7, 7)
GUARD(6d_tile_2d, 8, 8)
#else
typedef int np_no_tiles; /* a file that has something in it */
#endif
