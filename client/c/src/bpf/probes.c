/*
 * Attached programs, and the thread that runs them.
 *
 *     stream (utracefs_stream.h) --> records --> the event's probes, in the order of their attachment
 *                    time ---------------------> clocks
 *
 * The stream is opened when the first tracepoint is enabled. Everything here is done under bp_lock(): the
 * thread takes it for a batch, the tool's calls for one call. A probe is detached when all records that were
 * emitted before are processed: tools read their maps then.
 *
 * Of recordings the stream is opened when all probes are attached and the tool waits, and programs run in the
 * tool's own thread, in place of its wait. Time is that of the records, also for clocks. After output of
 * programs the tool reads it, and the maps to which it refers, before the next record.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "preload_bpf.h"
#include "preload_next.h"
#include "stream_reader.h"

/* Bytes of the stream's ring: half a second of short records at full rate; less if the daemon has no room. */
#define RING_BYTES (64u << 20)
#define LEAST_RING_BYTES (1u << 20)
/* Records, and about the time, for which the lock is held. */
#define BATCH 4096u
#define BATCH_NS 10000000u
/* Events that a stream can name: the daemon's limit, and bytes for them. */
#define MOST_NAMED 64u
#define SELECTION 8192u
#define ALL_EVENTS "*:*"
#define LONGEST_WAIT_NS 1000000000u
/* A tool that ends waits for its programs on what was emitted before, not for a slow one on all of it. */
#define LONGEST_CATCH_UP_NS 1000000000u
#define LONGEST_ANSWER_NS 5000000000u /* a daemon that has just started answers after 2.2 s */

static struct {
	struct bp_probe *probes;
	uint64_t generation; /* it grows with each change of the probes */
	struct utracefs_stream *stream; /* NULL: none yet */
	char selection[SELECTION];
	int bell; /* wakes the thread; -1: there is none */
	pid_t process; /* in which programs run */
	int has_ended;
	struct utracefs_stream_record next; /* of a recording, behind the clocks that are due */
	int has_next, has_output;
	uint64_t next_due_ns;
	int is_over, is_late;
	uint64_t silent_until_ns; /* the daemon did not answer lately: it is not asked again until then */
	uint64_t lost, told, late; /* late: of `lost`, records on which no program has run in time */
	uint64_t told_at_ns;
	int64_t boot_offset_ns; /* CLOCK_BOOTTIME - CLOCK_MONOTONIC */
} here = {.bell = -1};

struct dispatch {
	uint64_t generation;
	struct bt_layout *layout;
	unsigned count;
	struct bp_probe *probes[];
};

static uint64_t now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void bp_record_of_ourselves(struct bp_record *record)
{
	memset(record, 0, sizeof(*record));
	record->time_ns = now_ns(CLOCK_MONOTONIC);
	record->boot_ns = now_ns(CLOCK_BOOTTIME);
	record->pid = getpid();
	record->tid = gettid();
	(void)prctl(PR_GET_NAME, record->comm);
}

/* ---- records */

static void run(struct bp_probe *probe, const void *context, size_t size, const struct bp_record *record)
{
	struct bp_program *program = probe->program;
	const uint64_t faults = program->faults;

	bp_program_run(program, context, size, record);
	if (__builtin_expect(program->faults != faults, 0))
		bp_tell("%.16s: %s", program->name, program->fault);
}

/* Of an event of the stream: which programs run. NULL: no memory. */
static struct dispatch *dispatch_of(struct utracefs_stream_event *event)
{
	struct dispatch *made = event->user;
	char name[sizeof(((struct bp_probe *)NULL)->event)];
	size_t count = 0;

	if (made && made->generation == here.generation)
		return made;
	for (struct bp_probe *probe = here.probes; probe; probe = probe->next)
		count++;
	made = realloc(made, sizeof(*made) + count * sizeof(made->probes[0]));
	if (!made)
		return NULL;
	if (!event->user)
		made->layout = NULL;
	event->user = made;
	made->generation = here.generation;
	made->count = 0;
	snprintf(name, sizeof(name), "%s:%s", event->system, event->name);
	for (struct bp_probe *probe = here.probes; probe; probe = probe->next)
		if (strcmp(probe->event, name) == 0 && probe->is_enabled && probe->program)
			made->probes[made->count++] = probe;
	return made;
}

static void take(const struct utracefs_stream_record *from)
{
	struct dispatch *dispatch = dispatch_of(from->event);
	struct bp_record record = {.time_ns = from->time_ns, .pid = from->pid, .tid = from->tid, .cpu = from->cpu};
	const void *context;
	size_t size;

	if (!dispatch || dispatch->count == 0)
		return;
	if (__builtin_expect(here.is_late, 0)) {
		here.lost++;
		here.late++;
		return;
	}
	context = bt_context(&dispatch->layout, from, &size);
	if (!context)
		return;
	record.boot_ns = from->time_ns + (uint64_t)here.boot_offset_ns;
	memcpy(record.comm, from->comm, strnlen(from->comm, sizeof(record.comm) - 1));
	for (unsigned i = 0; i < dispatch->count; i++) {
		struct bp_probe *probe = dispatch->probes[i];

		if (probe->pid < 0 || probe->pid == from->pid || probe->pid == from->tid)
			run(probe, context, size, &record);
	}
}

/* ---- clocks */

/* Runs the programs that are due; returns when the next is, or UINT64_MAX. */
static uint64_t run_clocks(uint64_t now)
{
	static const uint64_t no_context[64];
	uint64_t next = UINT64_MAX;
	struct bp_record record;

	for (struct bp_probe *probe = here.probes; probe; probe = probe->next) {
		if (probe->event[0] || !probe->is_enabled || !probe->program)
			continue;
		if (!probe->due_ns)
			probe->due_ns = now + probe->period_ns;
		if (probe->due_ns <= now) {
			bp_record_of_ourselves(&record);
			record.boot_ns += now - record.time_ns;
			record.time_ns = now;
			record.cpu = probe->cpu;
			run(probe, no_context, sizeof(no_context), &record);
			/* as a kernel's timer: missed periods are left out */
			probe->due_ns += ((now - probe->due_ns) / probe->period_ns + 1) * probe->period_ns;
		}
		if (probe->due_ns < next)
			next = probe->due_ns;
	}
	return next;
}

/* ---- batches */

static void tell_lost(uint64_t now)
{
	if (here.lost == here.told || now - here.told_at_ns < 1000000000u)
		return;
	dprintf(STDERR_FILENO, "Lost %llu events\n", (unsigned long long)(here.lost - here.told));
	here.told = here.lost;
	here.told_at_ns = now;
}

/* Runs programs on records, at most BATCH or up to one after this time. Whether there may be more. */
static int read_records(uint64_t until_ns)
{
	const int is_recording = bt_is_recording();
	const uint64_t began = now_ns(CLOCK_MONOTONIC);
	struct utracefs_stream_record record;
	unsigned count;
	int got = 1;

	if (!here.stream || here.has_ended)
		return 0;
	for (count = 0; count < BATCH && !here.has_output; count++) {
		if (here.has_next)
			record = here.next;
		else
			got = utracefs_stream_next(here.stream, &record);
		if (got <= 0)
			break;
		here.has_next = is_recording && record.time_ns >= here.next_due_ns;
		if (here.has_next) {
			here.next = record;
			here.next_due_ns = run_clocks(here.next_due_ns ? here.next_due_ns : record.time_ns);
			return 1;
		}
		if (record.kind == UTRACEFS_STREAM_RECORD) {
			take(&record);
			if (record.time_ns > until_ns)
				return 0;
		} else if (record.kind == UTRACEFS_STREAM_LOST) {
			here.lost += record.lost;
		}
		here.has_output = is_recording && bp_ring_bells();
		if (count % 16 == 15 && now_ns(CLOCK_MONOTONIC) - began > BATCH_NS)
			return 1;
	}
	if (got < 0) {
		here.has_ended = 1;
		if (!is_recording)
			bp_tell("%s", utracefs_stream_error(here.stream));
	}
	return got > 0;
}

/* Processes what was emitted until now. */
static void catch_up(void)
{
	const uint64_t now = now_ns(CLOCK_MONOTONIC);
	uint64_t began;
	char *data;

	if (!here.stream || here.has_ended || bt_is_recording() || now < here.silent_until_ns)
		return;
	/* Before the daemon answers any request it takes in all records that were emitted before. */
	if (ut_stream_read_file(here.stream, "tracing_on", LONGEST_ANSWER_NS, &data, NULL) == 0)
		free(data);
	else
		bp_tell("%s: records that it has not taken in are not counted", utracefs_stream_error(here.stream));
	began = now_ns(CLOCK_MONOTONIC);
	if (began - now >= LONGEST_ANSWER_NS)
		here.silent_until_ns = began + LONGEST_ANSWER_NS; /* a tool that ends asks for each probe */
	while (read_records(now))
		here.is_late = now_ns(CLOCK_MONOTONIC) - began > LONGEST_CATCH_UP_NS;
	here.is_late = 0;
	bp_ring_bells();
}

/* ---- the thread */

static void *read_and_run(void *unused)
{
	struct pollfd polled[2] = { { .fd = here.bell, .events = POLLIN }, { .events = POLLIN } };
	uint64_t now, due;
	eventfd_t rung;
	int more, wait_ms;

	(void)unused;
	for (;;) {
		bp_lock();
		now = now_ns(CLOCK_MONOTONIC);
		here.boot_offset_ns = (int64_t)(now_ns(CLOCK_BOOTTIME) - now);
		more = read_records(UINT64_MAX);
		due = run_clocks(now);
		wait_ms = due - now < LONGEST_WAIT_NS ? (int)((due - now + 999999) / 1000000) : 1000;
		tell_lost(now);
		bp_ring_bells();
		polled[1].fd = here.stream && !here.has_ended ? utracefs_stream_fd(here.stream) : -1;
		if (polled[1].fd < 0 && here.stream && !here.has_ended && wait_ms > 20)
			wait_ms = 20; /* the daemon is away: utracefs_stream_next looks for the next one */
		bp_unlock();
		if (!more && poll(polled, 2, wait_ms) > 0 && polled[0].revents)
			eventfd_read(polled[0].fd, &rung);
	}
	return NULL;
}

static int start_thread(void)
{
	pthread_t thread;
	int error;

	if (here.bell >= 0)
		return eventfd_write(here.bell, 1);
	here.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (here.bell < 0)
		return -errno;
	here.process = getpid();
	error = pthread_create(&thread, NULL, read_and_run, NULL); /* with all signals blocked, as here */
	if (!error)
		pthread_detach(thread);
	return -error;
}

/* ---- probes */

struct bp_probe *bp_probe_new(const char *event)
{
	struct bp_probe *probe = calloc(1, sizeof(*probe)), **last;

	if (!probe)
		return NULL;
	snprintf(probe->event, sizeof(probe->event), "%s", event);
	for (last = &here.probes; *last; last = &(*last)->next) {
	}
	*last = probe;
	return probe;
}

void bp_probe_free(struct bp_probe *probe)
{
	struct bp_probe **at;

	bp_probe_enable(probe, 0);
	for (at = &here.probes; *at != probe; at = &(*at)->next) {
	}
	*at = probe->next;
	here.generation++;
	if (probe->program)
		bp_program_put(probe->program);
	free(probe);
}

void bp_probe_attach(struct bp_probe *probe, struct bp_program *program)
{
	program->references++;
	probe->program = program;
	here.generation++;
}

static int is_selected(const struct bp_probe *probe)
{
	char word[sizeof(probe->event) + 2];

	snprintf(word, sizeof(word), " %s ", probe->event);
	return strcmp(here.selection, ALL_EVENTS) == 0 || strstr(here.selection, word);
}

/* Opens the stream for the events whose files the tool has read: it reads all ids before it enables a probe.
 * 0 or -errno. */
static int select_events(void)
{
	struct utracefs_stream_options options = {.ring_bytes = RING_BYTES, .ends = bt_is_recording()};
	const int is_again = here.selection[0] != 0;
	unsigned named = 0;
	int error;

	if (!here.stream)
		here.stream = utracefs_stream_new(NULL);
	else
		catch_up();
	if (!here.stream)
		return -ENOMEM;
	error = bt_events_read(here.selection, sizeof(here.selection));
	for (const char *at = here.selection; (at = strchr(at, ':')); at++)
		named++;
	/* None: of a recording, for its time. Again: opening a stream anew misses records, so only once. */
	if (error || is_again || named == 0 || named > MOST_NAMED)
		strcpy(here.selection, ALL_EVENTS);
	do
		error = utracefs_stream_open(here.stream, here.selection, NULL, &options);
	while (error == -ENOMEM && (options.ring_bytes /= 2) >= LEAST_RING_BYTES);
	here.has_ended = error < 0;
	if (error)
		bp_tell("%s", utracefs_stream_error(here.stream));
	return error;
}

int bp_probe_enable(struct bp_probe *probe, int is_enabled)
{
	int error = 0;

	if (probe->is_enabled == is_enabled)
		return 0;
	if (!is_enabled && probe->program && probe->event[0])
		catch_up();
	probe->is_enabled = is_enabled;
	probe->due_ns = 0;
	here.generation++;
	if (!is_enabled || bt_is_recording())
		return 0;
	if (probe->event[0] && (here.has_ended || !is_selected(probe)))
		error = select_events();
	if (!error)
		error = start_thread();
	if (error)
		probe->is_enabled = 0;
	return error;
}

int bp_replay(void)
{
	struct pollfd polled = {.events = POLLIN};
	struct ut_section section;
	int result = 1, is_idle;
	sigset_t pending;

	ut_section_begin(&section);
	bp_lock();
	here.boot_offset_ns = (int64_t)(now_ns(CLOCK_BOOTTIME) - now_ns(CLOCK_MONOTONIC));
	if (!here.process) {
		here.process = getpid();
		here.has_ended = select_events() < 0;
	}
	here.has_output = 0;
	is_idle = !(read_records(UINT64_MAX) | bp_ring_bells()) && !here.has_output;
	tell_lost(now_ns(CLOCK_MONOTONIC));
	if (is_idle && here.has_ended)
		result = here.is_over++ ? 0 : -1;
	polled.fd = is_idle && !here.has_ended ? utracefs_stream_fd(here.stream) : -1;
	bp_unlock();
	if (polled.fd >= 0)
		UT_CALL(SYS_ppoll, &polled, 1, (&(struct timespec){0, 20000000}));
	sigpending(&pending);
	if (result == -1)
		raise(SIGINT); /* delivered at the section's end */
	else if (sigismember(&pending, SIGINT) || sigismember(&pending, SIGTERM))
		result = -1;
	ut_section_end(&section);
	return result;
}

/* Reports the remaining losses. */
__attribute__((destructor)) static void end(void)
{
	if (here.process != getpid())
		return;
	bp_lock();
	if (here.stream && !here.has_ended && utracefs_stream_lost(here.stream) + here.late > here.lost)
		here.lost = utracefs_stream_lost(here.stream) + here.late;
	here.told_at_ns = 0;
	tell_lost(UINT64_MAX);
	bp_unlock();
}
