/* waiting FD NAME THREADS PER_SECOND FORKS: a program that measures its emits; started by waits.py.
 *
 * Its THREADS emit `NAME u32 who; u64 n` in bursts, about PER_SECOND each, until the results, in the memory
 * FD, say stop. With FORKS the first one forks children between its bursts, which emit and end at once.
 * Without threads it is like such a child: it emits FEW records and ends.
 *
 * With the preload library it writes to user_events_data instead, and every second record is invalid.
 *
 * Every second emit is behind utracefs_enabled(). Each is measured, and this is the sum of it:
 *
 *     time = running (CLOCK_THREAD_CPUTIME_ID) + ready, without a cpu (schedstat) + blocked
 *
 * An emit has waited if it gave its cpu up (ru_nvcsw); blocked is for how long. A thread that sleeps beside
 * them measures its sleeps in the same way: how late they are, and what they are blocked longer than they
 * asked for, an error of the measurement. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "utracefs.h"

#define FEW 5
#define MOST_THREADS 16
#define FIRST_CHILD 1000u
#define NR_WORST 64
#define NOTED_NS 250000
#define SLEEP_NS 1000000

enum kind { STEADY, FIRST_OF_PROGRAM, FIRST_OF_CHILD, SLEEP, NR_KINDS };

typedef _Atomic uint64_t number;

/* The same numbers as in waiting.py. */
static struct {
	number stop, crowd, ended, children, excess_ns, nr_worst, unused[2];
	struct counts {
		number taken, doubtful, lost, refused;
	} counts[2]; /* of the program, and of its children */
	number next[MOST_THREADS];
	struct figures {
		number emits, waited;
		number times[32], blocked[32]; /* by the logarithm; of all emits, of waits */
	} figures[NR_KINDS];
	struct worst {
		number kind, who, n, time_ns, blocked_ns, switches;
	} worst[NR_WORST];
} *results;

static struct utracefs_event *event;
static int data_file = -1; /* with the preload library */
static uint64_t per_second;
static int forks, is_child;
static __thread int schedstat = -1;
static __thread uint64_t random_state;

struct reading {
	uint64_t time_ns, running_ns, ready_ns;
	long switches;
};

static uint64_t ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t ready_ns(void)
{
	char text[96];
	ssize_t got = pread(schedstat, text, sizeof(text) - 1, 0);
	char *at = text;

	if (got <= 0)
		abort();
	text[got] = 0;
	strtoull(at, &at, 10);
	return strtoull(at, NULL, 10);
}

static void begin_thread(void)
{
	if (schedstat >= 0) /* its parent's */
		close(schedstat);
	schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	random_state = ns(CLOCK_MONOTONIC) ^ (uint64_t)gettid() << 32;
}

/* The clock inside the others: what takes the cpu away between them is no wait. */
static struct reading begin(void)
{
	struct reading now = {.ready_ns = ready_ns()};
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	now.switches = usage.ru_nvcsw;
	now.running_ns = ns(CLOCK_THREAD_CPUTIME_ID);
	now.time_ns = ns(CLOCK_MONOTONIC);
	return now;
}

static struct reading since(struct reading before)
{
	struct reading now = {.time_ns = ns(CLOCK_MONOTONIC)};
	struct rusage usage;

	now.running_ns = ns(CLOCK_THREAD_CPUTIME_ID) - before.running_ns;
	getrusage(RUSAGE_THREAD, &usage);
	now.switches = usage.ru_nvcsw - before.switches;
	now.ready_ns = ready_ns() - before.ready_ns;
	now.time_ns -= before.time_ns;
	return now;
}

static uint64_t blocked_ns(struct reading took)
{
	uint64_t other = took.running_ns + took.ready_ns;

	return took.time_ns > other ? took.time_ns - other : 0;
}

static void raise_to(number *most, uint64_t value)
{
	uint64_t now = *most;

	while (now < value && !atomic_compare_exchange_weak(most, &now, value))
		;
}

static unsigned logarithm(uint64_t value)
{
	unsigned found = value ? 63 - (unsigned)__builtin_clzll(value) : 0;

	return found < 32 ? found : 31;
}

static void note(enum kind kind, uint32_t who, uint64_t n, struct reading took)
{
	struct figures *figures = &results->figures[kind];
	uint64_t blocked = blocked_ns(took), place;

	figures->emits++;
	figures->times[logarithm(took.time_ns)]++;
	if (!took.switches)
		return;
	figures->waited++;
	figures->blocked[logarithm(blocked)]++;
	if (blocked < NOTED_NS || (place = results->nr_worst++) >= NR_WORST)
		return;
	results->worst[place].kind = kind;
	results->worst[place].who = who;
	results->worst[place].n = n;
	results->worst[place].time_ns = took.time_ns;
	results->worst[place].blocked_ns = blocked;
	results->worst[place].switches = (uint64_t)took.switches;
}

/* ---- emits */

static int write_record(uint32_t who, uint64_t n)
{
	struct utracefs_reserved reserved;
	unsigned char *at;

	if (!utracefs_reserve(event, 12, &reserved))
		return 0;
	at = reserved.payload;
	utracefs_put_u32(&at, who);
	utracefs_put_u64(&at, n);
	utracefs_commit(&reserved);
	return 1;
}

static void open_file(const char *command)
{
	static uint32_t word;
	struct {
		uint32_t size;
		uint8_t bit, bytes;
		uint16_t flags;
		uint64_t address, command;
		uint32_t write_index;
	} __attribute__((packed)) reg = {28, 0, 4, 0, (uintptr_t)&word, (uintptr_t)command, 0};

	data_file = open("/sys/kernel/tracing/user_events_data", O_RDWR);
	if (data_file < 0 || ioctl(data_file, 0xC0082A00ul, &reg))
		exit(4);
}

/* `text` has no NUL, or no bytes. */
static void write_file(enum kind kind, uint32_t who, uint64_t n)
{
	unsigned char record[25] = {0}, *at = record + 4;
	struct reading before;

	utracefs_put_u32(&at, who);
	utracefs_put_u64(&at, n);
	utracefs_put_u32(&at, n % 2 ? 5u << 16 : 0);
	memcpy(at, "hello", 5);
	before = begin();
	if (write(data_file, record, sizeof(record)) < 0) {
	}
	note(kind, who, n, since(before));
}

static void emit(enum kind kind, uint32_t who, uint64_t n)
{
	struct counts *counts = &results->counts[is_child];
	unsigned char record[12], *at = record;
	struct iovec piece = {record, sizeof(record)};
	int was_on, is_guarded = n % 2 == 0, is_taken = 0;
	struct reading before;

	if (data_file >= 0) {
		write_file(kind, who, n);
		return;
	}
	utracefs_put_u32(&at, who);
	utracefs_put_u64(&at, n);
	was_on = utracefs_enabled(event);
	before = begin();
	if (!is_guarded)
		is_taken = utracefs_emit_iov(event, &piece, 1) == 0;
	else if (utracefs_enabled(event))
		was_on = 1, is_taken = write_record(who, n);
	note(kind, who, n, since(before));
	/* Without a place it is counted as lost, unless the daemon has just gone. */
	if (is_guarded && was_on && !is_taken)
		is_taken = utracefs_enabled(event) && utracefs_event_error(event, NULL, 0) == 0;
	if (is_taken)
		counts->taken++;
	else if (was_on)
		counts->doubtful++;
}

static void add_losses(void)
{
	struct utracefs_event_stats stats;

	if (!event)
		return;
	utracefs_event_stats(event, &stats);
	results->counts[is_child].lost += stats.lost;
	results->counts[is_child].refused += stats.refused;
}

static void emit_few(enum kind first)
{
	uint32_t who = (uint32_t)(FIRST_CHILD + results->children++);

	for (unsigned n = 0; n < FEW; n++)
		emit(n ? STEADY : first, who, n);
	add_losses();
}

static void fork_some(unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		pid_t pid = fork();

		if (!pid) {
			is_child = 1;
			begin_thread();
			emit_few(FIRST_OF_CHILD);
			_exit(0);
		}
		if (pid < 0)
			break;
	}
	while (wait(NULL) > 0)
		;
}

static uint64_t draw(uint64_t below)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (random_state >> 33) % below;
}

static void pause_for(uint64_t wanted_ns)
{
	struct timespec pause = {(time_t)(wanted_ns / 1000000000u), (long)(wanted_ns % 1000000000u)};

	nanosleep(&pause, NULL);
}

static void *emit_until_stopped(void *number_of_thread)
{
	static const unsigned bursts[] = {1, 1, 10, 100, 1000};
	uint32_t who = (uint32_t)(uintptr_t)number_of_thread;

	begin_thread();
	while (!results->stop) {
		unsigned burst = bursts[draw(5)];

		if (forks && !who && results->crowd)
			burst = 1;
		else
			pause_for(burst * UINT64_C(1000000000) / per_second);
		for (unsigned i = 0; i < burst; i++) {
			uint64_t n = results->next[who]++;

			emit(n || who ? STEADY : FIRST_OF_PROGRAM, who, n);
		}
		if (forks && !who)
			fork_some(1 + (unsigned)draw(8));
	}
	return NULL;
}

static void *sleep_until_stopped(void *unused)
{
	begin_thread();
	while (!results->stop) {
		struct figures *figures = &results->figures[SLEEP];
		struct reading before = begin(), took;
		uint64_t blocked, excess;

		pause_for(SLEEP_NS);
		took = since(before);
		blocked = blocked_ns(took);
		excess = blocked > SLEEP_NS ? blocked - SLEEP_NS : 0;
		figures->emits++;
		figures->waited += took.switches && blocked > SLEEP_NS / 10 * 9;
		figures->times[logarithm(took.time_ns - SLEEP_NS)]++;
		figures->blocked[logarithm(excess)]++;
		raise_to(&results->excess_ns, excess);
		pause_for(4 * SLEEP_NS);
	}
	return unused;
}

int main(int argc, char **argv)
{
	unsigned threads = argc == 6 ? (unsigned)atoi(argv[3]) : MOST_THREADS + 1;
	pthread_t made[MOST_THREADS + 1];
	char command[64];

	if (threads > MOST_THREADS)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	results = mmap(NULL, sizeof(*results), PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[1]), 0);
	if (results == MAP_FAILED)
		return 3;
	per_second = (uint64_t)atoi(argv[4]);
	forks = atoi(argv[5]);
	snprintf(command, sizeof(command), "%s u32 who; u64 n; __rel_loc char[] text", argv[2]);
	begin_thread();
	if (strstr(getenv("LD_PRELOAD") ? getenv("LD_PRELOAD") : "", "utracefs-preload")) {
		open_file(command);
	} else {
		*strrchr(command, ';') = 0;
		event = utracefs_declare(command, 0);
	}
	if (!threads) {
		is_child = 1;
		emit_few(FIRST_OF_PROGRAM);
		return 0;
	}
	for (uintptr_t i = 0; i < threads; i++)
		pthread_create(&made[i], NULL, emit_until_stopped, (void *)i);
	pthread_create(&made[threads], NULL, sleep_until_stopped, NULL);
	for (unsigned i = 0; i <= threads; i++)
		pthread_join(made[i], NULL);
	if (utracefs_flush(40000)) /* a connection that was lost meanwhile */
		utracefs_flush(40000);
	add_losses();
	results->ended = 1;
	return 0;
}
