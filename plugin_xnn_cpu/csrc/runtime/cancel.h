/* Whether the run that the calling thread is in is to end early, as after Ctrl-C. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

/* A run that may be stopped: `ask` says so by anything but 0; NULL for one that goes on to its
 * end. */
typedef struct {
  int (*ask)(void *context);
  void *context;
  uint64_t due; /* when it is asked next */
  atomic_int stopped;
  uint64_t modes; /* of floating point, as they were when it began */
} np_cancellation;

/* Begin a run of this thread; returns the one that it is part of, for np_cancel_end. */
np_cancellation *np_cancel_begin(np_cancellation *stop);
void np_cancel_end(np_cancellation *outer);

/* The run that this thread is part of, or NULL. */
np_cancellation *np_cancel_run(void);

/* Take part in a run of another thread, which waits for this one: it is seen that the run is
 * stopped, and not asked. NULL takes part in none. */
void np_cancel_join(np_cancellation *run);

/* Whether a run is stopped, seen from any thread that computes for it; the one that it is of asks
 * where it is time to. */
int np_cancel_stops(const np_cancellation *run);

/* Whether the thread's run has been stopped. */
int np_cancelled(void);

/* Whether it is time to ask: a look at a coarse clock, which takes a few nanoseconds. */
int np_cancel_due(void);

/* Ask; whether the run is stopped now. Python may run meanwhile, with floating point as it was
 * when the run began. */
int np_cancel_poll(void);

/* Whether the run is stopped; it is asked where it is time to. What takes long asks about once a
 * millisecond, and leaves out the rest where the answer is yes. */
static inline int np_cancel_check(void) {
  return np_cancelled() || (np_cancel_due() && np_cancel_poll());
}
