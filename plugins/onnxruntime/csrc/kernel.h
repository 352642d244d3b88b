/* What onnxruntime runs in place of a group of nodes. Read by cffi too: no directives but simple
 * constants. */
#pragma once

#include "abi.h"
#include "replay.h"

typedef struct np_kernel np_kernel;

/* Return a kernel, or NULL: out of memory. Python finds what it computes by `handle`. */
np_kernel *np_kernel_new(void *handle);

OrtNodeComputeInfo *np_kernel_info(np_kernel *kernel);
void *np_kernel_handle(np_kernel *kernel);

/* Let it run `replay` for feeds like those, NULL for none. Called by what runs within it only. */
void np_kernel_set_replay(np_kernel *kernel, const np_replay *replay);

/* How often it has run, by Python and without. */
void np_kernel_counts(np_kernel *kernel, uint64_t *python, uint64_t *native);

void np_kernel_free(np_kernel *kernel);
