#include "thread.h"

#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "connection.h"

/* It calls no library function that needs more; the size of the thread-local variables, which are on the
 * stack, too, is added. */
#define STACK_BYTES (64u << 10)
/* Limit at the end of the process: a sandbox may prevent waking the thread. */
#define END_NS 500000000ull
#define UNLOAD_NS 10000000000ull /* the same before dlclose(3) unloads it */
/* Limit of a fork's wait for the end of a step, which never blocks. */
#define PAUSE_NS 1000000000ull

static uint32_t has_thread; /* futex */
static pid_t thread_id;
static unsigned nr_pauses;
static int is_wanted; /* there should be a thread, though a fork may have stopped it for a moment */
static __thread int is_thread;
static int is_ending;
static int is_child;
__thread int ut_is_waiting;

int ut_thread_is_running(void)
{
	return __atomic_load_n(&has_thread, __ATOMIC_ACQUIRE);
}

int ut_thread_is_current(void)
{
	return is_thread;
}

static void *run(void *unused)
{
	/* A session without a place here is looked at by time. */
	static struct pollfd polled[UT_MAX_RINGS + 1];

	(void)unused;
	is_thread = 1;
	prctl(PR_SET_NAME, "utracefs");
	ut_lock();
	thread_id = gettid();
	while (!is_ending && !nr_pauses && ut_sessions) {
		uint64_t now = ut_clock_ns(), due = UINT64_MAX;
		nfds_t count = 1;

		/* The program may have closed it. Without a descriptor for it the thread looks now and then. */
		if (ut_bell_open(&ut_bell))
			due = now + 100000000;
		/* Before the steps: a ring during one of them must wake the next poll. */
		ut_bell_silence(&ut_bell);
		for (struct ut_session *s = ut_sessions; s; s = s->next) {
			ut_step(s, now);
			ut_futex_wake(&s->changes);
			due = ut_step_due(s) < due ? ut_step_due(s) : due;
			if (s->socket.fd < 0)
				continue;
			if (count <= UT_MAX_RINGS)
				polled[count++] = (struct pollfd){s->socket.fd, ut_step_events(s), 0};
			else if (due > now + 5000000)
				due = now + 5000000;
		}
		polled[0] = (struct pollfd){ut_bell.near_end.fd, POLLIN, 0};
		/* Wait without the lock: the program's threads take it to register and to end. */
		ut_unlock();
		ut_poll(polled, count, due);
		ut_say_warnings(); /* those of this step have woken us */
		ut_lock();
	}
	if (is_ending) { /* those of a step that the program's own thread did last */
		ut_unlock();
		ut_say_warnings();
		ut_lock();
	}
	/* has_thread is last: a fork and an exit wait for it. */
	if (!ut_sessions) { /* no session left: the next one starts another thread */
		is_wanted = 0;
		ut_bell_close(&ut_bell);
	}
	__atomic_store_n(&has_thread, 0, __ATOMIC_RELEASE);
	ut_futex_tell(&has_thread);
	ut_unlock();
	return NULL;
}

/* Whether it has ended, and the kernel has removed it: a count of the process's threads (os.fork of
 * Python) must not include it. */
static int await_end(uint64_t until)
{
	pid_t id = 0;

	while (ut_thread_is_running()) {
		ut_lock(); /* without sessions the thread closes the bell */
		ut_wake();
		ut_unlock();
		if (ut_clock_ns() >= until)
			return 0;
		ut_futex_wait(&has_thread, 1, until);
	}
	ut_lock();
	id = ut_thread_is_running() ? 0 : thread_id;
	ut_unlock();
	while (id && syscall(SYS_tgkill, getpid(), id, 0) == 0 && ut_clock_ns() < until)
		sched_yield();
	return 1;
}

static int add_variables(struct dl_phdr_info *object, size_t size, void *sum)
{
	(void)size;
	for (int i = 0; i < object->dlpi_phnum; i++)
		if (object->dlpi_phdr[i].p_type == PT_TLS)
			*(size_t *)sum += object->dlpi_phdr[i].p_memsz + object->dlpi_phdr[i].p_align;
	return 0;
}

/* Stack size: STACK_BYTES and the thread-local variables of all libraries loaded at the first call; of later
 * ones these are elsewhere. pthread_create refuses a stack only if these leave no space. A forked child does
 * not look again: it would copy a page of each library. */
static size_t stack_bytes(void)
{
	static size_t found;

	if (!found) {
		size_t sum = STACK_BYTES + 4095;

		dl_iterate_phdr(add_variables, &sum);
		found = sum & ~(size_t)4095;
	}
	return found;
}

int ut_thread_start(void)
{
	pthread_attr_t attr;
	pthread_t made;
	size_t least;
	int error;

	if (is_ending || ut_process_is_guest())
		return -ECANCELED;
	is_wanted = 1;
	if (has_thread || nr_pauses)
		return 0;
	error = pthread_attr_init(&attr);
	if (error)
		return -error;
	/* The lock is held, so the thread inherits a mask with signals blocked. */
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	least = stack_bytes();
	__atomic_store_n(&has_thread, 1, __ATOMIC_RELEASE);
	for (size_t bytes = least; bytes <= 16 * least; bytes *= 2) {
		error = pthread_attr_setstacksize(&attr, bytes);
		if (!error)
			error = pthread_create(&made, &attr, run, NULL);
		if (error != EINVAL)
			break;
	}
	pthread_attr_destroy(&attr);
	if (error)
		__atomic_store_n(&has_thread, 0, __ATOMIC_RELEASE);
	return -error;
}

/* Both without the lock. */

UT_EXPORTED int utb_pause(void)
{
	int error = errno, is_over;

	if (ut_thread_is_current() || ut_process_is_guest())
		return 0;
	ut_lock();
	nr_pauses++;
	ut_unlock();
	is_over = await_end(ut_clock_ns() + PAUSE_NS);
	errno = error;
	return is_over ? 0 : -ETIMEDOUT;
}

UT_EXPORTED void utb_resume(void)
{
	if (ut_thread_is_current() || ut_process_is_guest())
		return;
	ut_lock();
	if (nr_pauses && --nr_pauses == 0 && is_wanted)
		ut_thread_start();
	ut_unlock();
}

/* ---- fork and the end */

static void start_child(void)
{
	__atomic_store_n(&has_thread, 0, __ATOMIC_RELEASE);
	thread_id = 0;
	nr_pauses = 0;
	is_wanted = 0;
	ut_is_waiting = 0;
	is_child = 1;
	for (struct ut_session *s = ut_sessions; s; s = s->next)
		ut_connection_start_child(s);
	for (struct ut_session *s = ut_sessions; s; s = s->next)
		if (s->enablers) {
			/* Its enable words must still be updated. */
			ut_go(s, UT_WANTED);
			ut_thread_start();
		}
}

/* A forked child may end without a further call: over the socket its records go at once. */
static void wake(uint32_t ring)
{
	if (!is_child || ut_process_is_on_small_stack() || ut_process_is_guest() || ut_is_waiting) {
		ut_wake();
		return;
	}
	ut_lock();
	for (struct ut_session *s = ut_sessions; s; s = s->next)
		if (s->ring == ring && s->forked_at && ut_sends(s))
			ut_step(s, ut_clock_ns());
	ut_wake();
	ut_unlock();
}

int ut_thread_init(void)
{
	return is_ending ? -ECANCELED : ut_process_init(start_child, wake);
}

int ut_thread_end(void)
{
	ut_lock();
	is_ending = 1;
	ut_unlock();
	return await_end(ut_clock_ns() + (ut_phase == UT_UNLOADED ? UNLOAD_NS : END_NS));
}
