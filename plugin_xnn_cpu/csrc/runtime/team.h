/* One job at a time, whose parts the threads of a team compute.
 *
 * A member that is asleep misses the job: nobody waits for who has not begun. Each
 * member starts with parts of its own that lie side by side, then takes those of others. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/cancel.h"

/* A part of a job, computed by a thread: 0 is the one that called, others are below the size. */
typedef void np_part(void *context, size_t thread, size_t index);

/* The parts of one member; each of these is alone on its cache lines. */
typedef struct {
  _Alignas(128) atomic_size_t next;
  size_t end;
} np_share;

typedef struct {
  _Alignas(128) atomic_uint_fast64_t gate; /* the number of the job, whether it is open, who is in */
  _Alignas(128) size_t size;
  atomic_flag taken;
  np_part *part;
  void *context;
  int disable_denormals;
  np_cancellation *run; /* the caller's, or NULL */
  np_share *shares;
} np_team;

/* Begin with a team of `size` threads, of which `shares` has as many. */
void np_team_begin(np_team *team, size_t size, np_share *shares);

/* Open a job of `count` parts; 0 where the team has one already. */
int np_team_open(np_team *team, np_part *part, void *context, size_t count, int disable_denormals);

/* Compute parts of the open job as its caller until all are done, and close it. Where the caller's
 * run is stopped meanwhile, those that nobody has begun are left out: see runtime/cancel.h. */
void np_team_close(np_team *team);

/* Whether there is a job that this member has not seen: `seen` is 0 at first. */
int np_team_calls(const np_team *team, uint64_t seen);

/* Compute parts of the open job as member `thread`, if it is still open. */
void np_team_join(np_team *team, size_t thread, uint64_t *seen);

/* Compute all parts as thread 0, or as many as there are before the run is stopped. */
void np_compute_alone(np_part *part, void *context, size_t count, int disable_denormals);

/* One look of a spin-wait. */
static inline void np_spin_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}
