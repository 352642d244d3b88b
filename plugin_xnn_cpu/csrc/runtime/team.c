#include "runtime/team.h"

#include <sched.h>

#include "runtime/cancel.h"
#include "runtime/modes.h"

/* The gate: members within are counted in its low bits, then a bit for an open job, then the job's
 * number. */
#define OPEN ((uint64_t)1 << 16)
#define WITHIN (OPEN - 1)
#define NEXT (OPEN << 1)

#define LOOKS 256 /* at the gate, before others may have the processor */

void np_team_begin(np_team *team, size_t size, np_share *shares) {
  atomic_init(&team->gate, 0);
  atomic_flag_clear(&team->taken);
  team->size = size;
  team->shares = shares;
}

/* Leave nothing of a job for anybody to begin. */
static void drop(np_team *team) {
  for (size_t n = 0; n < team->size; n++) {
    atomic_store_explicit(&team->shares[n].next, team->shares[n].end, memory_order_relaxed);
  }
}

static void compute(np_team *team, size_t thread) {
  np_part *part = team->part;
  void *context = team->context;
  const uint64_t before = np_disable_denormals(team->disable_denormals);
  for (size_t n = 0; n < team->size; n++) {
    np_share *share = &team->shares[(thread + n) % team->size];
    /* Looked at first, so that a share that is used up stays where it is read. */
    while (atomic_load_explicit(&share->next, memory_order_relaxed) < share->end) {
      const size_t index = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
      if (index >= share->end) break;
      part(context, thread, index);
      if (thread == 0 && np_cancel_check()) drop(team);
    }
  }
  np_set_modes(before);
}

int np_team_open(np_team *team, np_part *part, void *context, size_t count, int disable) {
  if (atomic_flag_test_and_set_explicit(&team->taken, memory_order_acquire)) return 0;
  team->part = part;
  team->context = context;
  team->disable_denormals = disable;
  team->run = np_cancel_run();
  for (size_t n = 0; n < team->size; n++) {
    const size_t end = (n + 1) * (count / team->size) +
                       (n + 1 < count % team->size ? n + 1 : count % team->size);
    const size_t before = n * (count / team->size) +
                          (n < count % team->size ? n : count % team->size);
    atomic_store_explicit(&team->shares[n].next, before, memory_order_relaxed);
    team->shares[n].end = end;
  }
  /* The last job is closed and nobody is within: nothing of the gate but its number is left. */
  const uint64_t gate = atomic_load_explicit(&team->gate, memory_order_relaxed);
  atomic_store(&team->gate, gate + NEXT + OPEN);
  return 1;
}

void np_team_close(np_team *team) {
  compute(team, 0);
  atomic_fetch_and_explicit(&team->gate, ~OPEN, memory_order_relaxed);
  for (int look = 1; atomic_load_explicit(&team->gate, memory_order_acquire) & WITHIN; look++) {
    if (look % LOOKS == 0) {
      sched_yield(); /* whom this waits for may want this processor */
      np_cancel_check();
    } else {
      np_spin_pause();
    }
  }
  atomic_flag_clear_explicit(&team->taken, memory_order_release);
}

int np_team_calls(const np_team *team, uint64_t seen) {
  const uint64_t gate = atomic_load(&team->gate);
  return (gate & OPEN) && gate / NEXT != seen;
}

void np_team_join(np_team *team, size_t thread, uint64_t *seen) {
  uint64_t gate = atomic_load_explicit(&team->gate, memory_order_relaxed);
  do {
    if (!(gate & OPEN) || gate / NEXT == *seen) return;
  } while (!atomic_compare_exchange_weak_explicit(&team->gate, &gate, gate + 1,
                                                  memory_order_acquire, memory_order_relaxed));
  *seen = gate / NEXT;
  np_cancel_join(team->run);
  compute(team, thread);
  np_cancel_join(NULL);
  atomic_fetch_sub_explicit(&team->gate, 1, memory_order_release);
}

void np_compute_alone(np_part *part, void *context, size_t count, int disable) {
  const uint64_t before = np_disable_denormals(disable);
  for (size_t index = 0; index < count; index++) {
    part(context, 0, index);
    if (np_cancel_check()) break;
  }
  np_set_modes(before);
}
