/* Calls of libc of which the n-th fails, or ends the process. Preload it; np_fault_arm says which,
 * np_fault_disarm how many there were. Until then all calls go through. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum call { WRITE, PWRITE, FSYNC, RENAME, MMAP, OPEN, FTRUNCATE, MALLOC, READ, PREAD, MKDIR, UNLINK };

/* What np_fault_arm takes in place of an errno: half of the bytes; the end of the process. */
enum { SHORT = 0, KILL = -1 };

/* Smaller ones fail within libraries of others, which end the process. */
#define LARGE 65536

static atomic_int armed = -1;  /* the call, -1 for none */
static atomic_long left;       /* calls until the one that fails */
static atomic_long count;      /* calls since np_fault_arm */
static atomic_int failure;     /* errno, or one of the above */

void np_fault_arm(int call, long n, int error) {
  count = 0;
  left = n;
  failure = error;
  armed = call;
}

long np_fault_disarm(void) {
  armed = -1;
  return count;
}

/* Whether this call is the one that fails. */
static int fails(enum call call) {
  if (armed != (int)call) return 0;
  atomic_fetch_add(&count, 1);
  if (atomic_fetch_sub(&left, 1) != 1) return 0;
  if (failure == KILL) kill(getpid(), SIGKILL);
  return 1;
}

#define NEXT(result, name, ...)                                      \
  static result (*next)(__VA_ARGS__);                                \
  if (!next) next = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define FAIL(value)    \
  do {                 \
    errno = failure;   \
    return value;      \
  } while (0)

ssize_t write(int fd, const void *data, size_t size) {
  NEXT(ssize_t, "write", int, const void *, size_t);
  if (fd > 2 && fails(WRITE)) {
    if (failure) FAIL(-1);
    size = size > 1 ? size / 2 : size;
  }
  return next(fd, data, size);
}

#define PWRITE_AS(name, offset)                                       \
  ssize_t name(int fd, const void *data, size_t size, offset at) {    \
    NEXT(ssize_t, #name, int, const void *, size_t, offset);          \
    if (fails(PWRITE)) {                                              \
      if (failure) FAIL(-1);                                          \
      size = size > 1 ? size / 2 : size;                              \
    }                                                                 \
    return next(fd, data, size, at);                                  \
  }
PWRITE_AS(pwrite, off_t)
PWRITE_AS(pwrite64, off64_t)

ssize_t read(int fd, void *data, size_t size) {
  NEXT(ssize_t, "read", int, void *, size_t);
  if (fd > 2 && fails(READ)) {
    if (failure) FAIL(-1);
    size = size > 1 ? size / 2 : size;
  }
  return next(fd, data, size);
}

#define PREAD_AS(name, offset)                                  \
  ssize_t name(int fd, void *data, size_t size, offset at) {    \
    NEXT(ssize_t, #name, int, void *, size_t, offset);          \
    if (fails(PREAD)) {                                         \
      if (failure) FAIL(-1);                                    \
      size = size > 1 ? size / 2 : size;                        \
    }                                                           \
    return next(fd, data, size, at);                            \
  }
PREAD_AS(pread, off_t)
PREAD_AS(pread64, off64_t)

int mkdir(const char *path, mode_t mode) {
  NEXT(int, "mkdir", const char *, mode_t);
  if (fails(MKDIR)) FAIL(-1);
  return next(path, mode);
}

int mkdirat(int folder, const char *path, mode_t mode) {
  NEXT(int, "mkdirat", int, const char *, mode_t);
  if (fails(MKDIR)) FAIL(-1);
  return next(folder, path, mode);
}

int unlink(const char *path) {
  NEXT(int, "unlink", const char *);
  if (fails(UNLINK)) FAIL(-1);
  return next(path);
}

int unlinkat(int folder, const char *path, int flags) {
  NEXT(int, "unlinkat", int, const char *, int);
  if (fails(UNLINK)) FAIL(-1);
  return next(folder, path, flags);
}

#define SYNC_AS(name)            \
  int name(int fd) {             \
    NEXT(int, #name, int);       \
    if (fails(FSYNC)) FAIL(-1);  \
    return next(fd);             \
  }
SYNC_AS(fsync)
SYNC_AS(fdatasync)

int rename(const char *from, const char *to) {
  NEXT(int, "rename", const char *, const char *);
  if (fails(RENAME)) FAIL(-1);
  return next(from, to);
}

int renameat(int from, const char *a, int to, const char *b) {
  NEXT(int, "renameat", int, const char *, int, const char *);
  if (fails(RENAME)) FAIL(-1);
  return next(from, a, to, b);
}

int renameat2(int from, const char *a, int to, const char *b, unsigned flags) {
  NEXT(int, "renameat2", int, const char *, int, const char *, unsigned);
  if (fails(RENAME)) FAIL(-1);
  return next(from, a, to, b, flags);
}

#define MMAP_AS(name, offset)                                                      \
  void *name(void *at, size_t size, int how, int flags, int fd, offset where) {    \
    NEXT(void *, #name, void *, size_t, int, int, int, offset);                    \
    if (fd >= 0 && fails(MMAP)) FAIL(MAP_FAILED);                                  \
    return next(at, size, how, flags, fd, where);                                  \
  }
MMAP_AS(mmap, off_t)
MMAP_AS(mmap64, off64_t)

#define OPEN_AS(name)                                      \
  int name(const char *path, int flags, ...) {             \
    NEXT(int, #name, const char *, int, ...);              \
    va_list rest;                                          \
    va_start(rest, flags);                                 \
    const int mode = va_arg(rest, int);                    \
    va_end(rest);                                          \
    if (fails(OPEN)) FAIL(-1);                             \
    return next(path, flags, mode);                        \
  }
OPEN_AS(open)
OPEN_AS(open64)

#define TRUNCATE_AS(name, offset)        \
  int name(int fd, offset size) {        \
    NEXT(int, #name, int, offset);       \
    if (fails(FTRUNCATE)) FAIL(-1);      \
    return next(fd, size);               \
  }
TRUNCATE_AS(ftruncate, off_t)
TRUNCATE_AS(ftruncate64, off64_t)

/* dlsym allocates: libc's own names are called. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t size) {
  if (size >= LARGE && fails(MALLOC)) FAIL(NULL);
  return __libc_malloc(size);
}

void *calloc(size_t elements, size_t size) {
  if (size && elements >= LARGE / size && fails(MALLOC)) FAIL(NULL);
  return __libc_calloc(elements, size);
}

void *realloc(void *block, size_t size) {
  if (size >= LARGE && fails(MALLOC)) FAIL(NULL);
  return __libc_realloc(block, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
  if (size >= LARGE && fails(MALLOC)) FAIL(NULL);
  return __libc_memalign(alignment, size);
}

int posix_memalign(void **block, size_t alignment, size_t size) {
  if (size >= LARGE && fails(MALLOC)) return failure;
  *block = __libc_memalign(alignment, size);
  return *block ? 0 : ENOMEM;
}
