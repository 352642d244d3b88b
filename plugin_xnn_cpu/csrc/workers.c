#define _POSIX_C_SOURCE 199309L /* clock_gettime */

#include "workers.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "run.h"

typedef struct {
  void (*task)(void *context);
  void *context;
} np_task;

struct np_workers {
  size_t count;
  uint64_t linger;
  atomic_size_t waiting;  /* tasks in the queue */
  atomic_size_t runs;     /* runs that go on */
  atomic_int stopped;
  pthread_mutex_t mutex;  /* of all below */
  pthread_cond_t wanted;
  size_t sleeping;
  size_t first;
  np_task queue[];        /* a ring of 2 · count: no thread of the pool is in it twice */
};

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

np_workers *np_workers_new(size_t count, uint64_t linger) {
  np_workers *workers = calloc(1, sizeof *workers + 2 * count * sizeof(np_task));
  if (workers == NULL) return NULL;
  workers->count = count;
  workers->linger = linger;
  if (pthread_mutex_init(&workers->mutex, NULL) != 0) {
    free(workers);
    return NULL;
  }
  if (pthread_cond_init(&workers->wanted, NULL) != 0) {
    pthread_mutex_destroy(&workers->mutex);
    free(workers);
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
  const int wake = workers->sleeping > 0;
  pthread_mutex_unlock(&workers->mutex);
  if (wake) pthread_cond_signal(&workers->wanted);
}

pthreadpool_t np_workers_pool(np_workers *workers) {
  struct pthreadpool_executor executor = {count_of, schedule};
  return pthreadpool_create_v2(&executor, workers, workers->count + 1);
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

#define LOOKS 64            /* at the counter, between two looks at the clock */
#define PATIENCE 100000     /* nanoseconds between the tasks of a run for which a worker stays awake */
#define FOREIGN 20000       /* nanoseconds after which a yield has let somebody else compute */

/* Wait awake: 1 once a task may be there, 0 when it is time to sleep.
 *
 * Who waits awake pays for it with the time that the scheduler grants him. Where others want the
 * processor, a worker that sleeps is woken at once when there is work, and one that has spent its
 * time waiting stands in line. */
static int await(np_workers *workers) {
  const uint64_t begin = now();
  for (uint64_t time = begin;;) {
    for (int look = 0; look < LOOKS; look++) {
      if (atomic_load_explicit(&workers->waiting, memory_order_acquire) > 0) return 1;
      if (atomic_load_explicit(&workers->stopped, memory_order_relaxed)) return 0;
      relax();
    }
    const int running = atomic_load_explicit(&workers->runs, memory_order_relaxed) > 0;
    const uint64_t patience = running && workers->linger < PATIENCE ? PATIENCE : workers->linger;
    if (time - begin >= patience) return 0;
    /* Whom this worker waits for may have been put on the same processor. */
    const uint64_t before = now();
    sched_yield();
    time = now();
    if (time - before >= FOREIGN) return 0;
  }
}

void np_worker_main(np_workers *workers) {
  while (!atomic_load(&workers->stopped)) {
    np_task task;
    if (await(workers) && take(workers, &task)) {
      task.task(task.context);
      continue;
    }
    pthread_mutex_lock(&workers->mutex);
    while (atomic_load(&workers->waiting) == 0 && !atomic_load(&workers->stopped)) {
      workers->sleeping++;
      pthread_cond_wait(&workers->wanted, &workers->mutex);
      workers->sleeping--;
    }
    pthread_mutex_unlock(&workers->mutex);
  }
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
  free(workers);
}

void np_workers_begin(np_workers *workers) {
  if (workers != NULL) atomic_fetch_add_explicit(&workers->runs, 1, memory_order_relaxed);
}

void np_workers_end(np_workers *workers) {
  if (workers != NULL) atomic_fetch_sub_explicit(&workers->runs, 1, memory_order_relaxed);
}
