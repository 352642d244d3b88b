/* A tape that runs many times: the body of a loop. Read by cffi too: no directives but simple
 * constants. */
#pragma once

#include "runtime/tape.h"

/* Where something lies in each iteration: in turn at two addresses, where these differ by turns,
 * or further by a number of bytes each time. */
typedef struct {
  char *first;    /* in iteration 0, where not NULL */
  char *turns[2]; /* in iteration i: turns[(i + phase) % 2] + i * stride */
  size_t phase;
  ptrdiff_t stride;
  char *now; /* in the iteration that runs */
} np_place;

/* A buffer of the tape that lies `offset` bytes within a place. */
typedef struct {
  size_t place;
  size_t offset;
  int32_t buffer;
} np_place_buffer;

/* Bytes that are copied after each iteration. */
typedef struct {
  size_t from;
  size_t offset; /* in `from` */
  size_t to;
  size_t size;
} np_place_copy;

typedef struct {
  np_place *places;
  size_t place_count;
  const np_place_buffer *buffers;
  size_t buffer_count;
  const np_place_copy *copies;
  size_t copy_count;
  int64_t *counter;         /* takes the number of the iteration */
  const uint8_t *condition; /* what an iteration writes: 0 ends the loop; NULL where none does */
  size_t start;             /* the number of the first iteration */
  size_t end;               /* one more than the number of the last one */
  size_t done;              /* the number of the next one; see np_run_loop */
} np_loop;

/* Run the steps as `np_run` does, once for each iteration; `loop->done` is the number of the one
 * that would be next, or that failed. */
int np_run_loop(np_step *steps, size_t count, void **buffers, void *workspace, np_workers *workers,
                size_t *failed, int (*ask)(void *context), void *context, np_loop *loop);
