/* dlopen and dlsym of glibc. Version 2.34 moved them from libdl into libc under a new version; their
 * first one is in both, so that the extension runs with either. Include it after _GNU_SOURCE. */
#pragma once

#include <dlfcn.h>

#if defined(__x86_64__)
#define NP_FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define NP_FIRST_GLIBC "GLIBC_2.17"
#endif

#ifdef NP_FIRST_GLIBC
__asm__(".symver dlopen, dlopen@" NP_FIRST_GLIBC);
__asm__(".symver dlsym, dlsym@" NP_FIRST_GLIBC);
#endif
