/* Records at a steady rate: `sustained PER_S SECONDS`, in bursts of a millisecond; a PER_S of 0 is as fast as
 * possible, and SECONDS then millions of records. Prints records emitted and thread cpu time in ns a record.
 * Built with -DLTTNG it emits into LTTng-UST. */
#ifdef LTTNG
#define LTTNG_UST_TRACEPOINT_DEFINE
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#include "lttng.h"
#define EMIT(i) lttng_ust_tracepoint(utracefs_bench, two, i, 5)
#else
#include <utracefs.h>
UTRACEFS_EVENT(bench_two, (u64, i), (u64, five));
#define EMIT(i) UTRACEFS_EMIT(bench_two, i, 5)
#endif
#include "clock.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	uint64_t per_s = strtoull(argv[1], NULL, 10), amount = strtoull(argv[2], NULL, 10), done = 0;
#ifndef LTTNG
	while (!utracefs_enabled(&bench_two) || utracefs_event_error(&bench_two, NULL, 0))
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
#endif
	uint64_t cpu = now(CLOCK_THREAD_CPUTIME_ID), begin = now(CLOCK_MONOTONIC), at = begin;
	uint64_t total = per_s ? per_s * amount : amount * 1000000;

	while (done < total) {
		uint64_t due = total;

		if (per_s) {
			at += 1000000;
			struct timespec until = {(time_t)(at / 1000000000), (long)(at % 1000000000)};
			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
			due = (now(CLOCK_MONOTONIC) - begin) / 1000 * per_s / 1000000;
			if (due > total)
				due = total;
		}
		for (; done < due; done++)
			EMIT(done);
	}
	cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
	printf("%llu %.2f %.2f\n", (unsigned long long)done, (double)cpu / (double)done,
	       (double)(now(CLOCK_MONOTONIC) - begin) / 1e9);
	return 0;
}
