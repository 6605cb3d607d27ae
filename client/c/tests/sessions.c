/*
 * sessions: the interface of session.h as commands on stdin, with one line of answer for each.
 *
 *     open                    index of a session, or error
 *     register S FLAGS COMMAND    write index
 *     write S INDEX HEX       bytes taken
 *     lose S COUNT            so many (hexadecimal) records of its first event have found no room
 *     sent S                  1: all its records are sent
 *     enable W SIZE BIT FLAGS COMMAND    makes bit BIT of word W follow the event
 *     disable W BIT
 *     word W                  its value, hexadecimal
 *     set W HEX
 *     fork                    the child continues, the parent waits for it
 *     close S
 *     closefrom               closes all descriptors but the standard ones
 *     again N                 opens and closes N more, one after the other
 *     held N                  declares N events, begins to connect, and emits a record of each while another
 *                             thread has the library's lock; number of emits that were done
 *
 * Errors are negative errno.
 */
#include "connection.h"
#include "session.h"
#include "utracefs.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct ut_session *sessions[128];
static uint64_t words[8];

static size_t bytes_of(const char *hex, unsigned char *to)
{
	size_t n = 0;

	for (; hex[0] && hex[1] && hex[0] != '\n'; hex += 2) {
		unsigned byte;

		sscanf(hex, "%2x", &byte);
		to[n++] = (unsigned char)byte;
	}
	return n;
}

static long write_record(int s, int index, const char *hex)
{
	unsigned char record[70000];
	struct iovec iov = {record, 4 + bytes_of(hex, record + 4)};

	memcpy(record, &index, 4);
	return ut_session_write(sessions[s], &iov, 1, iov.iov_len);
}

static void lose(const struct ut_session *s, uint64_t count)
{
	struct data_ring *ring = &ut_outlets[s->ring].ring;

	atomic_fetch_add(&ring->lost[0], (uint32_t)count);
	atomic_fetch_add(&ring->header->lost, count);
}

static struct utracefs_event *declared[30000];
static int nr_declared;

static void *emit_each(void *number)
{
	struct iovec iov = {(void *)"\0\0\0\0", 4};

	for (int i = 0; i < nr_declared && utracefs_emit_iov(declared[i], &iov, 1) == 0; i++)
		__atomic_fetch_add((long *)number, 1, __ATOMIC_RELAXED);
	return NULL;
}

static long emit_without_lock(int nr)
{
	struct timespec until;
	pthread_t thread;
	char command[64];
	long emitted = 0;

	for (nr_declared = 0; nr_declared < nr; nr_declared++) {
		snprintf(command, sizeof(command), "held%d u32 a", nr_declared);
		declared[nr_declared] = utracefs_declare(command, 0);
		/* Its own step connects; some are declared before that, some after. */
		if (nr_declared == nr / 2)
			ut_reg_find_place(declared[0]->registration);
	}
	if (pthread_create(&thread, NULL, emit_each, &emitted))
		return -1;
	ut_lock();
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 20;
	if (pthread_timedjoin_np(thread, NULL, &until)) {
		long before = __atomic_load_n(&emitted, __ATOMIC_RELAXED);

		ut_unlock();
		pthread_join(thread, NULL);
		return before;
	}
	ut_unlock();
	return emitted;
}

int main(void)
{
	static char line[150000], text[150000];
	int nr = 0, s, a, b, c;
	unsigned long value;
	uint32_t index;
	uint16_t event_id = 0; /* of the last registration */

	while (fgets(line, sizeof(line), stdin)) {
		long answer = -1000;

		line[strcspn(line, "\n")] = 0;
		text[0] = 0;
		if (strcmp(line, "open") == 0) {
			answer = ut_session_open(&sessions[nr], 0);
			answer = answer ? answer : nr++;
		} else if (sscanf(line, "register %d %d %[^\n]", &s, &a, text) == 3) {
			event_id = 0;
			answer = ut_session_register(sessions[s], text, (uint16_t)a, &event_id, &index);
			answer = answer ? answer : (long)index;
		} else if (sscanf(line, "write %d %d %s", &s, &a, text) >= 2) {
			answer = write_record(s, a, text);
		} else if (sscanf(line, "lose %d %lx", &s, &value) == 2) {
			ut_lock();
			lose(sessions[s], value);
			ut_unlock();
			answer = 0;
		} else if (sscanf(line, "sent %d", &s) == 1) {
			answer = ut_ring_is_taken_in(sessions[s]->ring);
		} else if (sscanf(line, "enable %d %d %d %d %[^\n]", &s, &a, &b, &c, text) == 5) {
			answer = ut_enabler_add(text, (uint16_t)c, event_id, &words[s], (uint8_t)a, (uint8_t)b);
		} else if (sscanf(line, "disable %d %d", &s, &a) == 2) {
			answer = ut_enabler_remove(&words[s], (uint8_t)a);
		} else if (sscanf(line, "word %d", &s) == 1) {
			printf("%llx\n", (unsigned long long)__atomic_load_n(&words[s], __ATOMIC_SEQ_CST));
			fflush(stdout);
			continue;
		} else if (sscanf(line, "set %d %lx", &s, &value) == 2) {
			__atomic_store_n(&words[s], value, __ATOMIC_SEQ_CST);
			answer = 0;
		} else if (strcmp(line, "fork") == 0) {
			pid_t child;

			fflush(stdout);
			child = fork();
			if (child > 0) {
				waitpid(child, &a, 0);
				_exit(0);
			}
			answer = getpid();
		} else if (sscanf(line, "again %d", &s) == 1) {
			struct ut_session *one;

			for (answer = 0; s-- && !answer;) {
				answer = ut_session_open(&one, 0);
				if (!answer) {
					event_id = 0;
					answer = ut_session_register(one, "again u32 a", 0, &event_id, &index);
					ut_session_close(one, 0);
				}
			}
		} else if (sscanf(line, "held %d", &s) == 1) {
			answer = emit_without_lock(s);
		} else if (strcmp(line, "closefrom") == 0) {
			closefrom(3);
			answer = 0;
		} else if (sscanf(line, "close %d", &s) == 1) {
			ut_session_close(sessions[s], 0);
			answer = 0;
		}
		printf("%ld\n", answer);
		fflush(stdout);
	}
	return 0;
}
