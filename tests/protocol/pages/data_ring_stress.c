/* Two processes, one ring: a child with several threads writes numbered records, the parent judges every
 * byte. `data_ring_stress SIZE RECORDS THREADS KILL`: KILL 1 ends the child by SIGKILL in the middle.
 * `data_ring_stress produce FD SIZE RECORDS THREADS` only writes, into a ring that another process judges.
 * The first form prints `taken N committed N lost N holes N skips N`; exit status 1 when anything is wrong.
 * Built with a small DR_LOW it skips whenever it can, and every third time a hole is punched; the
 * threads pause in turns with floods. */
#include "data_ring_consumer.h"
#include "data_ring_producer.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#define MOST_THREADS 8

struct shared {
	_Atomic uint64_t committed[MOST_THREADS]; /* counted after the commit */
	_Atomic uint64_t begun[MOST_THREADS];	  /* counted before the reservation */
};

static struct data_ring ring;
static struct shared *counts;
static uint64_t records;

static uint32_t length_of(uint64_t i) { return 8 + (uint32_t)(i * 2654435761u >> 7) % 200; }

static int is_nearly_empty(void)
{
	return atomic_load(&ring.header->head) - atomic_load(&ring.header->tail) < 1000;
}

static void *produce(void *argument)
{
	uint32_t me = (uint32_t)(uintptr_t)argument;
	for (uint64_t i = 0; i < records; i++) {
		int half;
		uint32_t length = length_of(i);
		while (DR_LOW < DR_MIN_SIZE && i / 1000 % 2 && !is_nearly_empty())
			usleep(20);
		atomic_store(&counts->begun[me], i + 1);
		struct dr_record *rec = dr_reserve(&ring, me, length, &half);
		if (!rec)
			continue;
		rec->time = i;
		rec->tid = me;
		rec->cpu = 0;
		memcpy(rec->payload, &i, 8);
		memset(rec->payload + 8, (int)(i + me), length - 8);
		dr_commit(&ring, rec, length);
		atomic_fetch_add(&counts->committed[me], 1);
	}
	return NULL;
}

static void run_producers(int threads)
{
	pthread_t t[MOST_THREADS];

	for (long i = 0; i < threads; i++)
		pthread_create(&t[i], NULL, produce, (void *)i);
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
}

static int only_produce(char **argv)
{
	records = strtoull(argv[4], NULL, 0);
	counts = calloc(1, sizeof(*counts));
	if (!counts || dr_map(&ring, atoi(argv[2]), (uint32_t)atoi(argv[3])))
		return 2;
	run_producers(atoi(argv[5]));
	return 0;
}

/* Records already loaded first, as in the daemon's rounds; then new ones. */
static int take(struct dr_consumer *c, struct dr_taken *got, unsigned char *payload, int dead,
		uint64_t *holes)
{
	int state = dr_next(c, got, payload, DR_MAX_PAYLOAD, dead, holes);

	if (state != DR_EMPTY)
		return state;
	return dr_look(c) ? DR_CORRUPT : dr_next(c, got, payload, DR_MAX_PAYLOAD, dead, holes);
}

/* The ring is empty, it seems. */
static int skip(struct dr_consumer *c, int fd)
{
	static unsigned skips;
	uint64_t at = c->tail;
	uint32_t size = c->ring.size, bytes, first = size - (uint32_t)(at & (size - 1));

	if (size < 2 * DR_LOW)
		return 0;
	bytes = dr_skip_bytes(c, at);
	if ((((at + bytes) & (size - 1)) && skips % 3) || !dr_skip(c, bytes))
		return 0;
	if (++skips % 3 == 1) {
		if (first > bytes)
			first = bytes;
		if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			      DR_HEADER_BYTES + (off_t)(at & (size - 1)), first) ||
		    (first < bytes && fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, DR_HEADER_BYTES,
						bytes - first)))
			exit(3);
	}
	dr_publish(c);
	return 1;
}

static int is_valid(const struct dr_taken *got, const unsigned char *payload, uint64_t i, int threads)
{
	if (got->write_index >= (uint32_t)threads || got->length != length_of(i) || got->time != i ||
	    got->tid != got->write_index)
		return 0;
	for (uint32_t k = 8; k < got->length; k++)
		if (payload[k] != (unsigned char)(i + got->write_index))
			return 0;
	return 1;
}

/* Every counted commit was taken. Killed between a commit and its count: one more taken than counted. */
static int is_conserved(int threads, const uint64_t *taken)
{
	for (int i = 0; i < threads; i++) {
		uint64_t committed = atomic_load(&counts->committed[i]);

		if (taken[i] < committed || taken[i] > committed + 1) {
			printf("thread %d: taken %lu of %lu\n", i, (unsigned long)taken[i], (unsigned long)committed);
			return 0;
		}
	}
	return 1;
}

int main(int argc, char **argv)
{
	if (argc == 6 && !strcmp(argv[1], "produce"))
		return only_produce(argv);
	if (argc != 5)
		return 2;
	uint32_t size = (uint32_t)atoi(argv[1]);
	int threads = atoi(argv[3]), kill_it = atoi(argv[4]);
	struct dr_consumer c = {0};
	struct dr_taken got;
	static unsigned char payload[DR_MAX_PAYLOAD];
	uint64_t next[MOST_THREADS] = {0}, taken[MOST_THREADS] = {0}, all = 0, holes = 0, committed = 0, begun = 0;
	uint64_t skips = 0;
	int fd = memfd_create("stress", 0), dead = 0;
	pid_t child;

	records = strtoull(argv[2], NULL, 0);
	if (ftruncate(fd, (off_t)dr_file_bytes(size)) || dr_map(&ring, fd, size) || dr_map(&c.ring, fd, size))
		return 2;
	dr_init(&ring);
	dr_consumer_start(&c);
	counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	child = fork();
	if (!child) {
		run_producers(threads);
		_exit(0);
	}
	for (;;) {
		int state = take(&c, &got, payload, dead, &holes);
		if (state == DR_CORRUPT) {
			printf("corrupt\n");
			kill(child, SIGKILL);
			return 1;
		}
		if (state == DR_EMPTY) {
			dr_publish(&c);
			if (dead)
				break;
			skips += (uint64_t)skip(&c, fd);
			if (waitpid(child, NULL, WNOHANG) == child)
				dead = 1;
			continue;
		}
		uint64_t i;
		memcpy(&i, payload, 8);
		if (!is_valid(&got, payload, i, threads) || i < next[got.write_index]) {
			printf("wrong record: index %u number %lu length %u\n", got.write_index, (unsigned long)i, got.length);
			kill(child, SIGKILL);
			return 1;
		}
		next[got.write_index] = i + 1;
		taken[got.write_index]++;
		dr_advance(&c, got.bytes);
		if (++all % 61 == 0)
			dr_publish(&c);
		if (kill_it && all == 1000)
			kill(child, SIGKILL);
	}
	for (int i = 0; i < threads; i++) {
		committed += atomic_load(&counts->committed[i]);
		begun += atomic_load(&counts->begun[i]);
	}
	if (!is_conserved(threads, taken))
		return 1;
	uint64_t lost = atomic_load(&ring.header->lost), lost_each = 0;
	for (uint32_t i = 0; i < DR_LOST_COUNTERS; i++)
		lost_each += atomic_load(&ring.lost[i]);
	printf("taken %lu committed %lu lost %lu holes %lu skips %lu\n", (unsigned long)all,
	       (unsigned long)committed, (unsigned long)lost, (unsigned long)holes, (unsigned long)skips);
	/* Each thread may have died between its counts: that much may be missing, no more. */
	uint64_t missing = begun - (all + lost + holes);
	if ((!kill_it && (missing || holes || lost_each != lost)) || missing > (uint64_t)threads)
		return 1;
	/* All consumed space is zero again. */
	for (uint32_t i = 0; i < size; i++)
		if (!kill_it && c.ring.data[i])
			return 1;
	return 0;
}
