/* The weights cache: packed weights by name, shared by all who name the same.
 *
 * A session is one program's use of a cache. It begins, creates operators, and is committed or
 * aborted: what was packed or found belongs to it only from then on, and an aborted session leaves
 * no trace. One session at a time is open in a cache; committed ones are never looked into again,
 * so that running needs no lock. An offset, as XNNPACK calls it, is an address: it stays the same
 * for as long as a session holds the entry. Read by cffi too. */
#pragma once

#include "xnnpack/xnnpack.h"

typedef struct np_cache np_cache;
typedef struct np_session np_session;

/* One block of packed weights. Blocks of one name differ by how XNNPACK packed it. */
struct np_entry {
  uint8_t name[32];     /* a digest of all that the packed bytes follow from */
  uint32_t seed;        /* XNNPACK's parameters of the packing */
  uint32_t fingerprint; /* which algorithm packed them */
  void *address;        /* at a multiple of 64 */
  size_t size;          /* bytes */
  bool mapped;          /* lies in a mapped file */
};

/* How a session came to a block. */
#define NP_ENTRY_PACKED 0
#define NP_ENTRY_SHARED 1
#define NP_ENTRY_MAPPED 2
#define NP_ENTRY_UNNAMED 3
#define NP_ENTRY_UNKNOWN_POINTER 4

/* Memory for blocks. A block keeps a copy: the functions are called until the last one is gone, on
 * any thread, and without a lock of the cache. */
struct np_allocator {
  void *(*allocate)(void *context, size_t size, size_t alignment); /* NULL without memory */
  void (*release)(void *context, void *address);
  void *context;
};

np_cache *np_cache_new(void);
void np_cache_free(np_cache *cache);

/* Entries that sessions hold. */
size_t np_cache_count(np_cache *cache);
bool np_cache_has(np_cache *cache, const uint8_t *name);
size_t np_cache_users(np_cache *cache, const uint8_t *name);

/* NULL without memory, or while another session of the cache is open. */
np_session *np_session_begin(np_cache *cache);

/* Take memory for new blocks from a caller's allocator; without this, from the heap. */
void np_session_allocate_by(np_session *session, const struct np_allocator *allocator);

/* Say where a block of a file lies that may be looked up; it must stay there as long as the
 * session. It is found only by who needs exactly its size: the file says how large it is, and
 * nobody may read past its end. False without memory. */
bool np_session_offer(np_session *session, const struct np_entry *entry);
bool np_session_offers(np_session *session, const uint8_t *name);

/* The weights of the operator that is created next. `name` may be NULL: then it is packed for
 * this session alone. Where `find` is true, nothing is packed: creation fails for want of memory
 * unless the weights are there, and reads neither kernel nor bias. */
void np_session_next(np_session *session, const void *kernel, const void *bias,
                     const uint8_t *name, bool find);

/* The bytes that a creation with `find` wanted to pack; 0 where it did not get so far. A second
 * one after np_session_expect with these takes a block of a file, if it has as many. XNNPACK names
 * a size only when it reserves memory, after it has looked the block up. */
size_t np_session_wanted(const np_session *session);
void np_session_expect(np_session *session, size_t size);

/* What is passed to xnn_create_*; it lives as long as the session. */
xnn_weights_cache_t np_session_provider(np_session *session);

/* Fingerprint of blocks that kernels of ours read; their seed is the version of the layout. */
#define NP_OWN_FINGERPRINT 0xffffffffu

/* A block of our own of `size` bytes, of the name that np_session_next was given: where it lies,
 * or NULL where it is not there. */
const void *np_session_find_block(np_session *session, uint32_t layout, size_t size);

/* Memory for a block of our own, which belongs to the session once it is kept; NULL without
 * memory. It is to be filled, and kept, before another one is asked for. */
void *np_session_new_block(np_session *session, size_t size);
void np_session_keep_block(np_session *session, uint32_t layout, void *block, size_t size);

/* The block that the last operator was created with; false where it has none. */
bool np_session_last(np_session *session, struct np_entry *entry);

/* Let operators run, and others find the entries. */
void np_session_commit(np_session *session);

/* Free the session, and the blocks that nobody else holds; before a commit this is an abort. Its
 * operators must have been deleted. */
void np_session_end(np_session *session);

/* What the session holds. */
size_t np_session_count(np_session *session);
int np_session_entry(np_session *session, size_t index, struct np_entry *entry);
