/* An honest producer in C that uses only the headers; loaded by honest.py.
 * Records are `u32 who; u64 n`. */
#include "data_ring.h"
#include "producer.h"

static struct data_ring ring;

/* Records for which the ring was full: the daemon resets the ring's own counter when it has read it. */
static _Atomic uint64_t lost;

int numbered_map(int fd, uint32_t size)
{
	return dr_map(&ring, fd, size);
}

/* The status page; it stays mapped. */
const unsigned char *numbered_status(int fd, size_t size)
{
	return (const unsigned char *)mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
}

/* Emits up to `count` records from number `n` on while `*status` is not 0; returns how many, the lost ones
 * included. After each one `*progress` is the next number. */
uint64_t numbered_emit(const volatile unsigned char *status, uint32_t write_index, uint32_t who, uint64_t n,
		       uint64_t count, int doorbell, volatile uint64_t *progress)
{
	uint64_t i;
	int half;

	for (i = 0; i < count && *status; i++) {
		struct dr_record *rec = ut_reserve(&ring, write_index, 12, &half);

		if (rec) {
			ut_put(rec->payload, who, 4);
			ut_put(rec->payload + 4, n + i, 8);
			if (dr_commit(&ring, rec, 12) || half)
				ut_ring_bell(doorbell);
		} else {
			atomic_fetch_add(&lost, 1);
		}
		*progress = n + i + 1;
	}
	return i;
}

uint64_t numbered_lost(void)
{
	return atomic_load(&lost);
}
