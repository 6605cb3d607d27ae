/*
 * What all of the process shares: one lock, the clock, the environment, the bell of the native thread, and
 * the moment at which a child becomes a process of its own.
 *
 * At a fork the forking thread holds the lock, so the child finds nothing half done.
 */
#ifndef UTRACEFS_PROCESS_H
#define UTRACEFS_PROCESS_H

#include <poll.h>
#include <stdint.h>

#include "descriptor.h"

/* The environment as it was when the first session was made: the program may change its own at any time, and
 * getenv(3) must not run meanwhile. */
struct ut_settings {
	char directories[2][108]; /* of the sockets, best first; "" for none */
	uint32_t ring_bytes;	  /* to ask for; 0: none */
	uint32_t local_bytes;	  /* of a ring of our own */
	uint64_t patience_ns;
};
extern struct ut_settings ut_settings;
/* What the environment says now. directory: instead of its own; or NULL. local_bytes: the same; or 0. */
void ut_settings_read(struct ut_settings *settings, const char *directory, uint64_t local_bytes);

/* Blocks all signals, so not for long. Not twice. */
void ut_lock(void);
void ut_unlock(void);

uint64_t ut_clock_ns(void);

/* Once per process, with the lock held: 0 or -errno. in_children: what else a child must begin anew. */
int ut_process_init(void (*in_children)(void));
/* With the lock held: a child that was forked past the handlers of fork becomes one here. */
void ut_process_look(void);
/* Whether this is the process that called ut_process_init, or a child that has become one. */
int ut_process_is_own(void);

/* Whether this is a child that shares its parent's memory but not its descriptors, as vfork(2) makes: it
 * emits as its parent, and has the parent's thread talk to the daemon. It opens no session. */
int ut_process_is_guest(void);

/* The native thread has something to do. From anywhere. */
extern struct ut_bell ut_bell;
void ut_wake(void);

/* poll(2); in a sandbox that refuses it, a short wait. Without the lock. */
void ut_poll(struct pollfd *polled, nfds_t count, int timeout_ms);
/* Wait, without the lock, until *word is not `seen` any more or `until` is over. */
void ut_futex_wait(uint32_t *word, uint32_t seen, uint64_t until);
/* Wake those that wait; _wake changes the word, with the lock held. */
void ut_futex_tell(uint32_t *word);
void ut_futex_wake(uint32_t *word);

#endif
