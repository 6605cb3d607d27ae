/* basic COUNT: records of each kind of field, then COUNT of a small event; prints the number of lost ones. */
#include <utracefs.h>
#include "answered.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

UTRACEFS_EVENT(c_request, (u16, status), (u64, bytes), (string, path));
UTRACEFS_EVENT(c_small, (u64, i), (u64, five));
UTRACEFS_EVENT(c_kinds, (u8, a), (s8, b), (u16, c), (s16, d), (u32, e), (s32, f), (u64, g), (s64, h),
	       (chars, comm, 8), (structure, where, in_addr, 4), (bytes, raw), (string, text),
	       (double, real), (float, single), (bool, flag),
	       (array, few, s16, 3, 6), (array, flags, bool, 2, 2), (array, reals, double, 2, 16));
UTRACEFS_EVENT_PLAIN(c_plain);

int main(int argc, char **argv)
{
	uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
	struct in_addr where = {htonl(0x7f000001)};
	struct utracefs_event_stats stats;
	int is_on;

	UTRACEFS_EMIT(c_request, 200, 1834, "/x");
	UTRACEFS_EMIT(c_request, 404, 0, NULL);
	UTRACEFS_EMIT(c_kinds, 255, -1, 65535, -2, 4000000000u, -3, UINT64_MAX, INT64_MIN, "much too long", &where,
		      utracefs_bytes("\1\2\3", 3), "text", -0.0, 1.5f, 1,
		      (int16_t[]){1, -2, 3}, (_Bool[]){1, 0}, (double[]){0.1, -0.0});
	UTRACEFS_EMIT(c_plain);
	for (uint64_t i = 0; i < count; i++)
		UTRACEFS_EMIT(c_small, i, 5);
	is_on = answered(&c_request);
	utracefs_event_stats(&c_small, &stats);
	printf("enabled %d lost %lu refused %lu error %d\n", is_on, (unsigned long)stats.lost,
	       (unsigned long)stats.refused, utracefs_event_error(&c_request, NULL, 0));
	return 0;
}
