#define _GNU_SOURCE /* CLOCK_MONOTONIC_COARSE */

#include "runtime/cancel.h"

#include <stddef.h>
#include <time.h>

#include "runtime/modes.h"

#define PERIOD 20000000 /* nanoseconds between two questions */

/* Not allocated at their first use in a thread, which would end the process without memory. */
#define OF_THREAD static _Thread_local __attribute__((tls_model("initial-exec")))

OF_THREAD np_cancellation *current;
OF_THREAD int member; /* of a run of another thread, which alone asks */

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

np_cancellation *np_cancel_begin(np_cancellation *stop) {
  np_cancellation *outer = current;
  atomic_store_explicit(&stop->stopped, 0, memory_order_relaxed);
  stop->due = stop->ask == NULL ? 0 : now() + PERIOD;
  stop->modes = np_modes();
  current = stop;
  return outer;
}

void np_cancel_end(np_cancellation *outer) { current = outer; }

np_cancellation *np_cancel_run(void) { return current; }

void np_cancel_join(np_cancellation *run) {
  current = run;
  member = run != NULL;
}

static int is_stopped(const np_cancellation *stop) {
  return atomic_load_explicit(&stop->stopped, memory_order_relaxed);
}

int np_cancelled(void) { return current != NULL && is_stopped(current); }

int np_cancel_due(void) {
  const np_cancellation *stop = current;
  if (stop == NULL || member || stop->ask == NULL) return 0;
  return !is_stopped(stop) && now() >= stop->due;
}

int np_cancel_stops(const np_cancellation *run) {
  if (is_stopped(run)) return 1;
  return run == current && np_cancel_due() && np_cancel_poll();
}

int np_cancel_poll(void) {
  np_cancellation *stop = current;
  /* What runs meanwhile may run a tape of its own, which begins and ends by then. */
  const uint64_t modes = np_modes();
  np_set_modes(stop->modes);
  const int stopped = stop->ask(stop->context) != 0;
  np_set_modes(modes);
  atomic_store_explicit(&stop->stopped, stopped, memory_order_relaxed);
  stop->due = now() + PERIOD;
  return stopped;
}
