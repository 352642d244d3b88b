/* Parameters of copies through tables of indices. Read by cffi too: no directives but simple
 * constants. */
#ifndef NARROWPASS_MOVEMENT_PICK_H
#define NARROWPASS_MOVEMENT_PICK_H

#include <stddef.h>
#include <stdint.h>

/* out[i, j, ..] = in[table 0[i], table 1[j], ..], with a table for each axis; both are dense, the
 * input by its strides in elements. Of a row, the last axis, `plain` elements from `first` on have
 * sources that lie side by side. */
struct np_pick_params {
  size_t rank; /* 1 to 8 */
  size_t sizes[8];
  ptrdiff_t in_strides[8];
  size_t starts[8]; /* of each axis' table in `tables` */
  size_t first;
  size_t plain;
  size_t element_size; /* 1, 2, 4 or 8 */
  int32_t tables[];    /* indices, all within the input */
};

#endif
