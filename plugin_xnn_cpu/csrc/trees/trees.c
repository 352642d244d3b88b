/* Ensembles of decision trees: random forests, gradient boosting. */
#include <math.h>
#include <string.h>

#include "runtime/kernel.h"
#include "trees/trees.h"

#define LANES 8
/* Rows whose features stay in cache while all trees are walked, and those of a part. */
#define TILE_ROWS 64

#define NAME(x) x##_f32
#define BODY part_of_f32
#define REAL float
#define INDEX uint32_t
#define NODE struct np_tree_node_f32
#define WEIGHT struct np_tree_weight_f32
#include "trees/code.h"
NP_MULTIVERSIONED(void, rows_f32, (const job_f32 *task, size_t start, size_t count),
                  (task, start, count)) {
  part_of_f32(task, start, count);
}
static void tile_f32(void *context, size_t start, size_t count) { rows_f32(context, start, count); }
#undef NAME
#undef BODY
#undef REAL
#undef INDEX
#undef NODE
#undef WEIGHT

#define NAME(x) x##_f64
#define BODY part_of_f64
#define REAL double
#define INDEX uint64_t
#define NODE struct np_tree_node_f64
#define WEIGHT struct np_tree_weight_f64
#include "trees/code.h"
NP_MULTIVERSIONED(void, rows_f64, (const job_f64 *task, size_t start, size_t count),
                  (task, start, count)) {
  part_of_f64(task, start, count);
}
static void tile_f64(void *context, size_t start, size_t count) { rows_f64(context, start, count); }

int np_trees(const void *params, const void *const *inputs, void *out, void *workspace,
             np_workers *workers) {
  const struct np_trees_params *p = params;
  /* A step down a tree takes some 3 ns; below 20 us the workers are left asleep. */
  np_workers *const used = p->rows * p->trees < 1024 ? NULL : workers;
  if (p->is_double) {
    double *totals = p->double_out ? out : workspace;
    job_f64 task = {p,         inputs[0], inputs[1], inputs[2], inputs[3],
                    inputs[4], inputs[5], totals,      out};
    np_parallel_for_tiles(used, tile_f64, &task, p->rows, TILE_ROWS, 0);
  } else {
    job_f32 task = {p,         inputs[0], inputs[1], inputs[2], inputs[3],
                    inputs[4], inputs[5], out,       out};
    np_parallel_for_tiles(used, tile_f32, &task, p->rows, TILE_ROWS, 0);
  }
  return 0;
}
