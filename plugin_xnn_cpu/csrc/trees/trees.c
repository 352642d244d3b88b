/* Ensembles of decision trees: random forests, gradient boosting. */
#include <math.h>
#include <string.h>

#include "runtime/kernel.h"
#include "trees/trees.h"

#define LANES 8
/* Rows whose features stay in cache while all trees are walked, and those of a part. */
#define TILE_ROWS 64

#define NAME(x) x##_f32
#define REAL float
#define INDEX uint32_t
#include "trees/code.h"
#undef NAME
#undef REAL
#undef INDEX

#define NAME(x) x##_f64
#define REAL double
#define INDEX uint64_t
#include "trees/code.h"

int np_trees(np_job *job) {
  const struct np_trees_params *p = job->params;
  /* A step down a tree takes some 3 ns; below 20 us the workers are left asleep. */
  const size_t bytes = p->rows * p->trees < 1024 ? 0 : NP_PARALLEL_MIN_BYTES;
  return np_for_tiles(job, p->is_double ? rows_f64 : rows_f32, p->rows, TILE_ROWS, bytes, 0);
}
