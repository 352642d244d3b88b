/* Calls of libc of which the n-th fails, or ends the process, or after which the clock is another.
 * Preload it; np_fault_arm says which, np_fault_disarm how many there were. Until then all calls go
 * through. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>

enum call { WRITE, PWRITE, FSYNC, RENAME, MMAP, OPEN, FTRUNCATE, MALLOC, READ, PREAD, MKDIR, UNLINK,
            LINK, LOCK, CLOSE, STAT, READDIR, UTIME, LSEEK, CHMOD, RMDIR, CLOCK, OWN, THREAD };

/* What np_fault_arm takes in place of an errno: half of the bytes; the end of the process. */
enum { SHORT = 0, KILL = -1 };

/* Smaller ones fail within libraries of others, which end the process. */
#define LARGE 65536

#define YEAR 31557600L

static atomic_int armed = -1;  /* the call, -1 for none */
static atomic_long left;       /* calls until the one that fails */
static atomic_long count;      /* calls since np_fault_arm */
static atomic_int failure;     /* errno, or one of the above; years for the clock */
static atomic_long shift;      /* of the clock, in seconds */

/* The code of the native backend: calls of OWN are those from there. */
static struct { uintptr_t start, end; } own[64];
static int owned;

static int find_own(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size, (void)unused;
  if (!strstr(info->dlpi_name, "narrowpass_xnn_cpu/")) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    if (part->p_type != PT_LOAD || !(part->p_flags & PF_X) || owned == 64) continue;
    own[owned].start = info->dlpi_addr + part->p_vaddr;
    own[owned].end = own[owned].start + part->p_memsz;
    owned++;
  }
  return 0;
}

static int is_own(const void *caller) {
  for (int i = 0; i < owned; i++)
    if ((uintptr_t)caller >= own[i].start && (uintptr_t)caller < own[i].end) return 1;
  return 0;
}

void np_fault_arm(int call, long n, int error) {
  owned = 0;
  if (call == OWN) dl_iterate_phdr(find_own, NULL);
  shift = 0;
  count = 0;
  left = n;
  failure = error;
  armed = call;
}

long np_fault_disarm(void) {
  armed = -1;
  shift = 0;
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

/* Half of the bytes, or one, are those of the first part. */
#define VECTOR(call)                                               \
  struct iovec first;                                              \
  if (fd > 2 && fails(call)) {                                     \
    if (failure) FAIL(-1);                                         \
    first = parts[0];                                              \
    first.iov_len = first.iov_len > 1 ? first.iov_len / 2 : first.iov_len; \
    parts = &first, count_of = 1;                                  \
  }

#define VECTOR_AS(name, call)                                 \
  ssize_t name(int fd, const struct iovec *parts, int count_of) { \
    NEXT(ssize_t, #name, int, const struct iovec *, int);     \
    VECTOR(call)                                              \
    return next(fd, parts, count_of);                         \
  }
VECTOR_AS(readv, READ)
VECTOR_AS(writev, WRITE)

#define VECTOR_AT_AS(name, call, offset)                                   \
  ssize_t name(int fd, const struct iovec *parts, int count_of, offset at) { \
    NEXT(ssize_t, #name, int, const struct iovec *, int, offset);          \
    VECTOR(call)                                                           \
    return next(fd, parts, count_of, at);                                  \
  }
VECTOR_AT_AS(preadv, PREAD, off_t)
VECTOR_AT_AS(preadv64, PREAD, off64_t)
VECTOR_AT_AS(pwritev, PWRITE, off_t)
VECTOR_AT_AS(pwritev64, PWRITE, off64_t)

/* os.preadv and os.pwritev call these. */
#define VECTOR_FLAGS_AS(name, call, offset)                                           \
  ssize_t name(int fd, const struct iovec *parts, int count_of, offset at, int flags) { \
    NEXT(ssize_t, #name, int, const struct iovec *, int, offset, int);                \
    VECTOR(call)                                                                      \
    return next(fd, parts, count_of, at, flags);                                      \
  }
VECTOR_FLAGS_AS(preadv2, PREAD, off_t)
VECTOR_FLAGS_AS(preadv64v2, PREAD, off64_t)
VECTOR_FLAGS_AS(pwritev2, PWRITE, off_t)
VECTOR_FLAGS_AS(pwritev64v2, PWRITE, off64_t)

/* Copies within the kernel are writes. */
#define SENDFILE_AS(name, offset)                                \
  ssize_t name(int to, int from, offset *at, size_t size) {      \
    NEXT(ssize_t, #name, int, int, offset *, size_t);            \
    if (fails(WRITE)) {                                          \
      if (failure) FAIL(-1);                                     \
      size = size > 1 ? size / 2 : size;                         \
    }                                                            \
    return next(to, from, at, size);                             \
  }
SENDFILE_AS(sendfile, off_t)
SENDFILE_AS(sendfile64, off64_t)

ssize_t copy_file_range(int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags) {
  NEXT(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
  if (fails(WRITE)) {
    if (failure) FAIL(-1);
    size = size > 1 ? size / 2 : size;
  }
  return next(from, a, to, b, size, flags);
}

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
  if (fails(flags & AT_REMOVEDIR ? RMDIR : UNLINK)) FAIL(-1);
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

int msync(void *at, size_t size, int flags) {
  NEXT(int, "msync", void *, size_t, int);
  if (fails(FSYNC)) FAIL(-1);
  return next(at, size, flags);
}

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

/* What is opened by its name in a folder, as bundles and files of the cache are. */
#define OPENAT_AS(name)                                    \
  int name(int folder, const char *path, int flags, ...) { \
    NEXT(int, #name, int, const char *, int, ...);         \
    va_list rest;                                          \
    va_start(rest, flags);                                 \
    const int mode = va_arg(rest, int);                    \
    va_end(rest);                                          \
    if (fails(OPEN)) FAIL(-1);                             \
    return next(folder, path, flags, mode);                \
  }
OPENAT_AS(openat)
OPENAT_AS(openat64)

#define FOPEN_AS(name)                               \
  FILE *name(const char *path, const char *how) {    \
    NEXT(FILE *, #name, const char *, const char *); \
    if (fails(OPEN)) FAIL(NULL);                     \
    return next(path, how);                          \
  }
FOPEN_AS(fopen)
FOPEN_AS(fopen64)

DIR *opendir(const char *path) {
  NEXT(DIR *, "opendir", const char *);
  if (fails(OPEN)) FAIL(NULL);
  return next(path);
}

DIR *fdopendir(int fd) {
  NEXT(DIR *, "fdopendir", int);
  if (fails(OPEN)) FAIL(NULL);
  return next(fd);
}

#define TRUNCATE_AS(name, offset)        \
  int name(int fd, offset size) {        \
    NEXT(int, #name, int, offset);       \
    if (fails(FTRUNCATE)) FAIL(-1);      \
    return next(fd, size);               \
  }
TRUNCATE_AS(ftruncate, off_t)
TRUNCATE_AS(ftruncate64, off64_t)

#define ALLOCATE_AS(name, offset)              \
  int name(int fd, offset at, offset size) {   \
    NEXT(int, #name, int, offset, offset);     \
    if (fails(FTRUNCATE)) return failure;      \
    return next(fd, at, size);                 \
  }
ALLOCATE_AS(posix_fallocate, off_t)
ALLOCATE_AS(posix_fallocate64, off64_t)

int link(const char *from, const char *to) {
  NEXT(int, "link", const char *, const char *);
  if (fails(LINK)) FAIL(-1);
  return next(from, to);
}

int linkat(int from, const char *a, int to, const char *b, int flags) {
  NEXT(int, "linkat", int, const char *, int, const char *, int);
  if (fails(LINK)) FAIL(-1);
  return next(from, a, to, b, flags);
}

int flock(int fd, int operation) {
  NEXT(int, "flock", int, int);
  if (fails(LOCK)) FAIL(-1);
  return next(fd, operation);
}

#define FCNTL_AS(name)                                                           \
  int name(int fd, int command, ...) {                                           \
    NEXT(int, #name, int, int, ...);                                             \
    va_list rest;                                                                \
    va_start(rest, command);                                                     \
    void *argument = va_arg(rest, void *);                                       \
    va_end(rest);                                                                \
    if ((command == F_SETLK || command == F_SETLKW) && fails(LOCK)) FAIL(-1);    \
    return next(fd, command, argument);                                          \
  }
FCNTL_AS(fcntl)
FCNTL_AS(fcntl64)

/* The descriptor is gone, whatever close says. */
int close(int fd) {
  NEXT(int, "close", int);
  if (fd > 2 && fails(CLOSE)) {
    next(fd);
    FAIL(-1);
  }
  return next(fd);
}

#define STAT_AS(name, type)                        \
  int name(const char *path, struct type *to) {    \
    NEXT(int, #name, const char *, struct type *); \
    if (fails(STAT)) FAIL(-1);                     \
    return next(path, to);                         \
  }
STAT_AS(stat, stat)
STAT_AS(stat64, stat64)
STAT_AS(lstat, stat)
STAT_AS(lstat64, stat64)

#define FSTAT_AS(name, type)               \
  int name(int fd, struct type *to) {      \
    NEXT(int, #name, int, struct type *);  \
    if (fails(STAT)) FAIL(-1);             \
    return next(fd, to);                   \
  }
FSTAT_AS(fstat, stat)
FSTAT_AS(fstat64, stat64)

#define FSTATAT_AS(name, type)                                     \
  int name(int fd, const char *path, struct type *to, int flags) { \
    NEXT(int, #name, int, const char *, struct type *, int);       \
    if (fails(STAT)) FAIL(-1);                                     \
    return next(fd, path, to, flags);                              \
  }
FSTATAT_AS(fstatat, stat)
FSTATAT_AS(fstatat64, stat64)

int statx(int folder, const char *path, int flags, unsigned mask, struct statx *to) {
  NEXT(int, "statx", int, const char *, int, unsigned, struct statx *);
  if (fails(STAT)) FAIL(-1);
  return next(folder, path, flags, mask, to);
}

/* The names that libraries built for an old glibc call. */
#define OLD_STAT_AS(name, type)                                 \
  int name(int version, const char *path, struct type *to) {    \
    NEXT(int, #name, int, const char *, struct type *);         \
    if (fails(STAT)) FAIL(-1);                                  \
    return next(version, path, to);                             \
  }
OLD_STAT_AS(__xstat, stat)
OLD_STAT_AS(__xstat64, stat64)
OLD_STAT_AS(__lxstat, stat)
OLD_STAT_AS(__lxstat64, stat64)

#define OLD_FSTAT_AS(name, type)                   \
  int name(int version, int fd, struct type *to) { \
    NEXT(int, #name, int, int, struct type *);     \
    if (fails(STAT)) FAIL(-1);                     \
    return next(version, fd, to);                  \
  }
OLD_FSTAT_AS(__fxstat, stat)
OLD_FSTAT_AS(__fxstat64, stat64)

int access(const char *path, int mode) {
  NEXT(int, "access", const char *, int);
  if (fails(STAT)) FAIL(-1);
  return next(path, mode);
}

int faccessat(int folder, const char *path, int mode, int flags) {
  NEXT(int, "faccessat", int, const char *, int, int);
  if (fails(STAT)) FAIL(-1);
  return next(folder, path, mode, flags);
}

ssize_t readlink(const char *path, char *to, size_t size) {
  NEXT(ssize_t, "readlink", const char *, char *, size_t);
  if (fails(STAT)) FAIL(-1);
  return next(path, to, size);
}

ssize_t readlinkat(int folder, const char *path, char *to, size_t size) {
  NEXT(ssize_t, "readlinkat", int, const char *, char *, size_t);
  if (fails(STAT)) FAIL(-1);
  return next(folder, path, to, size);
}

#define READDIR_AS(name, type)       \
  struct type *name(DIR *folder) {   \
    NEXT(struct type *, #name, DIR *); \
    if (fails(READDIR)) FAIL(NULL);  \
    return next(folder);             \
  }
READDIR_AS(readdir, dirent)
READDIR_AS(readdir64, dirent64)

int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
  NEXT(int, "utimensat", int, const char *, const struct timespec[2], int);
  if (fails(UTIME)) FAIL(-1);
  return next(folder, path, times, flags);
}

int futimens(int fd, const struct timespec times[2]) {
  NEXT(int, "futimens", int, const struct timespec[2]);
  if (fails(UTIME)) FAIL(-1);
  return next(fd, times);
}

int utime(const char *path, const struct utimbuf *times) {
  NEXT(int, "utime", const char *, const struct utimbuf *);
  if (fails(UTIME)) FAIL(-1);
  return next(path, times);
}

int utimes(const char *path, const struct timeval times[2]) {
  NEXT(int, "utimes", const char *, const struct timeval[2]);
  if (fails(UTIME)) FAIL(-1);
  return next(path, times);
}

#define LSEEK_AS(name, offset)                 \
  offset name(int fd, offset at, int whence) { \
    NEXT(offset, #name, int, offset, int);     \
    if (fails(LSEEK)) FAIL(-1);                \
    return next(fd, at, whence);               \
  }
LSEEK_AS(lseek, off_t)
LSEEK_AS(lseek64, off64_t)

int chmod(const char *path, mode_t mode) {
  NEXT(int, "chmod", const char *, mode_t);
  if (fails(CHMOD)) FAIL(-1);
  return next(path, mode);
}

int fchmod(int fd, mode_t mode) {
  NEXT(int, "fchmod", int, mode_t);
  if (fails(CHMOD)) FAIL(-1);
  return next(fd, mode);
}

int fchmodat(int folder, const char *path, mode_t mode, int flags) {
  NEXT(int, "fchmodat", int, const char *, mode_t, int);
  if (fails(CHMOD)) FAIL(-1);
  return next(folder, path, mode, flags);
}

int fchown(int fd, uid_t user, gid_t group) {
  NEXT(int, "fchown", int, uid_t, gid_t);
  if (fails(CHMOD)) FAIL(-1);
  return next(fd, user, group);
}

int rmdir(const char *path) {
  NEXT(int, "rmdir", const char *);
  if (fails(RMDIR)) FAIL(-1);
  return next(path);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*start)(void *), void *of) {
  NEXT(int, "pthread_create", pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (fails(THREAD)) return failure;
  return next(thread, how, start, of);
}

/* From the n-th look at the clock on it is years ahead or behind. */
int clock_gettime(clockid_t clock, struct timespec *now) {
  NEXT(int, "clock_gettime", clockid_t, struct timespec *);
  const int found = next(clock, now);
  if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return found;
  if (fails(CLOCK)) shift = failure * YEAR;
  now->tv_sec += shift;
  return found;
}

time_t time(time_t *to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to) *to = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return 0;
}

/* Smaller ones fail where the caller is ours. */
#define FAILS_OF(size) \
  (((size) >= LARGE && fails(MALLOC)) || \
   (armed == OWN && is_own(__builtin_return_address(0)) && fails(OWN)))

/* dlsym allocates: libc's own names are called. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t size) {
  if (FAILS_OF(size)) FAIL(NULL);
  return __libc_malloc(size);
}

void *calloc(size_t elements, size_t size) {
  if (FAILS_OF(size && elements >= LARGE / size ? LARGE : 0)) FAIL(NULL);
  return __libc_calloc(elements, size);
}

void *realloc(void *block, size_t size) {
  if (FAILS_OF(size)) FAIL(NULL);
  return __libc_realloc(block, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
  if (FAILS_OF(size)) FAIL(NULL);
  return __libc_memalign(alignment, size);
}

int posix_memalign(void **block, size_t alignment, size_t size) {
  if (FAILS_OF(size)) return failure;
  *block = __libc_memalign(alignment, size);
  return *block ? 0 : ENOMEM;
}
