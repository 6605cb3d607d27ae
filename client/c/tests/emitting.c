/*
 * emitting SCENARIO [ARGUMENTS]: a program that emits, for tests of the trace.
 *
 *     threads T COUNT     T threads emit COUNT records each; prints the number of lost ones
 *     forks N             N children, one after another, emit one record each and end by _exit at once
 *     fork-threads N [T]  the same while T threads (2) emit without end
 *     signals COUNT       a handler emits while the main thread does; prints how often it ran
 *     unread PID COUNT    emits a record, stops the daemon PID, emits and ends
 *     closefrom COUNT     closes all descriptors, then emits
 *     steady COUNT        a record for each line of stdin; answers with lost records, enabled and the error
 *     cancel              a thread that is cancelled while it emits
 *     dynamic COMMAND     declares an event by text, emits 4 zero bytes, prints the error and its text
 *     closed N            declares N events, ends the library, and emits: events are off
 *     long                texts of 65,516 and 65,517 bytes and one of 1 MiB; prints lost and refused
 *     vfork N             N records, one of a child of vfork(2), and one more
 *     sandbox MS          forbids itself poll(2), emits two records, idles; prints the ms of cpu time
 */
#include <utracefs.h>
#include "answered.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

UTRACEFS_EVENT(c_count, (u32, who), (u64, i));
UTRACEFS_EVENT(c_long, (u64, n), (string, text));

static int must_end;
static uint64_t count_each;
static volatile uint64_t handled;

static void print_lost(void)
{
	struct utracefs_event_stats stats;

	utracefs_event_stats(&c_count, &stats);
	printf("lost %lu\n", (unsigned long)stats.lost);
}

static void *emit_many(void *who)
{
	for (uint64_t i = 0; i < count_each; i++)
		UTRACEFS_EMIT(c_count, (uint32_t)(uintptr_t)who, i);
	return NULL;
}

static void *emit_without_end(void *who)
{
	for (uint64_t i = 0; !__atomic_load_n(&must_end, __ATOMIC_RELAXED); i++) {
		UTRACEFS_EMIT(c_count, (uint32_t)(uintptr_t)who, i);
		usleep(20);
	}
	return NULL;
}

static void handler(int number)
{
	int saved = errno;

	(void)number;
	errno = EDOM;
	UTRACEFS_EMIT(c_count, 1, handled);
#ifndef __SANITIZE_THREAD__ /* it changes the code that looks for suppressed reports */
	if (errno != EDOM)
		abort();
#endif
	errno = saved;
	handled++;
}

static pthread_barrier_t emitted, flushed;

/* The thread lives until its records were taken in: the daemon ignores the number of an ended thread. */
static void *emit_and_stay(void *who)
{
	emit_many(who);
	pthread_barrier_wait(&emitted);
	pthread_barrier_wait(&flushed);
	return NULL;
}

static int threads(int nr)
{
	pthread_t made[64];

	pthread_barrier_init(&emitted, NULL, (unsigned)nr + 1);
	pthread_barrier_init(&flushed, NULL, (unsigned)nr + 1);
	for (int i = 0; i < nr; i++)
		pthread_create(&made[i], NULL, emit_and_stay, (void *)(uintptr_t)i);
	pthread_barrier_wait(&emitted);
	utracefs_flush(20000);
	pthread_barrier_wait(&flushed);
	for (int i = 0; i < nr; i++)
		pthread_join(made[i], NULL);
	print_lost();
	return 0;
}

static int forks(int nr)
{
	for (int i = 0; i < nr; i++) {
		pid_t child = fork();
		int status;

		if (child == 0) {
			UTRACEFS_EMIT(c_count, 1000, (uint64_t)i);
			_exit(0);
		}
		if (child < 0 || waitpid(child, &status, 0) != child || status)
			return 1;
	}
	return 0;
}

static int signals(void)
{
	struct itimerval often = {{0, 50}, {0, 50}};
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	emit_many(NULL);
	often.it_value.tv_usec = often.it_interval.tv_usec = 0;
	setitimer(ITIMER_REAL, &often, NULL);
	utracefs_flush(20000);
	printf("handled %lu\n", (unsigned long)handled);
	print_lost();
	return 0;
}

static int unread(pid_t pid)
{
	UTRACEFS_EMIT(c_count, 0, 0);
	utracefs_flush(20000);
	kill(pid, SIGSTOP);
	emit_many(NULL);
	print_lost();
	return 0;
}

static int steady(void)
{
	char line[64];

	while (fgets(line, sizeof(line), stdin)) {
		struct utracefs_event_stats stats;
		int enabled = answered(&c_count);

		UTRACEFS_EMIT(c_count, 7, strtoull(line, NULL, 10));
		utracefs_event_stats(&c_count, &stats);
		printf("lost %lu enabled %d error %d\n", (unsigned long)stats.lost, enabled,
		       utracefs_event_error(&c_count, NULL, 0));
		fflush(stdout);
	}
	return 0;
}

static int cancel(void)
{
	pthread_t made;
	void *result;

	pthread_create(&made, NULL, emit_without_end, (void *)3);
	usleep(20000);
	pthread_cancel(made);
	pthread_join(made, &result);
	UTRACEFS_EMIT(c_count, 4, 4); /* the lock is free */
	printf("flush %d\n", utracefs_flush(2000));
	return result == PTHREAD_CANCELED ? 0 : 1;
}

/* 8 bytes, a location word of 4, and the NUL: the limit is 65,529 in total. */
static int too_long(void)
{
	static const size_t sizes[] = {65516, 65517, 1 << 20};
	struct utracefs_event_stats stats;

	for (unsigned i = 0; i < 3; i++) {
		char *text = malloc(sizes[i] + 1);

		memset(text, 'x', sizes[i]);
		text[sizes[i]] = 0;
		UTRACEFS_EMIT(c_long, i, text);
		free(text);
	}
	utracefs_event_stats(&c_long, &stats);
	printf("lost %lu refused %lu\n", (unsigned long)stats.lost, (unsigned long)stats.refused);
	return utracefs_flush(20000);
}

static int dynamic(const char *command)
{
	struct utracefs_event *event = utracefs_declare(command, 0);
	struct iovec iov = {(void *)"\0\0\0\0", 4};
	char text[200];
	int error, emitted;

	if (!event)
		return 1;
	emitted = answered(event) ? utracefs_emit_iov(event, &iov, 1) : 1;
	error = utracefs_event_error(event, text, sizeof(text));
	printf("%d %d %d %s\n", utracefs_declare(command, 0) == event, emitted, error, text);
	return 0;
}

static struct utracefs_event *events[4096];

/* Events NAME_0 and so on, each with a number. */
static void declare(const char *name, int nr)
{
	for (int i = 0; i < nr; i++) {
		char command[40];

		snprintf(command, sizeof(command), "%s_%d u32 a", name, i);
		events[i] = utracefs_declare(command, 0);
	}
}

/* Events are also written after the end of the library. */
static int closed(int nr)
{
	struct iovec iov = {(void *)"\0\0\0\0", 4};

	declare("c_closed", nr);
	if (utracefs_flush(20000) || utracefs_emit_iov(events[0], &iov, 1))
		return 1;
	utracefs_close();
	for (int i = 0; i < nr; i++)
		if (utracefs_enabled(events[i]) || utracefs_emit_iov(events[i], &iov, 1) != -EBADF)
			return 1;
	return 0;
}

static int sandbox(int idle_ms)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ppoll, 1, 0),
#ifdef SYS_poll
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_poll, 0, 1),
#else
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ppoll, 0, 1),
#endif
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof(rules) / sizeof(rules[0]), rules};

	/* (The library's thread is running already: the filter must apply to it, too.) */
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter))
		return 3;
	UTRACEFS_EMIT(c_count, 7, 0);
	usleep((useconds_t)idle_ms * 1000);
	UTRACEFS_EMIT(c_count, 7, 1);
	printf("%ld\n", clock() / (CLOCKS_PER_SEC / 1000));
	return 0;
}

static int fork_threads(int nr, int nr_threads)
{
	pthread_t made[8];
	int failed;

	for (int i = 0; i < nr_threads; i++)
		pthread_create(&made[i], NULL, emit_without_end, (void *)(uintptr_t)i);
	failed = forks(nr);
	__atomic_store_n(&must_end, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < nr_threads; i++)
		pthread_join(made[i], NULL);
	return failed;
}

static int closes_at_receive, closes_at_send, closes_at_connect, closes_at_truncate;

/* Before the library connects. */
__attribute__((constructor(101))) static void prepare(int argc, char **argv)
{
	int closes = argc > 2 && strcmp(argv[1], "closefrom") == 0 && atoi(argv[2]) == 2;

	__atomic_store_n(&closes_at_send, closes, __ATOMIC_RELAXED);
}

/* Those of the library. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	if (__atomic_exchange_n(&closes_at_send, 0, __ATOMIC_RELAXED))
		closefrom(3);
	return syscall(SYS_sendmsg, fd, message, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	if (__atomic_exchange_n(&closes_at_receive, 0, __ATOMIC_RELAXED))
		closefrom(3);
	return syscall(SYS_recvmsg, fd, message, flags);
}

int connect(int fd, const struct sockaddr *to, socklen_t size)
{
	int when = __atomic_exchange_n(&closes_at_connect, 0, __ATOMIC_RELAXED), failed;

	if (when == 1)
		closefrom(3);
	failed = (int)syscall(SYS_connect, fd, to, size);
	if (when == 2)
		closefrom(3);
	return failed;
}

int ftruncate(int fd, off_t size)
{
	if (__atomic_exchange_n(&closes_at_truncate, 0, __ATOMIC_RELAXED))
		closefrom(3);
	return (int)syscall(SYS_ftruncate, fd, size);
}

static int has_data_ring(void)
{
	char path[32], file[64];
	ssize_t length;
	int found = 0;

	for (int fd = 0; fd < 100; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		length = readlink(path, file, sizeof(file) - 1);
		file[length < 0 ? 0 : length] = 0;
		found |= strncmp(file, "/memfd:utracefs-data-ring", 25) == 0;
	}
	return found;
}

/* late: 1, while the library is about to receive; 2, and also when it sends the first time; 3, once more when
 * it makes the next ring; 4 and 5, once more before or after it connects again. */
static int close_all(int late)
{
	answered(&c_count);
	__atomic_store_n(&closes_at_truncate, late == 3, __ATOMIC_RELAXED);
	__atomic_store_n(&closes_at_connect, late < 4 ? 0 : late - 3, __ATOMIC_RELAXED);
	for (uint64_t i = 0; i < count_each; i++) {
		UTRACEFS_EMIT(c_count, 5, i);
		if (i == 0 && (late == 1 || late == 2))
			__atomic_store_n(&closes_at_receive, 1, __ATOMIC_RELAXED);
		else if (i == 0)
			closefrom(3);
		usleep(1000);
	}
	utracefs_flush(20000);
	if (!getenv("UTRACEFS_DATA_RING") && !has_data_ring())
		puts("no data ring");
	print_lost();
	return 0;
}

static int emit_in_vfork(int nr)
{
	pid_t child;
	int status;

	for (int i = 0; i < nr; i++)
		UTRACEFS_EMIT(c_count, 9, (uint64_t)i);
	child = vfork();
	if (child == 0) {
		UTRACEFS_EMIT(c_count, 9, 100);
		_exit(0);
	}
	waitpid(child, &status, 0);
	UTRACEFS_EMIT(c_count, 9, 200);
	return status;
}

int main(int argc, char **argv)
{
	const char *scenario = argc > 1 ? argv[1] : "";
	int nr = argc > 2 ? atoi(argv[2]) : 0;

	count_each = argc > 3 ? strtoull(argv[3], NULL, 10) : (uint64_t)nr;
	if (strcmp(scenario, "threads") == 0)
		return threads(nr);
	if (strcmp(scenario, "forks") == 0)
		return forks(nr);
	if (strcmp(scenario, "fork-threads") == 0)
		return fork_threads(nr, argc > 3 ? atoi(argv[3]) : 2);
	if (strcmp(scenario, "signals") == 0)
		return signals();
	if (strcmp(scenario, "unread") == 0)
		return unread(nr);
	if (strcmp(scenario, "closefrom") == 0)
		return close_all(nr);
	if (strcmp(scenario, "steady") == 0)
		return steady();
	if (strcmp(scenario, "cancel") == 0)
		return cancel();
	if (strcmp(scenario, "long") == 0)
		return too_long();
	if (strcmp(scenario, "dynamic") == 0)
		return dynamic(argv[2]);
	if (strcmp(scenario, "vfork") == 0)
		return emit_in_vfork(nr);
	if (strcmp(scenario, "sandbox") == 0)
		return sandbox(nr);
	if (strcmp(scenario, "closed") == 0)
		return closed(nr);
	fprintf(stderr, "no scenario %s\n", scenario);
	return 2;
}
