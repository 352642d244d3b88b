#define _GNU_SOURCE /* RUSAGE_THREAD */

#include "runtime/workers.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "runtime/cancel.h"
#include "runtime/kernel.h"
#include "runtime/team.h"

#define CACHE_LINES 128

typedef struct {
  void (*task)(void *context);
  void *context;
} np_task;

struct np_workers {
  np_team team;
  size_t count;
  uint64_t linger;
  pthreadpool_t pool;
  np_task *queue;          /* a ring of 2 · count: no thread of the pool is in it twice */
  atomic_size_t waiting;   /* tasks in the queue */
  atomic_size_t sleeping;
  atomic_size_t begun;     /* threads */
  atomic_size_t runs;      /* runs that go on */
  atomic_int stopped;
  pthread_mutex_t mutex;   /* of the queue, and of going to sleep */
  pthread_cond_t wanted;
  size_t first; /* task in the queue */
};

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void *whole_lines(size_t size) {
  const size_t lines = (size + CACHE_LINES - 1) / CACHE_LINES;
  void *block = aligned_alloc(CACHE_LINES, lines * CACHE_LINES);
  if (block != NULL) memset(block, 0, lines * CACHE_LINES);
  return block;
}

static void release(np_workers *workers) {
  free(workers->team.shares);
  free(workers->queue);
  free(workers);
}

np_workers *np_workers_new(size_t count, uint64_t linger) {
  np_workers *workers = whole_lines(sizeof *workers);
  if (workers == NULL) return NULL;
  workers->count = count;
  workers->linger = linger;
  np_team_begin(&workers->team, count + 1, whole_lines((count + 1) * sizeof(np_share)));
  workers->queue = calloc(2 * count, sizeof *workers->queue);
  if (workers->team.shares == NULL || workers->queue == NULL ||
      pthread_mutex_init(&workers->mutex, NULL) != 0) {
    release(workers);
    return NULL;
  }
  if (pthread_cond_init(&workers->wanted, NULL) != 0) {
    pthread_mutex_destroy(&workers->mutex);
    release(workers);
    return NULL;
  }
  return workers;
}

static int count_of(void *context) { return (int)((np_workers *)context)->count; }

static void schedule(void *context, void *argument, void (*task)(void *)) {
  np_workers *workers = context;
  pthread_mutex_lock(&workers->mutex);
  const size_t waiting = atomic_load(&workers->waiting);
  workers->queue[(workers->first + waiting) % (2 * workers->count)] = (np_task){task, argument};
  atomic_store(&workers->waiting, waiting + 1);
  const int wake = atomic_load(&workers->sleeping) > 0;
  pthread_mutex_unlock(&workers->mutex);
  if (wake) pthread_cond_signal(&workers->wanted);
}

pthreadpool_t np_workers_begin_pool(np_workers *workers) {
  struct pthreadpool_executor executor = {count_of, schedule};
  workers->pool = pthreadpool_create_v2(&executor, workers, workers->count + 1);
  return workers->pool;
}

pthreadpool_t np_workers_pool(np_workers *workers) {
  return workers == NULL ? NULL : workers->pool;
}

size_t np_workers_threads(const np_workers *workers) {
  return workers == NULL ? 1 : workers->count + 1;
}

/* Take a task, if there is one. */
static int take(np_workers *workers, np_task *task) {
  int found = 0;
  pthread_mutex_lock(&workers->mutex);
  const size_t waiting = atomic_load(&workers->waiting);
  if (waiting > 0) {
    *task = workers->queue[workers->first];
    workers->first = (workers->first + 1) % (2 * workers->count);
    atomic_store(&workers->waiting, waiting - 1);
    found = 1;
  }
  pthread_mutex_unlock(&workers->mutex);
  return found;
}

#define LOOKS 64            /* at the counters, between two looks at the clock */
#define PATIENCE 5000000    /* nanoseconds that a worker spins between two jobs of a run */
#define FOREIGN 20000       /* nanoseconds after which somebody else may have computed meanwhile */

/* How often this thread gave way to another one that wanted its processor. */
static long given_way(void) {
  struct rusage usage;
  return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw + usage.ru_nvcsw : 0;
}

static int called(np_workers *workers, uint64_t seen) {
  return np_team_calls(&workers->team, seen) || atomic_load(&workers->waiting) > 0;
}

/* Spin-wait: 1 once there may be something to do, 0 when it is time to sleep.
 *
 * A thread that spins pays for it with the time that the scheduler grants it. Where others want the
 * processor, a worker that sleeps is woken at once when there is work, and one that has spent its
 * time waiting stands in line. */
static int await(np_workers *workers, uint64_t seen) {
  const uint64_t begin = now();
  for (uint64_t time = begin;;) {
    for (int look = 0; look < LOOKS; look++) {
      if (called(workers, seen)) return 1;
      if (atomic_load_explicit(&workers->stopped, memory_order_relaxed)) return 0;
      np_spin_pause();
    }
    const int running = atomic_load_explicit(&workers->runs, memory_order_relaxed) > 0;
    const uint64_t patience = running && workers->linger < PATIENCE ? PATIENCE : workers->linger;
    if (time - begin >= patience) return 0;
    /* Whom this worker waits for may have been put on the same processor. */
    const long ways = given_way();
    const uint64_t before = now();
    sched_yield();
    time = now();
    /* A virtual processor may also have stood still, which nobody here gains by. */
    if (time - before >= FOREIGN && given_way() != ways) return 0;
  }
}

void np_worker_main(np_workers *workers) {
  const size_t thread = 1 + atomic_fetch_add(&workers->begun, 1);
  uint64_t seen = 0;
  while (!atomic_load(&workers->stopped)) {
    if (await(workers, seen)) {
      np_task task;
      np_team_join(&workers->team, thread, &seen);
      if (take(workers, &task)) task.task(task.context);
      continue;
    }
    pthread_mutex_lock(&workers->mutex);
    /* Counted before it looks: who has work looks at the count after it says so. */
    atomic_fetch_add(&workers->sleeping, 1);
    while (!called(workers, seen) && !atomic_load(&workers->stopped)) {
      pthread_cond_wait(&workers->wanted, &workers->mutex);
    }
    atomic_fetch_sub(&workers->sleeping, 1);
    pthread_mutex_unlock(&workers->mutex);
  }
}

static void wake(np_workers *workers, size_t wanted) {
  const size_t sleeping = atomic_load(&workers->sleeping);
  if (sleeping == 0) return;
  /* Who is between a look and its sleep holds the mutex. */
  pthread_mutex_lock(&workers->mutex);
  pthread_mutex_unlock(&workers->mutex);
  if (wanted >= sleeping) {
    pthread_cond_broadcast(&workers->wanted);
  } else {
    for (size_t n = 0; n < wanted; n++) pthread_cond_signal(&workers->wanted);
  }
}

void np_parallel_for(np_workers *workers, np_part *part, void *context, size_t count,
                     int32_t flags) {
  const int disable = (flags & NP_DISABLE_DENORMALS) != 0;
  if (np_cancelled()) return; /* what an earlier job of the kernel has not computed */
  if (workers == NULL || count < 2 ||
      !np_team_open(&workers->team, part, context, count, disable)) {
    np_compute_alone(part, context, count, disable);
    return;
  }
  wake(workers, count - 1);
  np_team_close(&workers->team);
}

typedef struct {
  np_job *job;
  np_tile *tile;
  np_job_part *part;
  size_t count;
  size_t size;
} division;

static void compute_tile(void *context, size_t thread, size_t index) {
  const division *all = context;
  const np_range range = np_range_of(index, all->size, all->count);
  all->tile(all->job, range.first, range.count);
}

int np_for_tiles(np_job *job, np_tile *tile, size_t count, size_t size, size_t bytes,
                 int32_t flags) {
  division all = {.job = job, .tile = tile, .count = count, .size = size};
  np_parallel_for(np_workers_for(bytes, job->workers), compute_tile, &all, np_ceil_div(count, size),
                  flags);
  return job->outside ? NP_STATUS_INDEX : 0;
}

static void compute_part(void *context, size_t thread, size_t index) {
  const division *all = context;
  all->part(all->job, thread, index);
}

int np_for_parts(np_job *job, np_job_part *part, size_t count, int small, int32_t flags) {
  division all = {.job = job, .part = part};
  np_parallel_for(small ? NULL : job->workers, compute_part, &all, count, flags);
  return job->outside ? NP_STATUS_INDEX : 0;
}

void np_workers_stop(np_workers *workers) {
  pthread_mutex_lock(&workers->mutex);
  atomic_store(&workers->stopped, 1);
  pthread_mutex_unlock(&workers->mutex);
  pthread_cond_broadcast(&workers->wanted);
}

void np_workers_free(np_workers *workers) {
  pthread_cond_destroy(&workers->wanted);
  pthread_mutex_destroy(&workers->mutex);
  release(workers);
}

void np_workers_begin(np_workers *workers) {
  if (workers != NULL) atomic_fetch_add_explicit(&workers->runs, 1, memory_order_relaxed);
}

void np_workers_end(np_workers *workers) {
  if (workers != NULL) atomic_fetch_sub_explicit(&workers->runs, 1, memory_order_relaxed);
}
