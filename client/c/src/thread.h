/*
 * The one native thread of a process.
 *
 * It runs the steps of all sessions (ut_step), and sleeps in poll(2) in between: without a timer if all are
 * up. It blocks all signals except those of its own faults, is named "utracefs" and starts with the first
 * session that needs it. A child has none: a session connects when it has a record (ut_reg_find_place),
 * which starts one.
 */
#ifndef UTRACEFS_THREAD_H
#define UTRACEFS_THREAD_H

#include "process.h"

/* Once per process, with the lock held: 0 or -errno, -ECANCELED after ut_thread_end. */
int ut_thread_init(void);

/* With the lock held: starts the thread if it is not running. 0 or -errno. */
int ut_thread_start(void);
int ut_thread_is_running(void);
int ut_thread_is_current(void);
/* Permanently; without the lock. Whether it has ended. */
int ut_thread_end(void);

/* The calling thread waits for an answer, so a call on it comes from a signal handler. */
extern __thread int ut_is_waiting;

#endif
