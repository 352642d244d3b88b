/* DynamicQuantizeLinear. Read by cffi too: no directives but simple constants. */
#ifndef NARROWPASS_QUANTIZE_DYNAMIC_H
#define NARROWPASS_QUANTIZE_DYNAMIC_H

#include "runtime/params.h"

/* Of float32 elements, of which a thread takes `part` at a time; the workspace has two float32
 * numbers for each part. */
struct np_dynamic_range_params {
  size_t count;
  size_t part;
};

/* How a tensor is quantized: scale · (q - zero), with q an int8, which is the byte of
 * DynamicQuantizeLinear with its highest bit turned. */
struct np_dynamic_range {
  float scale;
  int8_t zero[4]; /* the first of them */
};

#endif
