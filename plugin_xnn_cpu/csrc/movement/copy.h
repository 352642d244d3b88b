/* Strided copies. Read by cffi too: no directives but simple constants. */
#pragma once

#include <stddef.h>

/* out[offset + i·out_strides] = in[offset + i·in_strides] over all indices i below `sizes`. */
struct np_copy_params {
  size_t rank;
  size_t sizes[8];
  ptrdiff_t in_strides[8];
  ptrdiff_t out_strides[8];
  ptrdiff_t in_offset;
  ptrdiff_t out_offset;
  size_t element_size;
};
