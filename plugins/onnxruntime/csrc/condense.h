/* A universal hash of large tensors. Read by cffi too: no directives but simple constants. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define NP_CONDENSE_BLOCK 4096 /* bytes that become one pair of words */
#define NP_CONDENSE_KEY 4160   /* bytes of a key */

/* How many levels of instruction sets this processor has, the plain one included. */
int np_condense_levels(void);

/* Write two words for each block of `data`; the last block is padded with zeros.
 *
 * `key` is drawn at random: then blocks that differ have the same pair with a probability of 2^-64
 * at most, unless they were chosen by somebody who knows the key. `level`, below
 * `np_condense_levels`, decides the instructions and not the result. */
void np_condense(const void *data, size_t size, const void *key, uint64_t *pairs, int level);
