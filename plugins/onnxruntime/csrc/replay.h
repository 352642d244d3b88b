/* A program that has run for feeds of some types and shapes, as a run again needs it.
 *
 * Whoever fills one keeps it, and all that it names, alive while a kernel has it. Read by cffi
 * too: no directives but simple constants. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A buffer of the tape that lies `offset` bytes within a tensor. */
typedef struct {
  size_t buffer;
  size_t offset;
} np_bind;

typedef struct {
  int type; /* of elements, as onnxruntime counts types */
  size_t rank;
  const int64_t *shape;
  size_t size; /* bytes */
  const np_bind *binds;
  size_t bind_count;
} np_feed;

typedef struct {
  size_t rank;
  const int64_t *shape;
  size_t size; /* bytes */
  const np_bind *binds;
  size_t bind_count;
  const void *source; /* where not NULL, the result is copied from there after the run */
} np_result;

typedef struct {
  const np_feed *feeds;
  size_t feed_count;
  const np_result *results;
  size_t result_count;
  void **buffers;
  size_t overread;         /* bytes that may be read after a feed */
  int (*run)(void *tape);  /* 0, or the status of what failed */
  void *tape;
  int64_t process; /* whose threads the tape runs on */
} np_replay;
