/* The same record and the same loop as ring.c's, into LTTng-UST: a line of stdin, a line of figures. */
#define LTTNG_UST_TRACEPOINT_DEFINE
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#include "clock.h"
#include "lttng.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	char line[64];

	while (fgets(line, sizeof(line), stdin)) {
		uint64_t count = strtoull(line, NULL, 10);
		uint64_t wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);

		for (uint64_t i = 0; i < count; i++)
			lttng_ust_tracepoint(utracefs_bench, two, i, 5);
		cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
		wall = now(CLOCK_MONOTONIC) - wall;
		printf("%.2f %.2f 0\n", (double)cpu / (double)count, (double)wall / (double)count);
		fflush(stdout);
	}
	return 0;
}
