/* The kernels of gemv/nbits*, which take the operands of a job one by one. */
#include "runtime/kernel.h"

int np_nbits(const void *params, const void *const *inputs, void *out, void *workspace,
             np_workers *workers);
int np_nbits_gather(const void *params, const void *const *inputs, void *out, np_workers *workers);

int np_nbits_of_job(np_job *job) {
  return np_nbits(job->params, job->inputs, job->out, job->scratch, job->workers);
}

int np_nbits_gather_of_job(np_job *job) {
  return np_nbits_gather(job->params, job->inputs, job->out, job->workers);
}

typedef struct {
  np_job job;
  void (*tile)(void *context, size_t start, size_t count);
  size_t count;
  size_t size;
} tiles;

static void compute_tile(void *context, size_t thread, size_t index) {
  tiles *all = context;
  const np_range range = np_range_of(index, all->size, all->count);
  all->tile(&all->job, range.first, range.count);
}

int np_run_tiles(np_job job, void (*tile)(void *context, size_t start, size_t count), size_t count,
                 size_t size, size_t bytes, int32_t flags, np_workers *workers) {
  tiles all = {job, tile, count, size};
  np_parallel_for(np_workers_for(bytes, workers), compute_tile, &all, np_ceil_div(count, size),
                  flags);
  return all.job.outside ? NP_STATUS_INDEX : 0;
}
