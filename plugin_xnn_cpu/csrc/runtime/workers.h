/* Workers that spin-wait while there may be more to do.
 *
 * pthreadpool's own threads sleep some ten microseconds after a loop has ended, and so does the
 * thread that waits for them; waking one costs as much again, and far more where processors are
 * virtual. These wait on a counter for as long as a run goes on, and for a while after it. They
 * compute the parts of our kernels, and what pthreadpool schedules for XNNPACK. The threads
 * themselves are the caller's: each calls np_worker_main. Read by cffi too. */
#pragma once

#include "xnnpack/xnnpack.h"

typedef struct np_workers np_workers;

/* `count` workers beside the thread that calls; spinning for `linger` nanoseconds after a run. NULL
 * without memory. */
np_workers *np_workers_new(size_t count, uint64_t linger);

/* Create the pool that XNNPACK's operators are divided by; NULL without memory. */
pthreadpool_t np_workers_begin_pool(np_workers *workers);

/* A thread's work; it returns after np_workers_stop. */
void np_worker_main(np_workers *workers);

/* Let all threads return. The pool must have been destroyed. */
void np_workers_stop(np_workers *workers);

/* Free what np_workers_new gave; all threads must have returned. */
void np_workers_free(np_workers *workers);
