#define _POSIX_C_SOURCE 199309L /* clock_gettime */

#include "runtime/tape.h"

#include <string.h>
#include <time.h>

#include "runtime/cancel.h"
#include "runtime/dispatch.h"
#include "runtime/kernel.h"
#include "runtime/loop.h"

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int run_steps(np_step *steps, size_t count, void *const *buffers, void *workspace,
                     np_workers *workers, uint64_t *nanoseconds, size_t *failed) {
  uint64_t start = nanoseconds == NULL ? 0 : now();
  for (size_t i = 0; i < count; i++) {
    int status = np_run_step(&steps[i], buffers, workspace, workers);
    if (status == 0 && np_cancel_check()) status = NP_STATUS_CANCELLED;
    if (status != 0) {
      *failed = i;
      return status;
    }
    if (nanoseconds != NULL) {
      uint64_t end = now();
      nanoseconds[i] = end - start;
      start = end;
    }
  }
  return 0;
}

#define PAGE 4096

int np_overread_stays_in_page(const void *start, size_t size) {
  return ((uintptr_t)start + size - 1) % PAGE + XNN_EXTRA_BYTES < PAGE;
}

int np_run(np_step *steps, size_t count, void *const *buffers, void *workspace,
           np_workers *workers, uint64_t *nanoseconds, size_t *failed, int (*ask)(void *context),
           void *context) {
  np_cancellation stop = {.ask = ask, .context = context};
  np_cancellation *outer = np_cancel_begin(&stop);
  np_workers_begin(workers);
  const int status = run_steps(steps, count, buffers, workspace, workers, nanoseconds, failed);
  np_workers_end(workers);
  np_cancel_end(outer);
  return status;
}

int np_tape_call_run(void *call) {
  const np_tape_call *tape = call;
  size_t failed;
  return np_run(tape->steps, tape->count, tape->buffers, tape->workspace, tape->workers, NULL,
                &failed, NULL, NULL);
}

static void move_buffers(np_loop *loop, void **buffers, size_t i) {
  for (size_t k = 0; k < loop->place_count; k++) {
    np_place *place = &loop->places[k];
    char *turn = place->turns[(i + place->phase) % 2];
    place->now =
        i == 0 && place->first != NULL ? place->first : turn + (ptrdiff_t)i * place->stride;
  }
  for (size_t k = 0; k < loop->buffer_count; k++) {
    const np_place_buffer *bound = &loop->buffers[k];
    buffers[bound->buffer] = loop->places[bound->place].now + bound->offset;
  }
}

int np_run_loop(np_step *steps, size_t count, void **buffers, void *workspace, np_workers *workers,
                size_t *failed, int (*ask)(void *context), void *context, np_loop *loop) {
  np_cancellation stop = {.ask = ask, .context = context};
  np_cancellation *outer = np_cancel_begin(&stop);
  np_workers_begin(workers);
  int status = 0;
  for (size_t i = loop->start; i < loop->end && status == 0; i++) {
    move_buffers(loop, buffers, i);
    *loop->counter = (int64_t)i;
    loop->done = i;
    status = run_steps(steps, count, buffers, workspace, workers, NULL, failed);
    /* A body without steps asks too. */
    if (status == 0 && count == 0 && np_cancel_check()) status = NP_STATUS_CANCELLED;
    if (status != 0) break;
    for (size_t k = 0; k < loop->copy_count; k++) {
      const np_place_copy *copy = &loop->copies[k];
      memcpy(loop->places[copy->to].now, loop->places[copy->from].now + copy->offset, copy->size);
    }
    loop->done = i + 1;
    if (loop->condition != NULL && *loop->condition == 0) break;
  }
  np_workers_end(workers);
  np_cancel_end(outer);
  return status;
}
