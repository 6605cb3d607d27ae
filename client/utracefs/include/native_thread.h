/*
 * A thread that Python does not know, as long as it waits.
 *
 * It turns between `wait`, which runs no Python, and `step`, which takes the GIL. It is told to end by
 * `state`, looks at that whenever it comes back from either, and stores NONE as its last deed; who waits for
 * that waits on this word with futex(2). So any number of threads may wait, and the thread that ends needs no
 * lock, and not the GIL.
 *
 *     NONE --start--> RUNNING --stop--> STOPPING --the thread--> NONE
 *                        ^------start-------'
 *
 * STOPPING becomes RUNNING again or NONE by a compare-and-swap, which one of the two sides wins. NONE comes
 * some instructions before the kernel has forgotten the thread, so that is waited for, too: what counts the
 * threads of the process (os.fork of Python 3.12 and later, in /proc/self/stat) must not see it any more.
 *
 * `generation` tells a thread that it is not the one that is meant any more: it forked, and goes on as the
 * child's only thread.
 */
#ifndef UTRACEFS_NATIVE_THREAD_H
#define UTRACEFS_NATIVE_THREAD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { UT_NONE = 0, UT_RUNNING = 1, UT_STOPPING = 2 };

/* It runs Python: imports, a logging handler of the program. Python's own threads have 8 MiB, of which such
 * work touches some 100 KiB. */
#define UT_STACK_BYTES (1u << 20)

typedef int (*ut_wait)(void *owner);
typedef int (*ut_step)(void *owner, int happened); /* 0: it was the last */

struct ut_thread {
	void *owner;
	ut_wait wait;
	ut_step step;
	uint32_t state;
	uint32_t generation;
	pid_t tid;
};

static inline int64_t ut_monotonic_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline int ut_thread_goes_on(struct ut_thread *t, uint32_t generation)
{
	return __atomic_load_n(&t->generation, __ATOMIC_ACQUIRE) == generation &&
	       __atomic_load_n(&t->state, __ATOMIC_ACQUIRE) == UT_RUNNING;
}

static void *ut_thread_main(void *arg)
{
	struct ut_thread *t = arg;
	uint32_t generation = t->generation;
	uint32_t stopping = UT_STOPPING;
	int happened = 0;

	__atomic_store_n(&t->tid, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
	prctl(PR_SET_NAME, "utracefs");
	for (;;) {
		while (ut_thread_goes_on(t, generation)) {
			/* The first step comes before the first wait: what woke a thread before may be undone. */
			if (!t->step(t->owner, happened)) {
				uint32_t running = UT_RUNNING;
				if (__atomic_load_n(&t->generation, __ATOMIC_ACQUIRE) == generation)
					__atomic_compare_exchange_n(&t->state, &running, UT_STOPPING, 0,
								    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
				break;
			}
			if (!ut_thread_goes_on(t, generation))
				break;
			happened = t->wait(t->owner);
		}
		if (__atomic_load_n(&t->generation, __ATOMIC_ACQUIRE) != generation)
			return NULL;
		stopping = UT_STOPPING;
		if (__atomic_compare_exchange_n(&t->state, &stopping, UT_NONE, 0, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE))
			break;
	}
	syscall(SYS_futex, &t->state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	return NULL;
}

/* Block all signals in this thread, but for those that a fault of its own raises. */
static inline void ut_block_signals(sigset_t *before)
{
	static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP};
	sigset_t blocked;
	unsigned i;

	sigfillset(&blocked);
	for (i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		sigdelset(&blocked, faults[i]);
	pthread_sigmask(SIG_SETMASK, &blocked, before);
}

static inline void ut_restore_signals(const sigset_t *before)
{
	pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* 0: there is one now. Else an errno. Not two at a time: the GIL is held. */
static inline int ut_thread_start(struct ut_thread *t)
{
	uint32_t stopping = UT_STOPPING;
	pthread_attr_t attr;
	pthread_t made;
	sigset_t before;
	int error;

	if (__atomic_load_n(&t->state, __ATOMIC_ACQUIRE) == UT_RUNNING ||
	    __atomic_compare_exchange_n(&t->state, &stopping, UT_RUNNING, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return 0;
	error = pthread_attr_init(&attr);
	if (error)
		return error;
	pthread_attr_setstacksize(&attr, UT_STACK_BYTES);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	t->generation++;
	t->tid = 0;
	__atomic_store_n(&t->state, UT_RUNNING, __ATOMIC_RELEASE);
	/* Signals are the program's: one that it has blocked everywhere, to wait for it, must not find a thread
	 * that has not. */
	ut_block_signals(&before);
	error = pthread_create(&made, &attr, ut_thread_main, t);
	ut_restore_signals(&before);
	pthread_attr_destroy(&attr);
	if (error)
		__atomic_store_n(&t->state, UT_NONE, __ATOMIC_RELEASE);
	return error;
}

/* It shall end; who calls this wakes it after that. */
static inline void ut_thread_ask_to_stop(struct ut_thread *t)
{
	uint32_t running = UT_RUNNING;

	__atomic_compare_exchange_n(&t->state, &running, UT_STOPPING, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* Whether it has ended, waiting for that until `until_ns`. Without the GIL. */
static inline int ut_thread_await_end(struct ut_thread *t, int64_t until_ns)
{
	pid_t tid, process;
	uint32_t state;
	int64_t left;

	while ((state = __atomic_load_n(&t->state, __ATOMIC_ACQUIRE)) != UT_NONE) {
		struct timespec wait;

		left = until_ns - ut_monotonic_ns();
		if (left <= 0)
			return 0;
		wait.tv_sec = left / 1000000000;
		wait.tv_nsec = left % 1000000000;
		syscall(SYS_futex, &t->state, FUTEX_WAIT_PRIVATE, state, &wait, NULL, 0);
	}
	tid = __atomic_load_n(&t->tid, __ATOMIC_ACQUIRE);
	process = getpid();
	while (tid && syscall(SYS_tgkill, process, tid, 0) == 0 && ut_monotonic_ns() < until_ns)
		sched_yield();
	return 1;
}

static inline int ut_thread_is_current(struct ut_thread *t)
{
	return __atomic_load_n(&t->state, __ATOMIC_ACQUIRE) != UT_NONE &&
	       __atomic_load_n(&t->tid, __ATOMIC_ACQUIRE) == (pid_t)syscall(SYS_gettid);
}

/* In a forked child: the thread is not there. */
static inline void ut_thread_forget(struct ut_thread *t)
{
	t->generation++;
	t->tid = 0;
	__atomic_store_n(&t->state, UT_NONE, __ATOMIC_RELEASE);
}

#endif
