/*
 * The lock, the clock, the one native thread of a process, and what becomes of both at a fork.
 *
 * The thread carries out the steps of all sessions (ut_step), and sleeps in poll(2) in between: without a
 * timer while all are up. It has all signals blocked but those of its own faults, is named "utracefs" and
 * starts with the first session that needs it.
 *
 * At a fork the forking thread holds the lock, so the child finds nothing half done. The child has no
 * thread: a session connects when it has something to write (ut_reg_settle), and that starts one.
 */
#ifndef UTRACEFS_THREAD_H
#define UTRACEFS_THREAD_H

#include <stdint.h>

struct ut_session;

/* The environment as it was when the first session was made: the program may change its own at any time, and
 * getenv(3) must not run meanwhile. */
struct ut_settings {
	char directories[2][108]; /* of the sockets, best first; "" for none */
	int last_is_ours_alone;	  /* index of the directory that must be ours alone, or -1 */
	uint32_t ring_bytes;	  /* to ask for; 0: none */
	uint32_t local_bytes;	  /* of a ring of our own */
	uint64_t patience_ns;
};
extern struct ut_settings ut_settings;
/* What the environment says now. directory: instead of its own; or NULL. local_bytes: the same; or 0. */
void ut_settings_read(struct ut_settings *settings, const char *directory, uint64_t local_bytes);

/* All sessions, newest first. With the lock held. */
extern struct ut_session *ut_sessions;

/* Blocks all signals, so not for long. Not twice. */
void ut_lock(void);
void ut_unlock(void);

uint64_t ut_clock_ns(void);

/* Once per process, with the lock held: 0 or -errno. */
int ut_process_init(void);
/* With the lock held: a child that was forked past the handlers of fork becomes one here. */
void ut_process_look(void);

/* Whether this is a child that shares its parent's memory but not its descriptors, as vfork(2) makes: it
 * emits as its parent, and has the parent's thread talk to the daemon. It opens no session. */
int ut_process_is_guest(void);

/* With the lock held: make sure that there is a thread. 0 or -errno. */
int ut_thread_start(void);
int ut_thread_is_running(void);
/* Before a fork, and after it in the parent; without the lock. binding.h */
int ut_thread_pause(void);
void ut_thread_resume(void);
int ut_thread_is_current(void);
/* It has something to do. From anywhere. */
void ut_thread_wake(void);

/* Wait, without the lock, until *word is not `seen` any more or `until` is over. */
void ut_futex_wait(uint32_t *word, uint32_t seen, uint64_t until);
/* With the lock held: a step is over. */
void ut_futex_wake(uint32_t *word);

#endif
