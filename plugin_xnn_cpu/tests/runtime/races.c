/* The thread pool, cancellation and the weights cache, used by several threads at once. Compiled by
 * test_races.py under ThreadSanitizer with the files of csrc/runtime alone, which says what one
 * thread writes while another one reads. Prints what was done; exits with 1 where a result is
 * wrong. The argument is how often. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cancel.h"
#include "runtime/kernel.h"
#include "runtime/team.h"
#include "runtime/weights_cache.h"
#include "runtime/workers.h"

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      fprintf(stderr, "line %d: %s is not so\n", __LINE__, #condition); \
      exit(1);                                                          \
    }                                                                   \
  } while (0)

static uint32_t seed; /* of the thread that was started last */

static uint32_t draw(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

static void start(pthread_t *thread, void *(*work)(void *), void *argument) {
  CHECK(pthread_create(thread, NULL, work, argument) == 0);
}

static void join(const pthread_t *threads, size_t count) {
  for (size_t n = 0; n < count; n++) CHECK(pthread_join(threads[n], NULL) == 0);
}

/* In place of pthreadpool: the executor that it would call, as it would. */

static struct pthreadpool_executor executor;
static void *executor_context;

pthreadpool_t pthreadpool_create_v2(struct pthreadpool_executor *given, void *context,
                                    size_t threads) {
  CHECK(threads == (size_t)given->num_threads(context) + 1);
  executor = *given;
  executor_context = context;
  return (pthreadpool_t)&executor;
}

/* The pool */

#define WORKERS 3
#define CALLERS 3
#define PARTS 64
#define JOBS 4000

static void *worker(void *workers) {
  np_worker_main(workers);
  return NULL;
}

typedef struct {
  uint32_t in[PARTS], out[PARTS];
} job;

static void square(void *context, size_t thread, size_t index) {
  job *all = context;
  CHECK(thread <= WORKERS);
  all->out[index] += all->in[index] * all->in[index];
}

typedef struct {
  np_workers *workers;
  uint32_t seed;
} caller;

static int stop(void *context) { return *(int *)context; }

/* Run jobs; each eighth is cancelled before it begins, or may be while it runs. */
static void *call(void *argument) {
  const caller *self = argument;
  uint32_t state = self->seed;
  for (int n = 0; n < JOBS; n++) {
    job all;
    const size_t count = draw(&state) % (PARTS + 1);
    for (size_t i = 0; i < count; i++) all.in[i] = draw(&state), all.out[i] = 0;
    int is_stopped = draw(&state) % 8 == 0;
    np_cancellation cancellation = {stop, &is_stopped, 0, 0};
    np_cancellation *const outer = np_cancel_begin(&cancellation);
    if (is_stopped) cancellation.due = 0;
    np_workers_begin(self->workers);
    np_parallel_for(self->workers, square, &all, count, 0);
    np_workers_end(self->workers);
    np_cancel_end(outer);
    for (size_t i = 0; i < count; i++) {
      const uint32_t right = all.in[i] * all.in[i];
      CHECK(all.out[i] == right || (cancellation.stopped && all.out[i] == 0));
    }
    if (draw(&state) % 16 == 0) sched_yield();
  }
  return NULL;
}

typedef struct {
  atomic_size_t left;
  uint32_t results[WORKERS];
  atomic_size_t next;
} tasks;

static void task(void *context) {
  tasks *all = context;
  const size_t index = atomic_fetch_add_explicit(&all->next, 1, memory_order_relaxed);
  all->results[index] = (uint32_t)index + 1;
  atomic_fetch_sub_explicit(&all->left, 1, memory_order_release);
}

/* Schedule as pthreadpool does: one task for each worker, then wait. */
static void *schedule(void *argument) {
  for (int n = 0; n < JOBS; n++) {
    tasks all = {.left = WORKERS};
    for (int i = 0; i < WORKERS; i++) executor.schedule(executor_context, &all, task);
    while (atomic_load_explicit(&all.left, memory_order_acquire) > 0) sched_yield();
    for (uint32_t i = 0; i < WORKERS; i++) CHECK(all.results[i] == i + 1);
  }
  return NULL;
}

static void use_pool(uint64_t linger) {
  np_workers *workers = np_workers_new(WORKERS, linger);
  CHECK(workers != NULL && np_workers_begin_pool(workers) != NULL);
  CHECK(np_workers_threads(workers) == WORKERS + 1);
  pthread_t threads[WORKERS], callers[CALLERS + 1];
  caller selves[CALLERS];
  for (int n = 0; n < WORKERS; n++) start(&threads[n], worker, workers);
  for (uint32_t n = 0; n < CALLERS; n++) {
    selves[n] = (caller){workers, ++seed};
    start(&callers[n], call, &selves[n]);
  }
  start(&callers[CALLERS], schedule, NULL);
  join(callers, CALLERS + 1);
  np_workers_stop(workers);
  join(threads, WORKERS);
  np_workers_free(workers);
}

/* Pools that begin and end: a worker may not have begun when it is stopped. */
static void begin_and_end(void) {
  for (int n = 0; n < 100; n++) {
    np_workers *workers = np_workers_new(WORKERS, n % 2 ? 0 : 100000);
    CHECK(workers != NULL);
    pthread_t threads[WORKERS];
    for (int i = 0; i < WORKERS; i++) start(&threads[i], worker, workers);
    job all = {{3, 4}, {0}};
    np_parallel_for(workers, square, &all, 2, 0);
    CHECK(all.out[0] == 9 && all.out[1] == 16);
    np_workers_stop(workers);
    join(threads, WORKERS);
    np_workers_free(workers);
  }
}

/* The weights cache */

#define USERS 4
#define SESSIONS 1500
#define NAMES 8
#define SIZE 96
#define LAYOUT 7

static np_cache *cache;
static _Atomic(np_session *) handed_over; /* who ends it is another thread */

static void name_of(uint32_t number, uint8_t *name) {
  memset(name, 0, 32);
  name[0] = (uint8_t)(number % 2); /* two to a bucket */
  name[8] = (uint8_t)number;
}

static void *share(void *argument) {
  uint32_t state = *(const uint32_t *)argument;
  for (int n = 0; n < SESSIONS;) {
    np_session *session = np_session_begin(cache);
    if (session == NULL) {
      sched_yield();
      continue;
    }
    n++;
    const uint8_t *blocks[3];
    uint8_t fills[3];
    for (int i = 0; i < 3; i++) {
      uint8_t name[32];
      const uint32_t number = draw(&state) % NAMES;
      name_of(number, name);
      fills[i] = (uint8_t)(number + 1);
      np_session_next(session, &cache, NULL, name, false);
      blocks[i] = np_session_find_block(session, LAYOUT, SIZE);
      if (blocks[i] == NULL) {
        void *fresh = np_session_new_block(session, SIZE);
        CHECK(fresh != NULL);
        memset(fresh, fills[i], SIZE);
        np_session_keep_block(session, LAYOUT, fresh, SIZE);
        blocks[i] = fresh;
      }
    }
    const int is_kept = draw(&state) % 8 != 0;
    if (is_kept) np_session_commit(session);
    /* Others share the blocks, read them, and end their sessions meanwhile. */
    for (int i = 0; i < 3; i++) {
      for (int byte = 0; byte < SIZE; byte++) CHECK(blocks[i][byte] == fills[i]);
    }
    uint8_t name[32];
    name_of(draw(&state) % NAMES, name);
    CHECK(np_cache_users(cache, name) <= USERS + 1 && np_cache_count(cache) <= NAMES);
    if (is_kept) session = atomic_exchange(&handed_over, session);
    if (session != NULL) np_session_end(session);
  }
  return NULL;
}

static void use_cache(void) {
  cache = np_cache_new();
  CHECK(cache != NULL);
  pthread_t threads[USERS];
  uint32_t seeds[USERS];
  for (uint32_t n = 0; n < USERS; n++) {
    seeds[n] = ++seed;
    start(&threads[n], share, &seeds[n]);
  }
  join(threads, USERS);
  np_session *last = atomic_exchange(&handed_over, NULL);
  if (last != NULL) np_session_end(last);
  CHECK(np_cache_count(cache) == 0);
  np_cache_free(cache);
}

int main(int count, char **arguments) {
  CHECK(count == 2);
  const int times = atoi(arguments[1]);
  for (int n = 0; n < times; n++) {
    use_pool(0); /* workers sleep after each run */
    use_pool(1000000);
    begin_and_end();
    use_cache();
  }
  printf("%d jobs, %d tasks, %d sessions\n", times * 2 * CALLERS * JOBS,
         times * 2 * WORKERS * JOBS, times * USERS * SESSIONS);
  return 0;
}
