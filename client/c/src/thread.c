#include "thread.h"

#include <limits.h>
#include <link.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

#include "core.h"

/* It calls no library function that needs more; thread-local variables, which stand there, too, are added. */
#define STACK_BYTES (64u << 10)
/* What the end of a process or of the library may take to send what is pending in rings of our own. */
#define CLOSE_NS 500000000ull
#define DEFAULT_PATIENCE_NS 250000000ull
/* Until the next look where there is no waiting for descriptors. */
#define NO_POLL_NS 100000000ull
/* What a fork waits for the end of a step, which never blocks. */
#define PAUSE_NS 1000000000ull

struct ut_settings ut_settings;
struct ut_session *ut_sessions;

/* (One that ThreadSanitizer knows.) */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static sigset_t mask_of_holder;
static int cancel_of_holder;

static pid_t process; /* that the rest belongs to; 0: none yet */
static struct ut_bell bell;
static uint32_t has_thread; /* futex */
static pid_t thread_id;
static unsigned nr_pauses;
static int is_wanted; /* there is to be a thread, though a fork may have sent it away for a moment */
static __thread int is_thread;
static int is_ending;

/* ---- lock and clock */

uint64_t ut_clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static long futex(uint32_t *word, int what, uint32_t value, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, what | FUTEX_PRIVATE_FLAG, value, timeout, NULL, 0);
}

static void block_signals(sigset_t *before)
{
	static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP};
	sigset_t blocked;

	sigfillset(&blocked);
	for (unsigned i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		sigdelset(&blocked, faults[i]);
	pthread_sigmask(SIG_SETMASK, &blocked, before);
}

void ut_lock(void)
{
	sigset_t before;
	int cancel;

	/* Who is cancelled in connect(2) must not take the lock with him. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	block_signals(&before);
	/* A child that was forked past the handlers of fork has one thread, and a lock that nobody gives back. */
	if (process && !ut_rings_are_marked())
		mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&mutex);
	mask_of_holder = before;
	cancel_of_holder = cancel;
}

void ut_unlock(void)
{
	sigset_t before = mask_of_holder;
	int cancel = cancel_of_holder;

	pthread_mutex_unlock(&mutex);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_setcancelstate(cancel, NULL);
}

void ut_futex_wait(uint32_t *word, uint32_t seen, uint64_t until)
{
	uint64_t now = ut_clock_ns();
	struct timespec wait;

	if (now >= until)
		return;
	wait.tv_sec = (time_t)((until - now) / 1000000000u);
	wait.tv_nsec = (long)((until - now) % 1000000000u);
	futex(word, FUTEX_WAIT, seen, &wait);
}

void ut_futex_wake(uint32_t *word)
{
	__atomic_fetch_add(word, 1, __ATOMIC_RELEASE);
	futex(word, FUTEX_WAKE, INT_MAX, NULL);
}

/* ---- the environment */

static int is_number(const char *text, int with_point)
{
	size_t length = strcmp(text, ".") ? strlen(text) : 0;

	for (const char *at = text; *at; at++) {
		if (*at == '.' && with_point)
			with_point = 0;
		else if (*at < '0' || *at > '9')
			return 0;
	}
	return length > 0 && length < 10;
}

/* A number in the environment that makes no sense is not the program's fault: ignored. KiB, as a power of
 * two of bytes. */
static uint64_t wanted_bytes(const char *variable)
{
	const char *text = secure_getenv(variable);

	return text && is_number(text, 0) ? strtoull(text, NULL, 10) * 1024 : DR_DEFAULT_SIZE;
}

static uint32_t ring_bytes(uint64_t bytes)
{
	uint64_t size = DR_MIN_SIZE;

	while (size < bytes && size < DR_MAX_SIZE)
		size *= 2;
	return (uint32_t)size;
}

static void set_directory(struct ut_settings *settings, unsigned index, const char *folder, const char *below)
{
	char *at = settings->directories[index];
	size_t room = sizeof(settings->directories[index]);

	/* One that is too long for a socket's address is none. */
	if ((size_t)snprintf(at, room, "%s%s", folder, below) >= room)
		at[0] = 0;
}

/* utracefs_protocol/places.py has the rule of directories. */
void ut_settings_read(struct ut_settings *settings, const char *directory, uint64_t local_bytes)
{
	const char *chosen = directory ? directory : secure_getenv("UTRACEFS_DIR");
	const char *folder = secure_getenv("XDG_RUNTIME_DIR");
	const char *text;

	memset(settings, 0, sizeof(*settings));
	settings->last_is_ours_alone = -1;
	if (chosen && chosen[0]) {
		set_directory(settings, 0, chosen, "");
	} else {
		if (folder && folder[0] == '/') {
			set_directory(settings, 0, folder, "/utracefs");
		} else {
			snprintf(settings->directories[0], sizeof(settings->directories[0]), "/tmp/utracefs-%u",
				 (unsigned)geteuid());
			settings->last_is_ours_alone = 0;
		}
		set_directory(settings, 1, "/run/utracefs", "");
	}
	text = secure_getenv("UTRACEFS_DATA_RING");
	settings->ring_bytes = text && strcmp(text, "0") == 0 ? 0 : ring_bytes(wanted_bytes("UTRACEFS_RING_KB"));
	settings->local_bytes = ring_bytes(local_bytes ? local_bytes : wanted_bytes("UTRACEFS_BUFFER_KB"));
	text = secure_getenv("UTRACEFS_PATIENCE_S");
	settings->patience_ns = DEFAULT_PATIENCE_NS;
	if (text && is_number(text, 1)) {
		/* Not strtod: its point is the locale's. */
		uint64_t whole = strtoull(text, NULL, 10), part = 0, unit = 1000000000u;
		const char *point = strchr(text, '.');

		for (const char *at = point ? point + 1 : ""; *at; at++)
			part += (uint64_t)(*at - '0') * (unit /= 10);
		settings->patience_ns = (whole > 60 ? 60 : whole) * 1000000000u + (whole >= 60 ? 0 : part);
	}
}

/* ---- the thread */

int ut_thread_is_running(void)
{
	return __atomic_load_n(&has_thread, __ATOMIC_ACQUIRE);
}

int ut_thread_is_current(void)
{
	return is_thread;
}

void ut_thread_wake(void)
{
	ut_bell_ring(&bell);
}

static int timeout_ms(uint64_t due, uint64_t now)
{
	uint64_t left;

	if (due == UINT64_MAX)
		return -1;
	left = due > now ? (due - now + 999999) / 1000000 : 0;
	return left > 60000 ? 60000 : (int)left;
}

static void *run(void *unused)
{
	struct pollfd *polled = NULL;
	size_t room = 0;
	uint32_t never = 0;

	(void)unused;
	is_thread = 1;
	prctl(PR_SET_NAME, "utracefs");
	ut_lock();
	thread_id = gettid();
	while (!is_ending && !nr_pauses && ut_sessions) {
		uint64_t now = ut_clock_ns(), due = UINT64_MAX;
		size_t count = 1;
		int timeout;

		/* The program may have closed it. */
		if (ut_bell_open(&bell))
			due = now + 100000000;
		ut_bell_silence(&bell);
		for (struct ut_session *s = ut_sessions; s; s = s->next) {
			ut_step(s, now);
			ut_futex_wake(&s->changes);
			count++;
		}
		if (count > room) {
			struct pollfd *more = realloc(polled, 2 * count * sizeof(*polled));

			if (more) {
				polled = more;
				room = 2 * count;
			}
		}
		count = 0;
		if (room)
			polled[count++] = (struct pollfd){bell.near_end.fd, POLLIN, 0};
		for (struct ut_session *s = ut_sessions; s; s = s->next) {
			uint64_t of_session = ut_step_due(s);

			due = of_session < due ? of_session : due;
			if (s->socket.fd >= 0 && count < room)
				polled[count++] = (struct pollfd){s->socket.fd, ut_step_events(s), 0};
			else if (s->socket.fd >= 0)
				due = now + 5000000; /* no memory to wait for all of them */
		}
		timeout = timeout_ms(due, now);
		ut_unlock();
		if (poll(polled, count, timeout) < 0 && errno != EINTR)
			ut_futex_wait(&never, 0, ut_clock_ns() + NO_POLL_NS); /* a sandbox that refuses it */
		ut_lock();
	}
	free(polled);
	if (!ut_sessions) { /* no session left: the next starts another thread */
		is_wanted = 0;
		ut_bell_close(&bell);
	}
	__atomic_store_n(&has_thread, 0, __ATOMIC_RELEASE);
	futex(&has_thread, FUTEX_WAKE, INT_MAX, NULL);
	ut_unlock();
	return NULL;
}

/* Whether it has ended, and the kernel has forgotten it: what counts the threads of the process (os.fork of
 * Python) must not see it any more. */
static int await_end(uint64_t until)
{
	pid_t id = 0;

	while (ut_thread_is_running()) {
		ut_thread_wake();
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

/* What a stack needs: STACK_BYTES beside the thread-local variables of all that is loaded. pthread_create
 * only refuses a stack on which these leave no room at all. */
static size_t stack_bytes(void)
{
	size_t sum = STACK_BYTES + 4095;

	dl_iterate_phdr(add_variables, &sum);
	return sum & ~(size_t)4095;
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
	error = ut_bell_open(&bell);
	if (error)
		return error;
	error = pthread_attr_init(&attr);
	if (error)
		return -error;
	/* The lock is held, so the thread inherits a mask in which signals are blocked. */
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

int ut_thread_pause(void)
{
	int saved = errno, is_over;

	if (ut_thread_is_current() || ut_process_is_guest())
		return 0;
	ut_lock();
	ut_process_look();
	nr_pauses++;
	ut_unlock();
	is_over = await_end(ut_clock_ns() + PAUSE_NS);
	errno = saved;
	return is_over ? 0 : -ETIMEDOUT;
}

void ut_thread_resume(void)
{
	int saved = errno;

	if (ut_thread_is_current() || ut_process_is_guest())
		return;
	ut_lock();
	if (nr_pauses && --nr_pauses == 0 && is_wanted)
		ut_thread_start();
	ut_unlock();
	errno = saved;
}

/* ---- fork and the end */

static void start_child(void)
{
	process = getpid();
	ut_rings_mark();
	__atomic_store_n(&has_thread, 0, __ATOMIC_RELEASE);
	thread_id = 0;
	nr_pauses = 0;
	is_wanted = 0;
	ut_emit_start_child();
	ut_rings_start_child();
	ut_bell_close(&bell); /* the parent's */
	for (struct ut_session *s = ut_sessions; s; s = s->next)
		ut_session_start_child(s);
	for (struct ut_session *s = ut_sessions; s; s = s->next)
		if (s->enablers) {
			/* Its words must go on being told. */
			s->state = UT_NEW;
			ut_thread_start();
		}
}

static sigset_t mask_of_fork;
static int cancel_of_fork;

static void before_fork(void)
{
	ut_lock();
	mask_of_fork = mask_of_holder;
	cancel_of_fork = cancel_of_holder;
}

/* (Another handler of fork may have emitted before: then this is a child already, and the lock is free.) */
static void in_child(void)
{
	if (process != getpid()) {
		/* Made anew before there is a thread that waits for it. */
		mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
		pthread_mutex_lock(&mutex);
		start_child();
		pthread_mutex_unlock(&mutex);
	}
	pthread_sigmask(SIG_SETMASK, &mask_of_fork, NULL);
	pthread_setcancelstate(cancel_of_fork, NULL);
}

void ut_process_look(void)
{
	if (process && !ut_rings_are_marked())
		start_child();
}

int ut_process_is_guest(void)
{
	return process && ut_rings_are_marked() && process != getpid();
}

int ut_process_init(void)
{
	int error;

	if (process)
		return 0;
	error = ut_rings_init();
	if (error)
		return error;
	ut_bell_init(&bell);
	ut_emit_init();
	ut_settings_read(&ut_settings, NULL, 0);
	/* An allocator that has handlers of its own must have registered them first: before a fork they run in
	 * reverse, and what holds our lock may allocate. */
	free(malloc(sizeof(sigset_t)));
	error = pthread_atfork(before_fork, ut_unlock, in_child);
	if (error)
		return -error;
	process = getpid();
	return 0;
}

/* The end of the process, or of a program's library that this one was linked into. Rings of the daemon need
 * no flush: it takes in what was committed. */
__attribute__((destructor(101))) static void end(void)
{
	uint64_t until = ut_clock_ns() + CLOSE_NS;
	int must_join;

	if (!process || process != getpid())
		return;
	for (;;) {
		struct ut_session *s;
		uint64_t now = ut_clock_ns();

		ut_lock();
		for (s = ut_sessions; s && !(s->local && s->state == UT_UP && ut_ring_has_records(s)); s = s->next)
			;
		if (!s || now >= until) {
			is_ending = 1;
			must_join = has_thread;
			ut_unlock();
			break;
		}
		ut_unlock();
		ut_session_flush(s, until - now);
	}
	if (must_join)
		await_end(UINT64_MAX);
	ut_lock();
	while (ut_sessions)
		ut_session_end(ut_sessions);
	ut_bell_close(&bell);
	ut_unlock();
}
