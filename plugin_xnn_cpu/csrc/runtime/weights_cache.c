#include "runtime/weights_cache.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/kernel.h"

#define BLOCK_ALIGNMENT 128
#define BUCKETS 1024

/* A block in the cache: found by its key, held by `users` sessions. */
typedef struct block {
  struct np_entry entry;
  struct np_allocator allocator; /* of its memory, unless that is mapped */
  size_t users;
  struct block *next;
} block;

struct np_cache {
  pthread_mutex_t mutex;
  np_session *open;
  size_t count;
  block *buckets[BUCKETS];
};

typedef struct {
  block *block;
  int how; /* NP_ENTRY_* */
} use;

struct np_session {
  struct xnn_weights_cache_provider provider;
  np_cache *cache;
  struct np_allocator allocator;
  atomic_int committed;
  use *uses;
  size_t count, capacity;
  struct np_entry *offers; /* from a file */
  size_t offer_count, offer_capacity;
  void *reserved; /* the last memory that was asked for and is not inserted yet */
  block *spare;   /* to note it in */
  const void *kernel, *bias;
  uint8_t name[32];
  int named, find;
  size_t needed; /* bytes of the block that is looked up; 0 where that is not known */
  size_t wanted; /* bytes that were to be packed where `find` */
  size_t last;   /* the offset that was given last; SIZE_MAX for none */
};

/* Blocks and keys */

static size_t bucket_of(const uint8_t *name) {
  uint32_t digest; /* names are digests: any part of them is one */
  memcpy(&digest, name, sizeof digest);
  return digest % BUCKETS;
}

/* `needed` is the block's size, or 0 where that is not known. */
static int same(const struct np_entry *entry, const uint8_t *name, uint32_t seed,
                uint32_t fingerprint, size_t needed) {
  return entry->seed == seed && entry->fingerprint == fingerprint &&
         (needed == 0 || entry->size == needed) &&
         memcmp(entry->name, name, sizeof entry->name) == 0;
}

static void *allocate_on_heap(void *context, size_t size, size_t alignment) {
  return aligned_alloc(alignment, size);
}

static void release_on_heap(void *context, void *address) {
  free(address);
}

/* An allocator may run Python, whose collector may end other sessions: no lock is held. */
static void free_blocks(block *first) {
  while (first != NULL) {
    block *next = first->next;
    if (!first->entry.mapped) {
      first->allocator.release(first->allocator.context, first->entry.address);
    }
    free(first);
    first = next;
  }
}

static void free_reserved(np_session *session) {
  void *reserved = session->reserved;
  session->reserved = NULL;
  if (reserved != NULL) session->allocator.release(session->allocator.context, reserved);
}

static int room(void **items, size_t *capacity, size_t count, size_t size) {
  if (count < *capacity) return 1;
  const size_t wanted = *capacity == 0 ? 64 : 2 * *capacity;
  void *grown = realloc(*items, wanted * size);
  if (grown == NULL) return 0;
  *items = grown;
  *capacity = wanted;
  return 1;
}

static size_t add_use(np_session *session, block *block, int how) {
  if (!room((void **)&session->uses, &session->capacity, session->count, sizeof *session->uses)) {
    return SIZE_MAX;
  }
  session->uses[session->count++] = (use){block, how};
  return (size_t)(uintptr_t)block->entry.address;
}

static block *new_block(const struct np_entry *entry) {
  block *item = calloc(1, sizeof *item);
  if (item != NULL) item->entry = *entry;
  return item;
}

/* The provider. XNNPACK calls it while an operator is created, maybe on another thread: the
 * cache's mutex is held in each. */

static int known(const np_session *session, const struct xnn_weights_cache_look_up_key *key) {
  return session->named && key->kernel == session->kernel && key->bias == session->bias;
}

static block *held(np_session *session, uint32_t seed, uint32_t fingerprint, size_t needed) {
  for (size_t i = 0; i < session->count; i++) {
    const use *used = &session->uses[i];
    if (used->how <= NP_ENTRY_MAPPED &&
        same(&used->block->entry, session->name, seed, fingerprint, needed)) {
      return used->block;
    }
  }
  return NULL;
}

static size_t find(np_session *session, uint32_t seed, uint32_t fingerprint, size_t needed) {
  block *found = held(session, seed, fingerprint, needed);
  if (found != NULL) return (size_t)(uintptr_t)found->entry.address;
  found = session->cache->buckets[bucket_of(session->name)];
  while (found != NULL && !same(&found->entry, session->name, seed, fingerprint, needed)) {
    found = found->next;
  }
  if (found != NULL) {
    const size_t offset = add_use(session, found, NP_ENTRY_SHARED);
    if (offset != SIZE_MAX) found->users++;
    return offset;
  }
  /* What this process packed has the size that was needed; what a file offers has any. */
  for (size_t i = 0; needed != 0 && i < session->offer_count; i++) {
    if (!same(&session->offers[i], session->name, seed, fingerprint, needed)) continue;
    block *offered = new_block(&session->offers[i]);
    if (offered == NULL) return SIZE_MAX;
    const size_t offset = add_use(session, offered, NP_ENTRY_MAPPED);
    if (offset == SIZE_MAX) free(offered);
    return offset;
  }
  return SIZE_MAX;
}

static size_t look_up(void *context, const struct xnn_weights_cache_look_up_key *key) {
  np_session *session = context;
  if (!known(session, key)) return SIZE_MAX;
  pthread_mutex_lock(&session->cache->mutex);
  const size_t offset = find(session, key->seed, key->fingerprint_id, session->needed);
  session->last = offset;
  pthread_mutex_unlock(&session->cache->mutex);
  return offset;
}

static void *reserve_space(void *context, size_t size) {
  np_session *session = context;
  session->wanted = size;
  if (session->find || size > SIZE_MAX - 2 * BLOCK_ALIGNMENT) return NULL;
  /* Kernels may read some bytes past the end. */
  const size_t whole =
      (size + XNN_EXTRA_BYTES + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
  free_reserved(session);
  pthread_mutex_lock(&session->cache->mutex);
  /* What notes the block is allocated here: XNNPACK does not look whether it can be inserted. */
  if (session->spare == NULL) session->spare = calloc(1, sizeof *session->spare);
  const int noted =
      session->spare != NULL &&
      room((void **)&session->uses, &session->capacity, session->count, sizeof *session->uses);
  pthread_mutex_unlock(&session->cache->mutex);
  if (!noted) return NULL;
  void *space = session->allocator.allocate(session->allocator.context, whole, BLOCK_ALIGNMENT);
  if (space != NULL) memset((char *)space + size, 0, whole - size);
  session->reserved = space;
  return space;
}

static size_t look_up_or_insert(void *context, const struct xnn_weights_cache_look_up_key *key,
                                void *address, size_t size) {
  np_session *session = context;
  pthread_mutex_lock(&session->cache->mutex);
  size_t offset = SIZE_MAX;
  const int is_known = known(session, key);
  /* After a hit the address may be NULL, and the size anything. */
  const size_t needed = address == NULL ? 0 : size;
  if (is_known) offset = find(session, key->seed, key->fingerprint_id, needed);
  if (offset == SIZE_MAX && address != NULL && address == session->reserved) {
    block *inserted = session->spare;
    inserted->entry = (struct np_entry){{0}, key->seed, key->fingerprint_id, address, size, false};
    inserted->allocator = session->allocator;
    if (is_known) memcpy(inserted->entry.name, session->name, sizeof inserted->entry.name);
    const int how = is_known         ? NP_ENTRY_PACKED
                    : session->named ? NP_ENTRY_UNKNOWN_POINTER
                                     : NP_ENTRY_UNNAMED;
    offset = add_use(session, inserted, how);
    session->reserved = session->spare = NULL;
  }
  session->last = offset;
  pthread_mutex_unlock(&session->cache->mutex);
  return offset;
}

static bool is_finalized(void *context) {
  return atomic_load_explicit(&((np_session *)context)->committed, memory_order_acquire);
}

static void *offset_to_addr(void *context, size_t offset) {
  return (void *)(uintptr_t)offset;
}

/* Sessions are ended by those who began them. */
static enum xnn_status delete_cache(void *context) {
  return xnn_status_success;
}

/* Weights under another address are unknown: such entries belong to one session. */
static enum xnn_status alias_data(void *context, void *alias, void *original) {
  return xnn_status_success;
}

/* Caches */

np_cache *np_cache_new(void) {
  np_cache *cache = calloc(1, sizeof *cache);
  if (cache == NULL) return NULL;
  if (pthread_mutex_init(&cache->mutex, NULL) != 0) {
    free(cache);
    return NULL;
  }
  return cache;
}

void np_cache_free(np_cache *cache) {
  pthread_mutex_destroy(&cache->mutex);
  free(cache);
}

size_t np_cache_count(np_cache *cache) {
  pthread_mutex_lock(&cache->mutex);
  const size_t count = cache->count;
  pthread_mutex_unlock(&cache->mutex);
  return count;
}

size_t np_cache_users(np_cache *cache, const uint8_t *name) {
  size_t users = 0;
  pthread_mutex_lock(&cache->mutex);
  for (block *item = cache->buckets[bucket_of(name)]; item != NULL; item = item->next) {
    if (memcmp(item->entry.name, name, sizeof item->entry.name) == 0) users += item->users;
  }
  pthread_mutex_unlock(&cache->mutex);
  return users;
}

bool np_cache_has(np_cache *cache, const uint8_t *name) {
  return np_cache_users(cache, name) > 0;
}

/* Sessions */

np_session *np_session_begin(np_cache *cache) {
  np_session *session = calloc(1, sizeof *session);
  if (session == NULL) return NULL;
  session->cache = cache;
  session->allocator = (struct np_allocator){allocate_on_heap, release_on_heap, NULL};
  session->provider = (struct xnn_weights_cache_provider){
      session,      look_up,        reserve_space, look_up_or_insert,
      is_finalized, offset_to_addr, delete_cache,  alias_data,
  };
  pthread_mutex_lock(&cache->mutex);
  const int busy = cache->open != NULL;
  if (!busy) cache->open = session;
  pthread_mutex_unlock(&cache->mutex);
  if (busy) {
    free(session);
    return NULL;
  }
  return session;
}

void np_session_allocate_by(np_session *session, const struct np_allocator *allocator) {
  session->allocator = *allocator;
}

bool np_session_offer(np_session *session, const struct np_entry *entry) {
  if (!room((void **)&session->offers, &session->offer_capacity, session->offer_count,
            sizeof *session->offers)) {
    return false;
  }
  session->offers[session->offer_count] = *entry;
  session->offers[session->offer_count++].mapped = true;
  return true;
}

bool np_session_offers(np_session *session, const uint8_t *name) {
  for (size_t i = 0; i < session->offer_count; i++) {
    if (memcmp(session->offers[i].name, name, sizeof session->offers[i].name) == 0) return true;
  }
  for (size_t i = 0; i < session->count; i++) {
    const use *used = &session->uses[i];
    if (used->how <= NP_ENTRY_MAPPED &&
        memcmp(used->block->entry.name, name, sizeof used->block->entry.name) == 0) {
      return true;
    }
  }
  return false;
}

void np_session_next(np_session *session, const void *kernel, const void *bias,
                     const uint8_t *name, bool find) {
  session->kernel = kernel;
  session->bias = bias;
  session->named = name != NULL;
  session->find = find;
  session->needed = session->wanted = 0;
  if (name != NULL) memcpy(session->name, name, sizeof session->name);
  session->last = SIZE_MAX;
}

size_t np_session_wanted(const np_session *session) { return session->wanted; }

void np_session_expect(np_session *session, size_t size) { session->needed = size; }

static struct xnn_weights_cache_look_up_key own_key(const np_session *session, uint32_t layout) {
  return (struct xnn_weights_cache_look_up_key){
      .seed = layout,
      .kernel = session->kernel,
      .bias = session->bias,
      .fingerprint_id = NP_OWN_FINGERPRINT,
  };
}

const void *np_session_find_block(np_session *session, uint32_t layout, size_t size) {
  session->needed = size;
  const struct xnn_weights_cache_look_up_key key = own_key(session, layout);
  const size_t offset = look_up(session, &key);
  return offset == SIZE_MAX ? NULL : (const void *)(uintptr_t)offset;
}

void *np_session_new_block(np_session *session, size_t size) {
  return reserve_space(session, size);
}

void np_session_keep_block(np_session *session, uint32_t layout, void *block, size_t size) {
  const struct xnn_weights_cache_look_up_key key = own_key(session, layout);
  look_up_or_insert(session, &key, block, size); /* what notes it was allocated with its memory */
}

xnn_weights_cache_t np_session_provider(np_session *session) { return &session->provider; }

bool np_session_last(np_session *session, struct np_entry *entry) {
  for (size_t i = session->count; i-- > 0;) {
    const struct np_entry *used = &session->uses[i].block->entry;
    if ((size_t)(uintptr_t)used->address == session->last) {
      *entry = *used;
      return true;
    }
  }
  return false;
}

static void close_session(np_session *session) {
  free(session->offers);
  free(session->spare);
  session->offers = NULL;
  session->spare = NULL;
  session->offer_count = session->offer_capacity = 0;
  session->named = 0;
  if (session->cache->open == session) session->cache->open = NULL;
}

void np_session_commit(np_session *session) {
  np_cache *cache = session->cache;
  free_reserved(session);
  pthread_mutex_lock(&cache->mutex);
  for (size_t i = 0; i < session->count; i++) {
    block *item = session->uses[i].block;
    if (session->uses[i].how != NP_ENTRY_PACKED && session->uses[i].how != NP_ENTRY_MAPPED) {
      continue;
    }
    const size_t bucket = bucket_of(item->entry.name);
    item->users = 1;
    item->next = cache->buckets[bucket];
    cache->buckets[bucket] = item;
    cache->count++;
  }
  close_session(session);
  atomic_store_explicit(&session->committed, 1, memory_order_release);
  pthread_mutex_unlock(&cache->mutex);
}

static void forget(np_cache *cache, block *item) {
  block **link = &cache->buckets[bucket_of(item->entry.name)];
  while (*link != item) link = &(*link)->next;
  *link = item->next;
  cache->count--;
}

void np_session_end(np_session *session) {
  np_cache *cache = session->cache;
  block *gone = NULL;
  free_reserved(session);
  pthread_mutex_lock(&cache->mutex);
  const int committed = is_finalized(session);
  for (size_t i = 0; i < session->count; i++) {
    block *item = session->uses[i].block;
    const int how = session->uses[i].how;
    const int in_cache = how == NP_ENTRY_SHARED ||
                         (committed && (how == NP_ENTRY_PACKED || how == NP_ENTRY_MAPPED));
    if (in_cache) {
      if (--item->users > 0) continue;
      forget(cache, item);
    }
    item->next = gone;
    gone = item;
  }
  close_session(session);
  pthread_mutex_unlock(&cache->mutex);
  free_blocks(gone);
  free(session->uses);
  free(session);
}

size_t np_session_count(np_session *session) { return session->count; }

int np_session_entry(np_session *session, size_t index, struct np_entry *entry) {
  *entry = session->uses[index].block->entry;
  return session->uses[index].how;
}
