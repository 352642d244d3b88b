/* Ensembles of trees over REAL; INDEX is an integer of its size, and NAME(x) names what is defined.
 * No include guard: included once for each type.
 *
 * A walk from root to leaf is a chain of loads, each of which waits for the one before. LANES walks
 * go on at a time, so that their loads overlap: rows of one tree, or trees of one row. */

typedef struct NAME(np_tree_node) NAME(node);

/* The operands of a job. */
typedef struct {
  const struct np_trees_params *params;
  const REAL *x;
  const NAME(node) * nodes;
  const uint32_t *roots;
  const struct NAME(np_tree_weight) * weights;
  const uint32_t *first;
  REAL *totals; /* [rows, targets]; the output itself where that is REAL */
} NAME(trees);

NP_INLINE void NAME(walk)(const NAME(node) * nodes, const REAL *const *rows, uint32_t *at,
                          int at_most, int32_t levels) {
  for (int32_t level = 1;; level++) {
    uint32_t moved = 0;
#pragma GCC unroll 8
    for (size_t lane = 0; lane < LANES; lane++) {
      const NAME(node) *node = nodes + at[lane];
      const REAL x = rows[lane][node->test >> 4];
      const REAL threshold = node->threshold;
      int yes;
      if (at_most) {
        yes = x <= threshold;
      } else {
        const int outcome =
            (x == threshold) + 2 * (x > threshold) + 3 * (x != x || threshold != threshold);
        yes = (node->test >> outcome) & 1;
      }
      const uint32_t next = node->next[yes]; /* no branch that could be predicted wrong */
      moved |= next ^ at[lane];
      at[lane] = next;
    }
    if (level == levels || moved == 0) return;
  }
}

NP_INLINE void NAME(add)(const NAME(trees) * task, uint32_t at, REAL *totals) {
  INDEX leaf;
  memcpy(&leaf, &task->nodes[at].threshold, sizeof leaf);
  const int aggregate = task->params->aggregate;
  const int single = task->params->single;
  const uint32_t start = single ? (uint32_t)leaf : task->first[leaf];
  const uint32_t end = single ? start + 1 : task->first[leaf + 1];
  for (uint32_t i = start; i < end; i++) {
    const REAL weight = task->weights[i].weight;
    REAL *sum = totals + task->weights[i].target;
    if (aggregate == NP_TREES_MIN) {
      *sum = weight < *sum ? weight : *sum;
    } else if (aggregate == NP_TREES_MAX) {
      *sum = weight > *sum ? weight : *sum;
    } else {
      *sum += weight;
    }
  }
}

/* LANES rows of one tree at a time; lanes behind the last row walk with it and add nothing. */
NP_INLINE void NAME(by_rows)(const NAME(trees) * task, size_t start, size_t count, int at_most) {
  const struct np_trees_params *p = task->params;
  for (size_t tree = 0; tree < p->trees; tree++) {
    if (tree % 64 == 63 && np_cancel_check()) return;
    for (size_t row = start; row < start + count; row += LANES) {
      const size_t used = start + count - row < LANES ? start + count - row : LANES;
      const REAL *rows[LANES];
      uint32_t at[LANES];
      for (size_t lane = 0; lane < LANES; lane++) {
        rows[lane] = task->x + (row + (lane < used ? lane : used - 1)) * p->columns;
        at[lane] = task->roots[tree];
      }
      NAME(walk)(task->nodes, rows, at, at_most, p->levels);
      for (size_t lane = 0; lane < used; lane++) {
        NAME(add)(task, at[lane], task->totals + (row + lane) * p->targets);
      }
    }
  }
}

/* LANES trees of one row at a time, in their order: totals are those of by_rows to the last bit. */
NP_INLINE void NAME(by_trees)(const NAME(trees) * task, size_t row, int at_most) {
  const struct np_trees_params *p = task->params;
  const REAL *rows[LANES];
  for (size_t lane = 0; lane < LANES; lane++) rows[lane] = task->x + row * p->columns;
  for (size_t tree = 0; tree < p->trees; tree += LANES) {
    if (tree % (64 * LANES) == 63 * LANES && np_cancel_check()) return;
    const size_t used = p->trees - tree < LANES ? p->trees - tree : LANES;
    uint32_t at[LANES];
    for (size_t lane = 0; lane < LANES; lane++) {
      at[lane] = task->roots[tree + (lane < used ? lane : used - 1)];
    }
    NAME(walk)(task->nodes, rows, at, at_most, p->levels);
    for (size_t lane = 0; lane < used; lane++) {
      NAME(add)(task, at[lane], task->totals + row * p->targets);
    }
  }
}

NP_TILE(NAME(rows)) {
  const struct np_trees_params *p = job->params;
  const NAME(trees) all = {
      .params = p,
      .x = job->inputs[0],
      .nodes = job->inputs[1],
      .roots = job->inputs[2],
      .weights = job->inputs[3],
      .first = job->inputs[4],
      .totals = sizeof(REAL) == 4 || p->double_out ? job->out : (REAL *)(void *)job->scratch,
  };
  const NAME(trees) *const task = &all;
  const REAL *base = job->inputs[5];
  const REAL origin = p->aggregate == NP_TREES_MIN   ? (REAL)INFINITY
                      : p->aggregate == NP_TREES_MAX ? -(REAL)INFINITY
                                                     : 0;
  for (size_t i = start * p->targets; i < (start + count) * p->targets; i++) {
    task->totals[i] = origin;
  }
  if (count < LANES) {
    for (size_t row = start; row < start + count; row++) {
      if (p->at_most) {
        NAME(by_trees)(task, row, 1);
      } else {
        NAME(by_trees)(task, row, 0);
      }
    }
  } else if (p->at_most) {
    NAME(by_rows)(task, start, count, 1);
  } else {
    NAME(by_rows)(task, start, count, 0);
  }
  for (size_t row = start; row < start + count; row++) {
    for (size_t target = 0; target < p->targets; target++) {
      const size_t i = row * p->targets + target;
      REAL sum = task->totals[i];
      /* No leaf had a weight for the target: weights themselves are finite. */
      if (sum == origin) sum = 0;
      if (p->aggregate == NP_TREES_AVERAGE) sum /= (REAL)p->trees;
      sum += base[target];
      if (p->double_out) {
        ((double *)job->out)[i] = (double)sum;
      } else {
        ((float *)job->out)[i] = (float)sum;
      }
    }
  }
}
