/*
 * The one native thread of a process.
 *
 * It carries out the steps of all sessions (ut_step), and sleeps in poll(2) in between: without a timer while
 * all are up. It has all signals blocked but those of its own faults, is named "utracefs" and starts with the
 * first session that needs it. A child has none: a session connects when it has something to write
 * (ut_reg_settle), and that starts one.
 */
#ifndef UTRACEFS_THREAD_H
#define UTRACEFS_THREAD_H

#include "process.h"

/* Once per process, with the lock held: 0 or -errno, -ECANCELED after ut_thread_end. */
int ut_thread_init(void);

/* With the lock held: make sure that there is a thread. 0 or -errno. */
int ut_thread_start(void);
int ut_thread_is_running(void);
int ut_thread_is_current(void);
/* Before a fork, and after it in the parent; without the lock. binding.h */
int ut_thread_pause(void);
void ut_thread_resume(void);
/* For good; without the lock. */
void ut_thread_end(void);

/* The calling thread waits for an answer: what asks meanwhile is a signal handler. */
extern __thread int ut_is_waiting;

#endif
