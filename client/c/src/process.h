/*
 * State of the whole process: one lock, the clock, the environment, the bell of the native thread, and the
 * start of a forked child.
 *
 * During a fork the forking thread holds the lock, so the child finds consistent data.
 */
#ifndef UTRACEFS_PROCESS_H
#define UTRACEFS_PROCESS_H

#include <poll.h>
#include <stdint.h>
#include <sys/mman.h>

#include "connecting.h"
#include "descriptor.h"

/* The environment when the first session was made. It is read once: the program may change its environment
 * at any time, and getenv(3) must not run meanwhile. */
struct ut_settings {
	char directories[2][UT_DIRECTORY]; /* connecting.h */
	uint32_t ring_bytes;	  /* of a ring for the daemon; 0: none */
	uint32_t local_bytes;	  /* of one whose records go over the socket */
};
extern struct ut_settings ut_settings;
/* Reads the environment. A directory that is not NULL, and local_bytes other than 0, are used in place of the
 * environment's. */
void ut_settings_read(struct ut_settings *settings, const char *directory, uint64_t local_bytes);

/* Blocks all signals, so hold it only briefly. Not recursive. ut_unlock sets errno to what it was at ut_lock.
 * The first lock in a child that was forked without the fork handlers initializes it. */
void ut_lock(void);
void ut_unlock(void);

/* Once per process, with the lock held: 0 or -errno. in_children: further initialization of a child. wake: of
 * ut_rings_init. */
int ut_process_init(void (*in_children)(void), void (*wake)(uint32_t ring));
/* Whether this process called ut_process_init, or is an initialized child. */
int ut_process_is_own(void);

/* At the exit of a process other threads may still emit, so nothing is freed from then on. If dlclose(3)
 * unloads this code in a process of one thread, the last destructors free everything. */
extern enum ut_phase { UT_RUNS, UT_EXITS, UT_UNLOADED } ut_phase;
/* After this the library has no state. */
void ut_process_end(void);

/* Whether this child shares its parent's memory but not its descriptors, as after vfork(2): it emits as
 * its parent does, whose thread talks to the daemon. It opens no session. */
int ut_process_is_guest(void);

/* A signal handler on a stack of the least size has no room for a step. Keeps errno. */
int ut_process_is_on_small_stack(void);

/* Wakes the native thread. Callable from anywhere. */
extern struct ut_bell ut_bell;
void ut_wake(void);

/* poll(2) until this time (UINT64_MAX: forever); in a sandbox that refuses it, a short wait.
 * Without the lock. Keeps errno, as the next one. */
void ut_poll(struct pollfd *polled, nfds_t count, uint64_t until);
/* Wait, without the lock, until *word differs from `seen` or the time is `until`. */
void ut_futex_wait(uint32_t *word, uint32_t seen, uint64_t until);
/* Wakes all waiting threads; _wake changes the word, with the lock held. */
void ut_futex_tell(uint32_t *word);
void ut_futex_wake(uint32_t *word);

#endif
