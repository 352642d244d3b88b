#define _GNU_SOURCE /* CLOCK_MONOTONIC_COARSE */

#include "runtime/cancel.h"

#include <stddef.h>
#include <time.h>

#define PERIOD 20000000 /* nanoseconds between two questions */

/* Not allocated at its first use in a thread, which would end the process without memory. */
static _Thread_local np_cancellation *current __attribute__((tls_model("initial-exec")));

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

np_cancellation *np_cancel_begin(np_cancellation *stop) {
  np_cancellation *outer = current;
  stop->stopped = 0;
  stop->due = stop->ask == NULL ? 0 : now() + PERIOD;
  current = stop;
  return outer;
}

void np_cancel_end(np_cancellation *outer) { current = outer; }

int np_cancelled(void) { return current != NULL && current->stopped; }

int np_cancel_due(void) {
  const np_cancellation *stop = current;
  return stop != NULL && stop->ask != NULL && !stop->stopped && now() >= stop->due;
}

int np_cancel_poll(void) {
  np_cancellation *stop = current;
  /* What runs meanwhile may run a tape of its own, which begins and ends by then. */
  stop->stopped = stop->ask(stop->context) != 0;
  stop->due = now() + PERIOD;
  return stop->stopped;
}
