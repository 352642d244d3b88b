/* Ensembles of decision trees. Read by cffi too: no directives but simple constants. */
#pragma once

#include "xnnpack/xnnpack.h"

/* How a node compares feature x with its threshold: a set of the outcomes that go to next[1]. */
#define NP_TREE_LESS 1
#define NP_TREE_EQUAL 2
#define NP_TREE_GREATER 4
#define NP_TREE_UNORDERED 8 /* x or the threshold is NaN */
#define NP_TREE_AT_MOST 3   /* NP_TREE_LESS and NP_TREE_EQUAL */

/* A node of a tree. `test` is 16 times the feature's number plus the outcomes that go to next[1].
 * Both successors of a leaf are the leaf itself; its threshold holds, as an integer, the number of
 * the leaf. */
struct np_tree_node_f32 {
  float threshold;
  uint32_t test;
  uint32_t next[2];
};

struct np_tree_node_f64 {
  double threshold;
  uint32_t test;
  uint32_t next[2];
  uint32_t unused;
};

/* What a leaf adds to a target. */
struct np_tree_weight_f32 {
  float weight;
  uint32_t target;
};

struct np_tree_weight_f64 {
  double weight;
  uint64_t target;
};

#define NP_TREES_SUM 0
#define NP_TREES_AVERAGE 1
#define NP_TREES_MIN 2
#define NP_TREES_MAX 3

/* out[i, t] = base[t] + the aggregate of the weights for target t of the leaves that row i of
 * x [rows, columns] comes to. Inputs: x, nodes, uint32 roots [trees], weights, uint32 first
 * [leaves + 1]: the weights of leaf l are those from first[l] to first[l + 1] - 1, base [targets].
 * x, nodes, weights and base are float, or double where `is_double` is set; out is float, or double
 * where `double_out` is set. Every successor, root, leaf, target and feature is in range. */
struct np_trees_params {
  size_t rows;
  size_t columns;
  size_t trees;
  size_t targets;
  int32_t aggregate; /* NP_TREES_* */
  int32_t at_most;   /* all nodes go to next[1] by NP_TREE_AT_MOST */
  int32_t single;    /* each leaf has one weight */
  int32_t levels;    /* no walk is longer; 0 where the longest is long */
  int32_t is_double;
  int32_t double_out;
};
