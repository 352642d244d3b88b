/* The library: initialization, identity, thread pools, and what all operators share. */
#include <string.h>

#include "operator.h"

/* Read by native/library.py, as the identifier of the build. */
static const char identifier[] = "narrowpass portable operators 1";

enum xnn_status xnn_initialize(const struct xnn_allocator *allocator) {
  (void)allocator;
  return xnn_status_success;
}

const void *xnn_experimental_get_build_identifier_data(void) { return identifier; }
size_t xnn_experimental_get_build_identifier_size(void) { return sizeof identifier - 1; }

/* Pools: operators run on the calling thread, so that a pool is a handle alone. */

struct pthreadpool {
  size_t threads;
};

pthreadpool_t pthreadpool_create_v2(struct pthreadpool_executor *executor, void *executor_context,
                                    size_t max_num_threads) {
  (void)executor;
  (void)executor_context;
  struct pthreadpool *pool = malloc(sizeof *pool);
  if (pool != NULL) pool->threads = max_num_threads;
  return pool;
}

void pthreadpool_destroy(pthreadpool_t threadpool) { free(threadpool); }

/* Operators */

void *np_portable_new(size_t size, void (*run)(const struct xnn_operator *op),
                      xnn_operator_t *out) {
  struct xnn_operator *op = calloc(1, size);
  if (op != NULL) op->run = run;
  *out = op;
  return op;
}

enum xnn_status np_portable_set_up(xnn_operator_t op, const void *a, const void *b, void *out) {
  if (op == NULL || !op->sized) return xnn_status_invalid_state;
  op->a = a;
  op->b = b;
  op->out = out;
  op->set_up = true;
  return xnn_status_success;
}

enum xnn_status xnn_run_operator(xnn_operator_t op, pthreadpool_t threadpool) {
  (void)threadpool;
  if (op == NULL || !op->set_up) return xnn_status_invalid_state;
  op->run(op);
  return xnn_status_success;
}

enum xnn_status xnn_delete_operator(xnn_operator_t op) {
  if (op == NULL) return xnn_status_invalid_parameter;
  free(op->owned);
  free(op);
  return xnn_status_success;
}
