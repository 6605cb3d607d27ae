/* Nanoseconds a record of reserving, filling and committing in a C loop: `ring RECORDS PAYLOAD`.
 *
 * The ring is a private one. Whenever it is full it is emptied, without being read; that time is not
 * counted. */
#include "producer.h"

#include <stdio.h>
#include <stdlib.h>

/* As the daemon would leave it. */
static void empty(struct data_ring *r)
{
	memset(r->data, 0, r->size);
	atomic_store(&r->header->tail, atomic_load(&r->header->head));
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	uint64_t count = strtoull(argv[1], NULL, 0), spent = 0, done = 0;
	uint32_t payload = (uint32_t)atoi(argv[2]), room = DR_DEFAULT_SIZE / dr_need(payload);
	int fd = memfd_create("bench", MFD_CLOEXEC), half, bells = 0;
	struct data_ring ring = {0};

	if (fd < 0 || ftruncate(fd, (off_t)dr_file_bytes(DR_DEFAULT_SIZE)) || dr_map(&ring, fd, DR_DEFAULT_SIZE))
		return 1;
	while (done < count) {
		uint64_t begin = ut_now_ns();

		for (uint32_t i = 0; i < room; i++) {
			struct dr_record *rec = ut_reserve(&ring, 1, payload, &half);

			if (!rec)
				return 1;
			memset(rec->payload, (int)i, payload);
			bells += dr_commit(&ring, rec, payload);
		}
		spent += ut_now_ns() - begin;
		done += room;
		empty(&ring);
	}
	printf("%.2f\n", (double)spent / (double)done);
	return bells != 0;
}
