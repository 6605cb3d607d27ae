/* The thread that logs warnings: at most one at a time. It starts with a warning and ends when it has logged
 * all. */
#ifndef UTRACEFS_WARNING_THREAD_H
#define UTRACEFS_WARNING_THREAD_H

#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

static unsigned ut_nr_noted; /* warnings since the thread started; 0: there is none */
static pid_t ut_warned_process;
static __thread int ut_is_warning_thread;
static void *(*ut_run_warnings)(void *);

static void *ut_run_warning_thread(void *unused)
{
	ut_is_warning_thread = 1;
	prctl(PR_SET_NAME, "utracefs-warn");
	return ut_run_warnings(unused);
}

/* A warning has been stored. Called with signals blocked, which the thread inherits, and by one thread at a
 * time. In a child of fork(2) nothing happens until the interpreter there has its locks again. */
static inline void ut_warning_noted(void *(*run)(void *))
{
	pthread_attr_t attr;
	pthread_t made;
	int error;

	if (getpid() != ut_warned_process || __atomic_fetch_add(&ut_nr_noted, 1, __ATOMIC_ACQ_REL))
		return;
	ut_run_warnings = run;
	error = pthread_attr_init(&attr);
	if (!error) {
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		error = pthread_create(&made, &attr, ut_run_warning_thread, NULL);
		pthread_attr_destroy(&attr);
	}
	if (error) /* the next warning tries again */
		__atomic_store_n(&ut_nr_noted, 0, __ATOMIC_RELEASE);
}

static inline unsigned ut_warnings_noted(void)
{
	return __atomic_load_n(&ut_nr_noted, __ATOMIC_ACQUIRE);
}

/* The thread has logged all warnings: whether it ends, since none was noted after the first `seen`. */
static inline int ut_warnings_are_told(unsigned seen)
{
	return __atomic_compare_exchange_n(&ut_nr_noted, &seen, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* In the process that installs this, and in its children: there is no such thread. */
static inline void ut_warnings_start_process(void)
{
	ut_warned_process = getpid();
	__atomic_store_n(&ut_nr_noted, 0, __ATOMIC_RELEASE);
}

#endif
