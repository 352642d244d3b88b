/* The allocator of XNNPACK, with a reserve of small blocks.
 *
 * xnn_create_binary_elementwise_nd and xnn_create_reduce_nd write to a new operator without asking
 * whether there was memory for it. A small block comes from the reserve then, so that they return,
 * and whoever called XNNPACK asks np_xnn_lacked_memory. Read by cffi too. */
#pragma once

#include "xnnpack/xnnpack.h"

/* Whether a block came from the reserve since the last question. Another thread may have asked about
 * one of this thread: its operator is whole, and keeps the block. */
int np_xnn_lacked_memory(void);

/* Whether XNNPACK allocates by this allocator: another build of it may keep its own. */
int np_xnn_has_reserve(void);
