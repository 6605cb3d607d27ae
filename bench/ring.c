/* The cost of a record in a program in C: `ring FD DOORBELL SIZE WRITE_INDEX`, for a data ring of its parent.
 *
 * Each line of stdin is a number of records to emit in one loop; the response is a line of thread cpu time
 * and wall clock, nanoseconds each record, and the records lost since the beginning. */
#include "producer.h"

#include "clock.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	struct data_ring ring = {0};
	int doorbell = atoi(argv[2]), half;
	uint32_t write_index = (uint32_t)atoi(argv[4]);
	char line[64];

	if (dr_map(&ring, atoi(argv[1]), (uint32_t)atoi(argv[3])))
		return 1;
	while (fgets(line, sizeof(line), stdin)) {
		uint64_t count = strtoull(line, NULL, 10);
		uint64_t wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);

		for (uint64_t i = 0; i < count; i++) {
			struct dr_record *rec = ut_reserve(&ring, write_index, 16, &half);

			if (!rec)
				continue;
			ut_put(rec->payload, i, 8);
			ut_put(rec->payload + 8, 5, 8);
			if (dr_commit(&ring, rec, 16) || half)
				ut_ring_bell(doorbell);
		}
		cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
		wall = now(CLOCK_MONOTONIC) - wall;
		printf("%.2f %.2f %lu\n", (double)cpu / (double)count, (double)wall / (double)count,
		       (unsigned long)atomic_load(&ring.header->lost));
		fflush(stdout);
	}
	return 0;
}
