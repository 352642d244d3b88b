#define _POSIX_C_SOURCE 200809L /* getpid */

#include "kernel.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "provider.h"

#define PAGE 4096
#define ALIGNMENT 64

struct np_kernel {
  OrtNodeComputeInfo info;
  void *handle;
  pthread_mutex_t lock; /* runs take turns: a program computes in one arena */
  pid_t process;        /* whose threads take turns */
  const np_replay *replay;
  void **copies; /* of feeds after which nothing may be read, by number */
  size_t *room;  /* bytes of each */
  size_t copy_count;
  uint64_t python, native;
};

static OrtStatus *create_state(OrtNodeComputeInfo *info, OrtNodeComputeContext *context,
                               void **state) {
  (void)context;
  *state = info;
  return NULL;
}

static void release_state(OrtNodeComputeInfo *info, void *state) {
  (void)info;
  (void)state;
}

/* Return where a kernel of the tape may read a feed: there, or in a copy; NULL: out of memory. */
static const void *readable(np_kernel *kernel, size_t number, const void *data, size_t size,
                            size_t overread) {
  if (((uintptr_t)data + size - 1) % PAGE + overread < PAGE) return data;
  if (number >= kernel->copy_count) {
    size_t count = number + 1;
    void **copies = realloc(kernel->copies, count * sizeof *copies);
    if (copies == NULL) return NULL;
    kernel->copies = copies;
    size_t *room = realloc(kernel->room, count * sizeof *room);
    if (room == NULL) return NULL;
    kernel->room = room;
    for (size_t i = kernel->copy_count; i < count; i++) copies[i] = NULL, room[i] = 0;
    kernel->copy_count = count;
  }
  if (kernel->room[number] < size + overread) {
    free(kernel->copies[number]);
    kernel->room[number] = 0;
    size_t room = (size + overread + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (posix_memalign(&kernel->copies[number], ALIGNMENT, room) != 0) {
      kernel->copies[number] = NULL;
      return NULL;
    }
    kernel->room[number] = room;
  }
  memcpy(kernel->copies[number], data, size);
  return kernel->copies[number];
}

static void bind(const np_replay *replay, const np_bind *binds, size_t count, const void *start) {
  for (size_t i = 0; i < count; i++)
    replay->buffers[binds[i].buffer] = (char *)start + binds[i].offset;
}

/* Whether nothing failed. Errors are released: what runs next meets them again and reports them. */
static bool ok(OrtStatus *status) {
  if (status == NULL) return true;
  np_ort_loaded()->ReleaseStatus(status);
  return false;
}

/* Find where onnxruntime wants a result; NULL where it has no bytes. Return whether it says so. */
static bool result_memory(OrtKernelContext *context, size_t number, const np_result *result,
                          void **data) {
  const np_ort *ort = np_ort_loaded();
  OrtValue *value = NULL;
  *data = NULL;
  if (!ok(ort->KernelContext_GetOutput(context, number, result->shape, result->rank, &value)) ||
      value == NULL)
    return false;
  if (result->size == 0) return true;
  return ok(ort->GetTensorMutableData(value, data)) && *data != NULL;
}

/* Run the replay; return whether it fits the feeds and has computed the results. */
static bool run_again(np_kernel *kernel, OrtKernelContext *context) {
  const np_ort *ort = np_ort_loaded();
  const np_replay *replay = kernel->replay;
  if (replay == NULL || replay->process != (int64_t)getpid()) return false;
  for (size_t i = 0; i < replay->feed_count; i++) {
    const np_feed *feed = &replay->feeds[i];
    const OrtValue *value = NULL;
    const int64_t *shape = NULL;
    size_t rank = 0;
    int type = 0;
    const void *data = NULL;
    if (!ok(ort->KernelContext_GetInput(context, i, &value)) || value == NULL) return false;
    if (!ok(ort->GetTensorElementTypeAndShapeDataReference(value, &type, &shape, &rank)))
      return false;
    if (type != feed->type || rank != feed->rank) return false;
    if (rank != 0 && memcmp(shape, feed->shape, rank * sizeof *shape) != 0) return false;
    if (feed->size == 0 || feed->bind_count == 0) continue;
    if (!ok(ort->GetTensorData(value, &data)) || data == NULL) return false;
    data = readable(kernel, i, data, feed->size, replay->overread);
    if (data == NULL) return false;
    bind(replay, feed->binds, feed->bind_count, data);
  }
  for (size_t i = 0; i < replay->result_count; i++) {
    const np_result *result = &replay->results[i];
    if (result->source != NULL) continue;
    void *data;
    if (!result_memory(context, i, result, &data)) return false;
    if (data == NULL) continue;
    bind(replay, result->binds, result->bind_count, data);
  }
  if (replay->run(replay->tape) != 0) return false;
  for (size_t i = 0; i < replay->result_count; i++) {
    const np_result *result = &replay->results[i];
    if (result->source == NULL) continue;
    void *data;
    if (!result_memory(context, i, result, &data)) return false;
    if (data == NULL) continue;
    memcpy(data, result->source, result->size);
  }
  return true;
}

static OrtStatus *compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context) {
  (void)info;
  np_kernel *kernel = state;
  OrtStatus *status = NULL;
  if (kernel->process != getpid()) {
    /* A fork may copy a lock that a thread of the parent holds. */
    pthread_mutex_init(&kernel->lock, NULL);
    kernel->process = getpid();
  }
  /* Whoever has the lock may wait for the interpreter, which this thread does not hold:
   * onnxruntime lets go of it for a run. */
  pthread_mutex_lock(&kernel->lock);
  if (!np_is_alive()) {
    status = np_error("the interpreter is shutting down; nothing runs any more");
  } else if (run_again(kernel, context)) {
    kernel->native++;
  } else {
    kernel->python++;
    status = np_compute_in_python(kernel, context);
  }
  pthread_mutex_unlock(&kernel->lock);
  return status;
}

np_kernel *np_kernel_new(void *handle) {
  np_kernel *kernel = calloc(1, sizeof *kernel);
  if (kernel == NULL) return NULL;
  kernel->info.version = NP_API_VERSION;
  kernel->info.CreateState = create_state;
  kernel->info.Compute = compute;
  kernel->info.ReleaseState = release_state;
  kernel->handle = handle;
  pthread_mutex_init(&kernel->lock, NULL);
  kernel->process = getpid();
  return kernel;
}

OrtNodeComputeInfo *np_kernel_info(np_kernel *kernel) { return &kernel->info; }

void *np_kernel_handle(np_kernel *kernel) { return kernel->handle; }

void np_kernel_set_replay(np_kernel *kernel, const np_replay *replay) { kernel->replay = replay; }

void np_kernel_counts(np_kernel *kernel, uint64_t *python, uint64_t *native) {
  *python = kernel->python;
  *native = kernel->native;
}

void np_kernel_free(np_kernel *kernel) {
  for (size_t i = 0; i < kernel->copy_count; i++) free(kernel->copies[i]);
  free(kernel->copies);
  free(kernel->room);
  pthread_mutex_destroy(&kernel->lock);
  free(kernel);
}
