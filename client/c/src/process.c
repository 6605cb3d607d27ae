#include "process.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

#include "ring.h"

#define NO_FUTEX_NS 200000 /* until the next look if futex(2) cannot wait */
#define SMALL_STACK (16u << 10) /* a step needs some 4 KiB beside the frame of a signal */
#define NO_POLL_NS 100000000u /* until the next look if descriptors cannot be waited for */

struct ut_settings ut_settings;

/* Not a mutex of the C library, which ends the program if a sandbox refuses futex(2). */
static uint32_t lock_word; /* 0: free, 1: locked, 2: locked, and a thread may wait */
static sigset_t mask_of_holder;
static int cancel_of_holder, errno_of_holder;

static pid_t process; /* the owner of all state here; 0: none yet */
static void (*become_child)(void);
struct ut_bell ut_bell = {{.fd = -1}, {.fd = -1}};

/* ---- lock */

static long futex(uint32_t *word, int what, uint32_t value, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, what | FUTEX_PRIVATE_FLAG, value, timeout, NULL, 0);
}

static struct timespec in_timespec(uint64_t ns)
{
	return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

void ut_futex_wait(uint32_t *word, uint32_t seen, uint64_t until)
{
	uint64_t now = ut_clock_ns(), left = until > now ? until - now : 0;
	struct timespec wait = in_timespec(left);
	int error = errno;

	if (left && futex(word, FUTEX_WAIT, seen, &wait) < 0 && errno != EAGAIN && errno != EINTR &&
	    errno != ETIMEDOUT) {
		/* A sandbox refuses it: look again in a moment. */
		wait = (struct timespec){0, left < NO_FUTEX_NS ? (long)left : NO_FUTEX_NS};
		syscall(SYS_nanosleep, &wait, NULL);
	}
	errno = error;
}

/* In a program with ThreadSanitizer, which knows pthread's locks only. */
extern void __tsan_acquire(void *) __attribute__((weak));
extern void __tsan_release(void *) __attribute__((weak));

static void take_lock(void)
{
	uint32_t seen = 0;

	if (!__atomic_compare_exchange_n(&lock_word, &seen, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		while (__atomic_exchange_n(&lock_word, 2, __ATOMIC_ACQUIRE))
			ut_futex_wait(&lock_word, 2, UINT64_MAX);
	if (__tsan_acquire)
		__tsan_acquire(&lock_word);
}

static void release_lock(void)
{
	if (__tsan_release)
		__tsan_release(&lock_word);
	if (__atomic_exchange_n(&lock_word, 0, __ATOMIC_RELEASE) == 2)
		futex(&lock_word, FUTEX_WAKE, 1, NULL);
}

/* All but signals of what the thread itself does, which end the program if they are blocked. (SIGSYS: the
 * handler of a sandbox answers a call in here.) */
static void block_signals(sigset_t *before)
{
	static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
	sigset_t blocked;

	sigfillset(&blocked);
	for (unsigned i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		sigdelset(&blocked, faults[i]);
	pthread_sigmask(SIG_SETMASK, &blocked, before);
}

static void start_child(void)
{
	process = getpid();
	ut_rings_start_child();
	ut_bell_close(&ut_bell); /* the parent's */
	become_child();
}

void ut_lock(void)
{
	int error = errno, cancel, is_new_child;
	sigset_t before;

	/* A thread that is cancelled in connect(2) must not keep the lock. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	block_signals(&before);
	/* A child that was forked without the fork handlers has one thread, and a lock without an owner. */
	is_new_child = process && !ut_rings_are_marked();
	if (is_new_child)
		lock_word = 0;
	take_lock();
	mask_of_holder = before;
	cancel_of_holder = cancel;
	errno_of_holder = error;
	if (is_new_child)
		start_child();
}

void ut_unlock(void)
{
	sigset_t before = mask_of_holder;
	int cancel = cancel_of_holder, error = errno_of_holder;

	release_lock();
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_setcancelstate(cancel, NULL);
	errno = error;
}

void ut_poll(struct pollfd *polled, nfds_t count, uint64_t until)
{
	uint64_t now = ut_clock_ns(), left = until > now ? until - now : 0;
	struct timespec wait = in_timespec(left);
	uint32_t never = 0;
	int error = errno;

	/* (poll(2) has milliseconds, and an emit waits for less than one.) */
	if (ppoll(polled, count, until == UINT64_MAX ? NULL : &wait, NULL) < 0 && errno != EINTR)
		ut_futex_wait(&never, 0, now + (left < NO_POLL_NS ? left : NO_POLL_NS));
	errno = error;
}

void ut_futex_tell(uint32_t *word)
{
	futex(word, FUTEX_WAKE, INT_MAX, NULL);
}

void ut_futex_wake(uint32_t *word)
{
	__atomic_fetch_add(word, 1, __ATOMIC_RELEASE);
	ut_futex_tell(word);
}

/* ---- the environment */

/* KiB, as a power of two of bytes. An invalid number in the environment is ignored: it must not break the
 * program. */
static uint64_t wanted_bytes(const char *variable, uint64_t otherwise)
{
	const char *text = secure_getenv(variable);
	size_t digits = text ? strspn(text, "0123456789") : 0;

	return digits > 0 && digits < 10 && !text[digits] ? strtoull(text, NULL, 10) * 1024 : otherwise;
}

/* The beginning of a file; empty if it cannot be read. */
static void read_text(const char *path, char *text, size_t size)
{
	/* (Not open(2), which the preload library wraps.) */
	int fd = ut_out_of_the_way((int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
	ssize_t got = fd < 0 ? 0 : read(fd, text, size - 1);

	text[got > 0 ? got : 0] = 0;
	if (fd >= 0)
		close(fd);
}

/* The memory that this process's cgroup, of either version, or one above it may have; UINT64_MAX: any. */
static uint64_t memory_of_cgroup(void)
{
	char list[2048], path[sizeof(list) + 64], text[32], *rest = NULL;
	uint64_t least = UINT64_MAX, found;

	read_text("/proc/self/cgroup", list, sizeof(list));
	/* Lines like 4:cpu,memory:/a/b, of version 2 0::/a/b. */
	for (char *line = strtok_r(list, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *controllers = strchr(line, ':'), *place = controllers ? strchr(controllers + 1, ':') : NULL;
		const char *memory = strstr(line, "memory");
		const int is_second = place && place == controllers + 1;

		if (!place || (!is_second && (!memory || memory > place)))
			continue;
		/* (In a container of version 1 only its root is there.) */
		place++;
		for (char *end = place + strlen(place); end; end = strrchr(place, '/')) {
			*end = 0;
			snprintf(path, sizeof(path), "/sys/fs/cgroup%s%s/memory.%s", is_second ? "" : "/memory", place,
				 is_second ? "max" : "limit_in_bytes");
			read_text(path, text, sizeof(text));
			found = strtoull(text, NULL, 10);
			if (found && found < least) /* (0: no file, or "max") */
				least = found;
		}
	}
	return least;
}

/* A program with little address space, or little memory that it may lock or have, keeps most of it. */
static uint64_t default_ring(void)
{
	static uint32_t bytes; /* by the cgroup, whose files are read once; 0: not yet */
	struct rlimit space;
	uint64_t part;
	void *twice;

	if (getrlimit(RLIMIT_AS, &space) || space.rlim_cur != RLIM_INFINITY)
		return DR_LOW;
	twice = mmap(NULL, 2 * DR_DEFAULT_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (twice == MAP_FAILED)
		return DR_LOW;
	munmap(twice, 2 * DR_DEFAULT_SIZE);
	part = __atomic_load_n(&bytes, __ATOMIC_RELAXED);
	if (!part) {
		part = memory_of_cgroup() / 16;
		part = part > DR_DEFAULT_SIZE ? DR_DEFAULT_SIZE : part > DR_LOW ? part : DR_LOW;
		__atomic_store_n(&bytes, (uint32_t)part, __ATOMIC_RELAXED);
	}
	return part;
}

static uint32_t ring_bytes(uint64_t bytes)
{
	uint64_t size = DR_MIN_SIZE;

	while (size < bytes && size < DR_MAX_SIZE)
		size *= 2;
	return (uint32_t)size;
}

void ut_settings_read(struct ut_settings *settings, const char *directory, uint64_t local_bytes)
{
	const char *text;
	uint64_t bytes;

	memset(settings, 0, sizeof(*settings));
	ut_choose_directories(settings->directories, directory);
	text = secure_getenv("UTRACEFS_DATA_RING");
	if (!text || strcmp(text, "0")) {
		bytes = wanted_bytes("UTRACEFS_RING_KB", UINT64_MAX);
		settings->ring_bytes = ring_bytes(bytes == UINT64_MAX ? default_ring() : bytes);
	}
	settings->local_bytes = ring_bytes(local_bytes ? local_bytes : wanted_bytes("UTRACEFS_BUFFER_KB", DR_LOW));
}

/* ---- fork */

void ut_wake(void)
{
	ut_bell_ring(&ut_bell);
}

/* Whether it is not `process` that runs here; false where a sandbox refuses getpid(2). (A signal handler may
 * fork in here, so both are of one moment.) */
static int is_another(void)
{
	pid_t owner, here;

	do {
		owner = __atomic_load_n(&process, __ATOMIC_RELAXED);
		here = getpid();
	} while (owner != __atomic_load_n(&process, __ATOMIC_RELAXED));
	return here > 0 && here != owner;
}

static sigset_t mask_of_fork;
static int cancel_of_fork;

static void before_fork(void)
{
	ut_lock();
	mask_of_fork = mask_of_holder;
	cancel_of_fork = cancel_of_holder;
}

static void in_parent(void)
{
	int error = errno; /* of the fork */

	ut_unlock();
	errno = error;
}

/* (Another fork handler may have emitted before: then this child is initialized already, and the lock is
 * free.) */
static void in_child(void)
{
	if (is_another() || !ut_rings_are_marked()) {
		/* Initialized before any thread can wait for it. */
		lock_word = 1;
		start_child();
		release_lock();
	}
	pthread_sigmask(SIG_SETMASK, &mask_of_fork, NULL);
	pthread_setcancelstate(cancel_of_fork, NULL);
}

int ut_process_is_guest(void)
{
	return process && ut_rings_are_marked() && is_another();
}

int ut_process_is_on_small_stack(void)
{
	stack_t stack = {.ss_flags = SS_DISABLE}; /* also if a sandbox refuses the call */
	int error = errno;

	sigaltstack(NULL, &stack);
	errno = error;
	return stack.ss_flags & SS_ONSTACK && stack.ss_size < SMALL_STACK;
}

/* exit(3) calls functions of atexit(3) first and then destructors, dlclose(3) destructors first, except those
 * with a low priority. But those of a library that the program is linked with come first in both: it began
 * before the C library entered its destructors with atexit(3). So the end of session.c looks for threads. */
enum ut_phase ut_phase;

static void note_exit(void)
{
	if (ut_phase == UT_RUNS)
		ut_phase = UT_EXITS;
}

__attribute__((destructor)) static void note_unload(void)
{
	if (ut_phase == UT_RUNS)
		ut_phase = UT_UNLOADED;
}

void ut_process_end(void)
{
	process = 0;
}

int ut_process_is_own(void)
{
	return process && !is_another();
}

int ut_process_init(void (*in_children)(void), void (*wake)(uint32_t))
{
	int error;

	if (process)
		return 0;
	become_child = in_children;
	error = ut_rings_init(wake);
	if (error)
		return error;
	ut_settings_read(&ut_settings, NULL, 0);
	/* An allocator with fork handlers must register them first: before a fork handlers run in reverse
	 * order, and the code that holds our lock may allocate. */
	free(malloc(sizeof(sigset_t)));
	error = pthread_atfork(before_fork, in_parent, in_child);
	if (error)
		return -error;
	if (atexit(note_exit))
		return -ENOMEM;
	process = getpid();
	return 0;
}
