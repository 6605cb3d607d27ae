/*
 * Rings that carry a program's output to the tool: see maps.h. Their layouts are the kernel's.
 *
 * perf event          perf_event_mmap_page | 2^n pages of data; records may wrap; the tool writes data_tail
 * BPF_MAP_TYPE_RINGBUF  consumer's page | producer's page | data, mapped twice, so that records are never cut
 *
 * The tool's positions are checked: a wrong one makes the ring look full.
 */
#include "maps.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define BP_WRITABLE (PROT_READ | PROT_WRITE)

static struct bp_ring *due;

int bp_ring_new(struct bp_ring **made)
{
	struct bp_ring *ring = calloc(1, sizeof(*ring));

	if (!ring)
		return -ENOMEM;
	ring->memory = -1;
	ring->references = 1;
	ring->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ring->bell < 0) {
		free(ring);
		return -EMFILE;
	}
	*made = ring;
	return 0;
}

void bp_ring_get(struct bp_ring *ring)
{
	ring->references++;
}

void bp_ring_put(struct bp_ring *ring)
{
	if (--ring->references)
		return;
	for (struct bp_ring **at = &due; *at; at = &(*at)->next_due)
		if (*at == ring) {
			*at = ring->next_due;
			break;
		}
	if (ring->pages)
		munmap(ring->pages, ring->mapped);
	if (ring->memory >= 0)
		close(ring->memory);
	close(ring->bell);
	free(ring);
}

static void ring_is_due(struct bp_ring *ring)
{
	if (ring->is_due)
		return;
	ring->is_due = 1;
	ring->next_due = due;
	due = ring;
}

/* A memfd of this size, mapped at `at` or anywhere. */
static int make_memory(struct bp_ring *ring, size_t size, void *at)
{
	ring->memory = memfd_create("bpf-ring", MFD_CLOEXEC);
	if (ring->memory < 0)
		return -EMFILE;
	if (ftruncate(ring->memory, (off_t)size))
		return -ENOMEM;
	at = mmap(at, size, BP_WRITABLE, MAP_SHARED | (at ? MAP_FIXED : 0), ring->memory, 0);
	if (at == MAP_FAILED)
		return -ENOMEM;
	ring->pages = at;
	return 0;
}

/* ---- perf events */

int bp_ring_map(struct bp_ring *ring, size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), data = size - page;
	struct perf_event_mmap_page *header;
	int error;

	if (size < 2 * page || data & (data - 1) || size > 1u << 30)
		return -EINVAL;
	if (ring->pages)
		return -EBUSY;
	error = make_memory(ring, size, NULL);
	if (error) {
		if (ring->memory >= 0)
			close(ring->memory);
		ring->memory = -1;
		return error;
	}
	ring->mapped = size;
	ring->data_size = data;
	header = (struct perf_event_mmap_page *)ring->pages;
	header->data_offset = page;
	header->data_size = data;
	return 0;
}

int bp_map_set_ring(struct bp_map *map, uint32_t index, struct bp_ring *ring)
{
	if (map->type != BPF_MAP_TYPE_PERF_EVENT_ARRAY)
		return -EINVAL;
	if (index >= map->nr_rings)
		return -E2BIG;
	if (ring)
		bp_ring_get(ring);
	if (map->rings[index])
		bp_ring_put(map->rings[index]);
	map->rings[index] = ring;
	return 0;
}

static struct bp_ring *ring_of(const struct bp_map *map, uint64_t flags)
{
	uint32_t index = (uint32_t)flags, i = 0;

	if (index != (uint32_t)BPF_F_CURRENT_CPU)
		return index < map->nr_rings ? map->rings[index] : NULL;
	while (i < map->nr_rings && !map->rings[i])
		i++;
	return i < map->nr_rings ? map->rings[i] : NULL;
}

static uint64_t put(struct bp_ring *ring, uint64_t head, const void *data, size_t size)
{
	size_t page = (size_t)(ring->mapped - ring->data_size), at = head & (ring->data_size - 1);
	size_t first = size < ring->data_size - at ? size : ring->data_size - at;

	memcpy(ring->pages + page + at, data, first);
	memcpy(ring->pages + page, (const uint8_t *)data + first, size - first);
	return head + size;
}

struct lost {
	struct perf_event_header header;
	uint64_t id, lost;
};

/* Whether there is room for a record of this size, which is 0 for none, behind the pending losses, which it
 * writes. */
static int make_room(struct bp_ring *ring, uint64_t *head, uint64_t size)
{
	struct perf_event_mmap_page *header = (struct perf_event_mmap_page *)ring->pages;
	struct lost lost = {{PERF_RECORD_LOST, 0, sizeof(lost)}, 0, ring->lost};
	uint64_t used;

	*head = header->data_head;
	used = *head - __atomic_load_n(&header->data_tail, __ATOMIC_ACQUIRE);
	size += ring->lost ? sizeof(lost) : 0;
	if (used > ring->data_size || size > ring->data_size - used)
		return 0;
	if (ring->lost)
		*head = put(ring, *head, &lost, sizeof(lost));
	ring->lost = 0;
	return 1;
}

static void publish(struct bp_ring *ring, uint64_t head)
{
	__atomic_store_n(&((struct perf_event_mmap_page *)ring->pages)->data_head, head, __ATOMIC_RELEASE);
	ring_is_due(ring);
}

int bp_perf_output(struct bp_map *map, uint64_t flags, const void *data, uint64_t size)
{
	struct bp_ring *ring = ring_of(map, flags);
	struct {
		struct perf_event_header header;
		uint32_t size;
	} sample;
	uint64_t total = (sizeof(sample) + size + 7) & ~7ull, head;
	static const uint8_t zeros[8];

	if (!ring || !ring->pages || !ring->is_enabled)
		return -ENOENT;
	if (size > UINT16_MAX || total > UINT16_MAX)
		return -E2BIG;
	if (!make_room(ring, &head, total)) {
		bp_ring_lose(ring, 1);
		return -ENOSPC;
	}
	sample.header = (struct perf_event_header){PERF_RECORD_SAMPLE, 0, (uint16_t)total};
	sample.size = (uint32_t)(total - sizeof(sample));
	head = put(ring, head, &sample, sizeof(sample));
	head = put(ring, head, data, size);
	publish(ring, put(ring, head, zeros, total - sizeof(sample) - size));
	return 0;
}

void bp_ring_lose(struct bp_ring *ring, uint64_t count)
{
	ring->lost += count;
	ring->total_lost += count;
	ring_is_due(ring);
}

int bp_ring_bells(void)
{
	const int were_due = due != NULL;
	struct bp_ring *ring = due, *next;
	uint64_t one = 1, head;

	due = NULL;
	for (; ring; ring = next) {
		int saved = errno;

		next = ring->next_due;
		if (ring->lost && ring->pages && make_room(ring, &head, 0))
			publish(ring, head);
		ring->is_due = 0;
		if (ring->lost)
			ring_is_due(ring); /* it is still full: again after the next batch */
		if (write(ring->bell, &one, sizeof(one)) < 0)
			errno = saved; /* 2^64 - 2 times without a reader: it is readable */
	}
	return were_due;
}

/* ---- ring buffers */

int bp_ringbuf_new(struct bp_map *map)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), size = map->max_entries;
	struct bp_ring *ring;
	uint8_t *at;
	int error = bp_ring_new(&ring);

	if (error)
		return error;
	map->rings[0] = ring;
	map->fd = ring->bell;
	at = mmap(NULL, 2 * (page + size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return -ENOMEM;
	ring->pages = at;
	ring->mapped = 2 * (page + size);
	ring->data_size = size;
	error = make_memory(ring, 2 * page + size, at);
	if (!error && mmap(at + 2 * page + size, size, BP_WRITABLE, MAP_SHARED | MAP_FIXED, ring->memory,
			   (off_t)(2 * page)) == MAP_FAILED)
		error = -ENOMEM;
	return error;
}

void *bp_ringbuf_map(struct bp_map *map, void *address, size_t size, int prot, int flags, off_t offset,
		     int *error)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), data = map->max_entries, once = page + data;
	int fixed = (flags & ~MAP_ANONYMOUS) | MAP_FIXED;
	uint8_t *at;

	*error = offset == 0 && size <= page		      ? 0
		 : offset == (off_t)page && !(prot & PROT_WRITE) ? 0
								 : EPERM;
	if (!*error && offset && (size > page + 2 * data || !(flags & MAP_SHARED)))
		*error = EINVAL;
	if (*error)
		return MAP_FAILED;
	if (size <= once)
		once = size;
	at = mmap(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | (flags & MAP_FIXED), -1, 0);
	if (at == MAP_FAILED ||
	    mmap(at, once, prot, fixed, map->rings[0]->memory, offset) == MAP_FAILED ||
	    (size > once && mmap(at + once, size - once, prot, fixed, map->rings[0]->memory,
				 (off_t)(2 * page)) == MAP_FAILED)) {
		*error = errno;
		if (at != MAP_FAILED)
			munmap(at, size);
		return MAP_FAILED;
	}
	return at;
}

/* The two positions, each on a page of its own. */
static uint64_t *consumer(const struct bp_ring *ring)
{
	return (uint64_t *)ring->pages;
}

static uint8_t *data_of(const struct bp_ring *ring)
{
	return ring->pages + (ring->mapped - 2 * ring->data_size);
}

static uint64_t *producer(const struct bp_ring *ring)
{
	return (uint64_t *)(ring->pages + (ring->mapped - 2 * ring->data_size) / 2);
}

struct ringbuf_header {
	uint32_t length, page_offset;
};

static struct ringbuf_header *header_of(void *sample)
{
	return (struct ringbuf_header *)sample - 1;
}

void *bp_ringbuf_reserve(struct bp_map *map, uint64_t size)
{
	struct bp_ring *ring = map->rings[0];
	uint64_t head = *producer(ring), used = head - __atomic_load_n(consumer(ring), __ATOMIC_ACQUIRE);
	uint64_t total = (sizeof(struct ringbuf_header) + size + 7) & ~7ull;
	struct ringbuf_header *header;

	if (size > UINT32_MAX / 4 || used > ring->data_size || total > ring->data_size - used) {
		ring->total_lost++;
		return NULL;
	}
	header = (struct ringbuf_header *)(data_of(ring) + (head & (ring->data_size - 1)));
	header->page_offset = 0;
	__atomic_store_n(&header->length, (uint32_t)size | BPF_RINGBUF_BUSY_BIT, __ATOMIC_RELAXED);
	__atomic_store_n(producer(ring), head + total, __ATOMIC_RELEASE);
	return header + 1;
}

void bp_ringbuf_commit(struct bp_map *map, void *sample, uint64_t flags, int is_discarded)
{
	struct ringbuf_header *header = header_of(sample);
	uint32_t length = header->length & ~BPF_RINGBUF_BUSY_BIT;

	__atomic_store_n(&header->length, length | (is_discarded ? BPF_RINGBUF_DISCARD_BIT : 0),
			 __ATOMIC_RELEASE);
	if (!(flags & BPF_RB_NO_WAKEUP))
		ring_is_due(map->rings[0]);
}

uint64_t bp_ringbuf_query(const struct bp_map *map, uint64_t flags)
{
	const struct bp_ring *ring = map->rings[0];
	uint64_t head = *producer(ring), tail = __atomic_load_n(consumer(ring), __ATOMIC_ACQUIRE);

	switch (flags) {
	case BPF_RB_AVAIL_DATA:
		return head - tail;
	case BPF_RB_RING_SIZE:
		return ring->data_size;
	case BPF_RB_CONS_POS:
		return tail;
	case BPF_RB_PROD_POS:
		return head;
	default:
		return 0;
	}
}

