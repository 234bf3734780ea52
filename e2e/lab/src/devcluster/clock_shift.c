/* A library for LD_PRELOAD: the time of day of a process is CLOCK_SHIFT seconds ahead. Its monotonic clocks are as they are. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *time) {
  int result = syscall(SYS_clock_gettime, id, time);
  if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
    const char *shift = getenv("CLOCK_SHIFT");
    time->tv_sec += shift ? atol(shift) : 0;
  }
  return result;
}
