/* One look while waiting awake. */
#ifndef NARROWPASS_RUNTIME_SPIN_WAIT_H
#define NARROWPASS_RUNTIME_SPIN_WAIT_H

static inline void np_spin_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

#endif
