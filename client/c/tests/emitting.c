/*
 * emitting SCENARIO [ARGUMENTS]: a program that emits, for tests which look at the trace.
 *
 *     threads T COUNT     T threads emit COUNT records each; prints what is lost
 *     forks N             N children, one after another, emit one record each and end by _exit at once
 *     fork-threads N      the same while two threads emit without end
 *     signals COUNT       a handler emits while the main thread does; prints how often it ran
 *     closefrom COUNT     closes all descriptors, then emits
 *     steady COUNT        a record for each line of stdin; answers with what is lost, enabled and the error
 *     cancel              a thread that is cancelled while it emits
 *     dynamic COMMAND     declares an event by text, emits 4 zero bytes, prints the error and its text
 *     busy                two threads emit until stdin ends; prints what was taken, and what of it is lost
 *     many N              declares N events, emits one record of each
 *     closed N            declares N events, ends the library, and emits: events are off
 *     vfork N             N records, one of a child of vfork(2), and one more
 *     raw-fork            a child made by clone(2), past the handlers of fork, emits
 */
#include <utracefs.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

UTRACEFS_EVENT(c_count, (u32, who), (u64, i));

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
	(void)number;
	UTRACEFS_EMIT(c_count, 1, handled);
	handled++;
}

static pthread_barrier_t emitted, flushed;

/* A thread lives until its records were taken in: the daemon believes no number of a thread that is not
 * there. */
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
	printf("handled %lu\n", (unsigned long)handled);
	print_lost();
	return 0;
}

static int steady(void)
{
	char line[64];

	while (fgets(line, sizeof(line), stdin)) {
		struct utracefs_event_stats stats;
		int enabled = utracefs_enabled(&c_count);

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

static int dynamic(const char *command)
{
	struct utracefs_event *event = utracefs_declare(command, 0);
	struct iovec iov = {(void *)"\0\0\0\0", 4};
	char text[200];
	int error, emitted;

	if (!event)
		return 1;
	emitted = utracefs_enabled(event) ? utracefs_emit_iov(event, &iov, 1) : 1;
	error = utracefs_event_error(event, text, sizeof(text));
	printf("%d %d %d %s\n", utracefs_declare(command, 0) == event, emitted, error, text);
	return 0;
}

static void *emit_busily(void *who)
{
	static __thread struct {
		uint32_t who;
		uint64_t i;
	} __attribute__((packed)) payload;
	struct iovec iov = {&payload, sizeof(payload)};

	payload.who = (uint32_t)(uintptr_t)who;
	while (!__atomic_load_n(&must_end, __ATOMIC_RELAXED)) {
		if (utracefs_emit_iov(&c_count, &iov, 1) == 0)
			payload.i++;
		usleep(50);
	}
	return (void *)(uintptr_t)payload.i;
}

static int busy(void)
{
	pthread_t made[2];
	uintptr_t taken = 0;
	void *of_one;

	for (int i = 0; i < 2; i++)
		pthread_create(&made[i], NULL, emit_busily, (void *)(uintptr_t)i);
	while (getchar() != EOF)
		;
	__atomic_store_n(&must_end, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++) {
		pthread_join(made[i], &of_one);
		taken += (uintptr_t)of_one;
	}
	printf("taken %lu ", (unsigned long)taken);
	utracefs_flush(20000);
	print_lost();
	return 0;
}

static struct utracefs_event *events[4096];

/* NAME_0 and so on, with a number. */
static void declare(const char *name, int nr)
{
	for (int i = 0; i < nr; i++) {
		char command[40];

		snprintf(command, sizeof(command), "%s_%d u32 a", name, i);
		events[i] = utracefs_declare(command, 0);
	}
}

static int many(int nr)
{
	struct iovec iov = {(void *)"\0\0\0\0", 4};

	declare("c_many", nr);
	for (int i = 0; i < nr; i++)
		if (!utracefs_enabled(events[i]) || utracefs_emit_iov(events[i], &iov, 1))
			return 1;
	return 0;
}

/* Events are written after the end of the library, too. */
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

int main(int argc, char **argv)
{
	const char *scenario = argc > 1 ? argv[1] : "";
	int nr = argc > 2 ? atoi(argv[2]) : 0;
	int failed = 0;

	count_each = argc > 3 ? strtoull(argv[3], NULL, 10) : (uint64_t)nr;
	if (strcmp(scenario, "threads") == 0)
		return threads(nr);
	if (strcmp(scenario, "forks") == 0)
		return forks(nr);
	if (strcmp(scenario, "fork-threads") == 0) {
		pthread_t made[2];

		for (int i = 0; i < 2; i++)
			pthread_create(&made[i], NULL, emit_without_end, (void *)(uintptr_t)i);
		failed = forks(nr);
		__atomic_store_n(&must_end, 1, __ATOMIC_RELAXED);
		for (int i = 0; i < 2; i++)
			pthread_join(made[i], NULL);
		return failed;
	}
	if (strcmp(scenario, "signals") == 0)
		return signals();
	if (strcmp(scenario, "closefrom") == 0) {
		for (uint64_t i = 0; i < count_each; i++) {
			UTRACEFS_EMIT(c_count, 5, i);
			if (i == 0)
				closefrom(3);
			usleep(1000);
		}
		return 0;
	}
	if (strcmp(scenario, "steady") == 0)
		return steady();
	if (strcmp(scenario, "cancel") == 0)
		return cancel();
	if (strcmp(scenario, "dynamic") == 0)
		return dynamic(argv[2]);
	if (strcmp(scenario, "busy") == 0)
		return busy();
	if (strcmp(scenario, "many") == 0)
		return many(nr);
	if (strcmp(scenario, "vfork") == 0) {
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
	if (strcmp(scenario, "raw-fork") == 0) {
		pid_t child;
		int status;

		UTRACEFS_EMIT(c_count, 8, 0);
		child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		if (child == 0) {
			UTRACEFS_EMIT(c_count, 8, 1);
			_exit(0);
		}
		waitpid(child, &status, 0);
		return status;
	}
	if (strcmp(scenario, "closed") == 0)
		return closed(nr);
	fprintf(stderr, "no scenario %s\n", scenario);
	return 2;
}
