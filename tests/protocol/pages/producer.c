/* A producer in C that uses only the headers: `producer FD SIZE DOORBELL RECORDS`.
 * It writes records of write_index 7 with a u64, a u16 and bytes behind them, and prints its thread id, and
 * the nanoseconds from its first record to its last one, by each kind of time. */
#include "data_ring.h"
#include "producer.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	struct data_ring ring = {0};
	int doorbell, half;
	uint64_t durations[3] = {0};
	struct ut_moment begin = {0, 0}, of_clock = {0, 0};

	if (argc != 5 || dr_map(&ring, atoi(argv[1]), (uint32_t)atoi(argv[2])))
		return 2;
	doorbell = atoi(argv[3]);
	for (int i = 0; i < atoi(argv[4]); i++) {
		uint32_t length = 10 + (uint32_t)i % 20;
		struct dr_record *rec = ut_reserve(&ring, 7, length, &half);

		if (!rec)
			return 3;
		if (!i) {
			begin = ut_moment_of(ring.header, rec);
			of_clock.time = ut_now_ns();
		}
		durations[0] = ut_duration_ns(begin, rec);
		durations[1] = ut_duration_ns(of_clock, rec);
		durations[2] = ut_duration_ns(begin, NULL);
		ut_put(rec->payload, (uint64_t)i << 32 | 0x55, 8);
		ut_put(rec->payload + 8, (uint64_t)i, 2);
		memset(rec->payload + 10, i, length - 10);
		if (dr_commit(&ring, rec, length) || half)
			ut_ring_bell(doorbell);
	}
	/* The form on the socket: the header, the write_index, the payload. */
	unsigned char wire[BIN_MAX_HEADER + 4];
	unsigned header = bin_put_header(wire, 4);
	ut_put(wire + header, 7, 4);
	if (ut_get_le32(wire + header) != 7)
		return 4;
	begin.time = UINT64_MAX; /* as of another processor, a little later */
	if (ut_duration_ns(begin, NULL))
		return 5;
	printf("%u %lu %lu %lu\n", ut_tid(), (unsigned long)durations[0], (unsigned long)durations[1],
	       (unsigned long)durations[2]);
	dr_unmap(&ring);
	return 0;
}
