/* The cost of the C client: `c_client`. Each line of stdin is a letter and a number of turns of one loop; the
 * response is a line of thread cpu time and wall clock, nanoseconds each turn, and the records lost since the
 * beginning.
 *
 *     e   an emit of two numbers, the same record as ring.c's and lttng.c's
 *     s   one of two numbers and a text of 20 bytes
 *     v   the two numbers by an iovec
 *     d   a check of an event that is off
 *     n   the loop alone
 *     f   nothing: wait until all records have been taken in */
#include "clock.h"

#include <utracefs.h>

#include <stdio.h>
#include <stdlib.h>

UTRACEFS_EVENT(c_two, (u64, i), (u64, five));
UTRACEFS_EVENT(c_text, (u64, i), (u64, five), (string, text));
UTRACEFS_EVENT(off_two, (u64, i), (u64, five));

/* Keeps the compiler from leaving the loop out. */
#define TURN(i) __asm__ volatile("" ::"r"(i) : "memory")

int main(void)
{
	char line[64];

	while (fgets(line, sizeof(line), stdin)) {
		uint64_t count = strtoull(line + 1, NULL, 10);
		uint64_t wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);
		struct utracefs_event_stats two, text;

		switch (line[0]) {
		case 'e':
			for (uint64_t i = 0; i < count; i++)
				UTRACEFS_EMIT(c_two, i, 5);
			break;
		case 's':
			for (uint64_t i = 0; i < count; i++)
				UTRACEFS_EMIT(c_text, i, 5, "a text of 19 letters");
			break;
		case 'v':
			for (uint64_t i = 0; i < count; i++) {
				uint64_t five = 5;
				struct iovec iov[2] = {{&i, 8}, {&five, 8}};

				if (utracefs_enabled(&c_two))
					utracefs_emit_iov(&c_two, iov, 2);
			}
			break;
		case 'd':
			for (uint64_t i = 0; i < count; i++) {
				UTRACEFS_EMIT(off_two, i, 5);
				TURN(i);
			}
			break;
		case 'f':
			if (utracefs_flush(20000))
				return 1;
			break;
		default:
			for (uint64_t i = 0; i < count; i++)
				TURN(i);
		}
		cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
		wall = now(CLOCK_MONOTONIC) - wall;
		utracefs_event_stats(&c_two, &two);
		utracefs_event_stats(&c_text, &text);
		printf("%.2f %.2f %lu\n", (double)cpu / (double)count, (double)wall / (double)count,
		       (unsigned long)(two.lost + text.lost));
		fflush(stdout);
	}
	return 0;
}
