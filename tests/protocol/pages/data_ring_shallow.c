/* A ring that is never more than a part full must lose nothing, whatever is scheduled when: four threads
 * write while no more than LIMIT bytes wait, the main thread takes them out at once. `data_ring_shallow
 * RECORDS` prints `written N lost N`, after SECONDS at most: on a busy machine a thread that yields gets its
 * next turn late. And a ring that is given up is counted from where the daemon told it was, over what it had
 * taken: `data_ring_shallow walk` prints `left N`. */
#include "data_ring_consumer.h"
#include "data_ring_producer.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SIZE (64u << 10)
#define LIMIT 2048u
#define THREADS 4
#define SECONDS 10

static struct data_ring ring;
static uint64_t records;
static _Atomic uint64_t written, taken;
static _Atomic int running = THREADS;
static time_t end;

static void *produce(void *unused)
{
	(void)unused;
	for (uint64_t i = 0; i < records && time(NULL) < end; i++) {
		int half;
		/* Each thread has at most one record more than it saw room for. */
		while (atomic_load(&written) - atomic_load(&taken) > LIMIT / dr_need(8))
			sched_yield();
		struct dr_record *rec = dr_reserve(&ring, 0, 8, &half);
		if (rec) {
			dr_commit(&ring, rec, 8);
			atomic_fetch_add(&written, 1);
		}
	}
	atomic_fetch_sub(&running, 1);
	return NULL;
}

static int walk(struct dr_consumer *c)
{
	struct dr_taken got;
	static unsigned char payload[DR_MAX_PAYLOAD];
	uint64_t holes = 0, position = 0, left = 0;
	uint32_t index;
	int half;

	for (int i = 0; i < 1000; i++)
		dr_commit(&ring, dr_reserve(&ring, 7, 8, &half), 8);
	if (dr_look(c))
		return 1;
	for (int i = 0; i < 10 && dr_next(c, &got, payload, sizeof(payload), 0, &holes) == DR_RECORD; i++)
		dr_advance(c, got.bytes); /* and killed before dr_publish */
	while (dr_walk(&ring, &position, &index))
		left += index == 7;
	printf("left %lu\n", (unsigned long)left);
	return 0;
}

int main(int argc, char **argv)
{
	struct dr_consumer c = {0};
	struct dr_taken got;
	static unsigned char payload[DR_MAX_PAYLOAD];
	pthread_t threads[THREADS];
	uint64_t holes = 0;
	int fd = memfd_create("shallow", 0);

	if (argc != 2 || ftruncate(fd, (off_t)dr_file_bytes(SIZE)) || dr_map(&ring, fd, SIZE) ||
	    dr_map(&c.ring, fd, SIZE))
		return 2;
	dr_init(&ring);
	dr_consumer_start(&c);
	if (!strcmp(argv[1], "walk"))
		return walk(&c);
	records = strtoull(argv[1], NULL, 0);
	end = time(NULL) + SECONDS;
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, produce, NULL);
	while (atomic_load(&running) || atomic_load(&taken) < atomic_load(&written)) {
		if (dr_look(&c) || dr_next(&c, &got, payload, sizeof(payload), 0, &holes) != DR_RECORD) {
			sched_yield();
			continue;
		}
		dr_advance(&c, got.bytes);
		dr_publish(&c);
		atomic_fetch_add(&taken, 1);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("written %lu lost %lu\n", (unsigned long)atomic_load(&written),
	       (unsigned long)atomic_load(&ring.header->lost));
	return 0;
}
