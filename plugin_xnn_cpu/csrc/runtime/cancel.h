/* Whether the run that the calling thread is in is to end early, as after Ctrl-C. */
#pragma once

#include <stdint.h>

/* A run that may be stopped: `ask` says so by anything but 0; NULL for one that goes on to its
 * end. */
typedef struct {
  int (*ask)(void *context);
  void *context;
  uint64_t due; /* when it is asked next */
  int stopped;
} np_cancellation;

/* Begin a run of this thread; returns the one that it is part of, for np_cancel_end. */
np_cancellation *np_cancel_begin(np_cancellation *stop);
void np_cancel_end(np_cancellation *outer);

/* Whether the thread's run has been stopped. */
int np_cancelled(void);

/* Whether it is time to ask: a look at a coarse clock, which takes a few nanoseconds. */
int np_cancel_due(void);

/* Ask; whether the run is stopped now. Python may run meanwhile: floating point must be as
 * usual. */
int np_cancel_poll(void);

/* Whether the run is stopped; it is asked where it is time to. */
static inline int np_cancel_check(void) {
  return np_cancelled() || (np_cancel_due() && np_cancel_poll());
}
