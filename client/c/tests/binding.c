/*
 * binding: the interface of binding.h as commands on stdin, with one line of answer for each.
 *
 *     session DIRECTORY BYTES    index of a session; `process` is 0. BYTES: 0 for the usual
 *     attach S COMMAND           index of an event, or error
 *     detach E
 *     look E                     1 or 0, when the daemon has answered
 *     test E                     the same, at once
 *     emit E N [COUNT]           COUNT records of a u32, from N on, as a binding does it; how many had room
 *     reserve E N                a record of N, whose thread is stopped before it commits it
 *     refuse E                   a value that does not fit
 *     flush S MS                 0 or error
 *     close S, free S, end
 *     event E                    lost pending error unwanted text, then errno:count of refusals
 *     pause, resume              0 or error
 *     threads                    number of threads of this process
 *     fork                       the child continues, the parent waits for it
 *     alarm MS                   SIGALRM after that time; it interrupts waits
 */
#define _GNU_SOURCE
#include "binding.h"
#include "answered.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>

static struct utb_session *sessions[64];
static struct utracefs_event events[2048];
static char *commands[2048];
static volatile sig_atomic_t has_alarm;

static void on_alarm(int number)
{
	(void)number;
	has_alarm = 1;
}

static int interrupted(void *arg)
{
	(void)arg;
	return has_alarm;
}

static int reserve(struct utracefs_event *event, uint32_t value, struct utb_reserved *r)
{
	unsigned char *payload;
	uint64_t until = 0;

	if (!utracefs_enabled(event))
		return 0;
	payload = utb_reserve(event, 0, 4, r);
	if (!payload && r->needs_place) {
		utb_find_place(event, 4, &until, interrupted, NULL);
		payload = utb_reserve(event, 0, 4, r);
	}
	if (!payload)
		return 0;
	ut_put(payload, value, 4);
	return 1;
}

static int emit(struct utracefs_event *event, uint32_t value)
{
	struct utb_reserved r;

	if (!reserve(event, value, &r))
		return 0;
	utb_commit(&r);
	return 1;
}

static int count_threads(void)
{
	char line[256];
	int count = -1;
	FILE *status = fopen("/proc/self/status", "r");

	while (fgets(line, sizeof(line), status))
		sscanf(line, "Threads: %d", &count);
	fclose(status);
	return count;
}

static void print_event(int e)
{
	struct utb_event_stats stats;

	utb_event_stats(&events[e], &stats);
	printf("%lu %lu %d %lu %s", (unsigned long)stats.lost, (unsigned long)stats.pending, stats.error,
	       (unsigned long)stats.unwanted, stats.text);
	for (unsigned i = 0; i < stats.nr_refusals; i++)
		printf(" %d:%lu", stats.refusals[i].error, (unsigned long)stats.refusals[i].count);
	printf("\n");
	fflush(stdout);
}

/* Commands that write records, or prepare it. 0: it is none of them. */
static int write_records(const char *line, long *answer)
{
	static struct utb_reserved open;
	unsigned number, count = 1;
	int e;

	*answer = 0;
	if (sscanf(line, "emit %d %u %u", &e, &number, &count) >= 2) {
		while (count--)
			*answer += emit(&events[e], number++);
	} else if (sscanf(line, "reserve %d %u", &e, &number) == 2) {
		*answer = reserve(&events[e], number, &open);
	} else if (strcmp(line, "is-read") == 0) { /* whether a daemon can see the reserved record */
		*answer = open.header->magic == DR_MAGIC;
	} else if (sscanf(line, "refuse %d", &e) == 1) {
		utracefs_refuse(&events[e], "i", "was wrong");
	} else {
		*answer = -1000;
		return 0;
	}
	return 1;
}

/* The child continues with the next command; its pid. */
static long fork_child(void)
{
	pid_t child;
	int status;

	fflush(stdout);
	child = fork();
	if (child > 0) {
		waitpid(child, &status, 0);
		exit(0);
	}
	return getpid();
}

int main(void)
{
	char line[4096], text[4096];
	int nr_sessions = 1, nr_events = 0, a;
	unsigned b;

	sessions[0] = utb_process_session();
	signal(SIGALRM, on_alarm);
	while (fgets(line, sizeof(line), stdin)) {
		long answer;

		line[strcspn(line, "\n")] = 0;
		if (sscanf(line, "event %d", &a) == 1) {
			print_event(a);
			continue;
		}
		if (write_records(line, &answer)) {
		} else if (sscanf(line, "session %s %u", text, &b) == 2) {
			sessions[nr_sessions] = utb_session_new(text, b);
			answer = nr_sessions++;
		} else if (sscanf(line, "attach %d %[^\n]", &a, text) == 2) {
			commands[nr_events] = strdup(text);
			utb_event_init(&events[nr_events], commands[nr_events], 0);
			answer = utb_attach(sessions[a], &events[nr_events]);
			answer = answer ? answer : nr_events;
			nr_events++;
		} else if (sscanf(line, "detach %d", &a) == 1) {
			utracefs_detach(&events[a]);
			memset(&events[a], 0xaa, sizeof(events[a]));
			answer = 0;
		} else if (sscanf(line, "look %d", &a) == 1) {
			answer = answered(&events[a]);
		} else if (sscanf(line, "test %d", &a) == 1) {
			answer = utracefs_enabled(&events[a]);
		} else if (sscanf(line, "flush %d %u", &a, &b) == 2) {
			has_alarm = 0;
			answer = utb_flush(sessions[a], b * UINT64_C(1000000), interrupted, NULL);
		} else if (sscanf(line, "close %d", &a) == 1) {
			utb_close(sessions[a]);
			answer = 0;
		} else if (sscanf(line, "free %d", &a) == 1) {
			utb_session_free(sessions[a]);
			answer = 0;
		} else if (strcmp(line, "end") == 0) {
			utb_end();
			answer = 0;
		} else if (strcmp(line, "pause") == 0) {
			answer = utb_pause();
		} else if (strcmp(line, "resume") == 0) {
			utb_resume();
			answer = 0;
		} else if (strcmp(line, "closefrom") == 0) {
			closefrom(3);
			answer = 0;
		} else if (strcmp(line, "threads") == 0) {
			answer = count_threads();
		} else if (sscanf(line, "alarm %u", &b) == 1) {
			struct itimerval after = {{0, 0}, {b / 1000, b % 1000 * 1000}};

			answer = setitimer(ITIMER_REAL, &after, NULL);
		} else if (strcmp(line, "fork") == 0) {
			answer = fork_child();
		}
		printf("%ld\n", answer);
		fflush(stdout);
	}
	return 0;
}
