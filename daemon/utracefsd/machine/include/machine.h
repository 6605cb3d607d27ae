/* The present time and cpu, for compiled modules that need them once per record. */
#ifndef UTRACEFS_MACHINE_H
#define UTRACEFS_MACHINE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdint.h>
#include <time.h>

/* A clock of clock_gettime(2) in nanoseconds. */
static inline uint64_t machine_clock_ns(clockid_t clock)
{
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline int machine_cpu(void)
{
    int cpu = sched_getcpu();
    return cpu < 0 ? 0 : cpu;
}

#endif
