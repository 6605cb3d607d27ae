/*
 * Rings that carry a program's output to the tool: see maps.h. Their layouts are the kernel's:
 *
 *     perf event            perf_event_mmap_page | 2^n pages of data; records may wrap
 *     BPF_MAP_TYPE_RINGBUF  consumer's page | producer's page | data | as much for a record over its end
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

static struct bp_ring *due;

int bp_ring_new(struct bp_ring **made)
{
	struct bp_ring *ring = malloc(sizeof(*ring));

	if (!ring)
		return -ENOMEM;
	*ring = (struct bp_ring){.memory = -1, .references = 1, .bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	if (ring->bell < 0) {
		free(ring);
		return -EMFILE;
	}
	*made = ring;
	return 0;
}

void bp_ring_put(struct bp_ring *ring)
{
	struct bp_ring **at = &due;

	if (--ring->references)
		return;
	while (*at && *at != ring)
		at = &(*at)->next_due;
	if (*at)
		*at = ring->next_due;
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

/* header: bytes in front of the data. */
static int make_memory(struct bp_ring *ring, size_t size, size_t header, size_t data)
{
	int fd = memfd_create("bpf-ring", MFD_CLOEXEC);
	void *at = fd < 0 || ftruncate(fd, (off_t)size)
			   ? MAP_FAILED
			   : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED) {
		if (fd >= 0)
			close(fd);
		return -ENOMEM;
	}
	ring->memory = fd;
	ring->pages = at;
	ring->mapped = size;
	ring->data = ring->pages + header;
	ring->data_size = data;
	return 0;
}

/* Whether `size` bytes fit in. */
static int has_room(const struct bp_ring *ring, uint64_t head, const void *tail, uint64_t size)
{
	uint64_t used = head - __atomic_load_n((const uint64_t *)tail, __ATOMIC_ACQUIRE);

	return used <= ring->data_size && size <= ring->data_size - used;
}

int bp_rings_new(struct bp_map *map)
{
	uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE), n = map->max_entries;
	int is_one = map->type == BPF_MAP_TYPE_RINGBUF, error;

	map->nr_rings = is_one ? 1 : n;
	map->rings = calloc(map->nr_rings, sizeof(*map->rings));
	if (!map->rings) {
		map->nr_rings = 0;
		return -ENOMEM;
	}
	error = is_one ? bp_ring_new(&map->rings[0]) : 0;
	return is_one && !error ? make_memory(map->rings[0], 2 * ((size_t)page + n), 2 * page, n) : error;
}

/* ---- perf events */

int bp_ring_map(struct bp_ring *ring, size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), data = size - page;
	struct perf_event_mmap_page *header;
	int error = size < 2 * page || data & (data - 1) || size > 1u << 30 ? -EINVAL : ring->pages ? -EBUSY : 0;

	if (!error)
		error = make_memory(ring, size, page, data);
	if (error)
		return error;
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
		ring->references++;
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

static void put(struct bp_ring *ring, uint64_t *head, const void *data, size_t size)
{
	size_t at = *head & (ring->data_size - 1), first = size < ring->data_size - at ? size : ring->data_size - at;

	memcpy(ring->data + at, data, first);
	memcpy(ring->data, (const uint8_t *)data + first, size - first);
	*head += size;
}

/* Behind the pending losses a record, if data is not NULL. Or -ENOSPC. */
static int put_record(struct bp_ring *ring, const void *data, uint64_t size)
{
	struct perf_event_mmap_page *header = (struct perf_event_mmap_page *)ring->pages;
	struct {
		struct perf_event_header header;
		uint64_t id, lost;
	} lost = {{PERF_RECORD_LOST, 0, sizeof(lost)}, 0, ring->lost};
	struct {
		struct perf_event_header header;
		uint32_t size;
	} sample;
	uint64_t total = data ? (sizeof(sample) + size + 7) & ~7ull : 0, head = header->data_head;

	if (!has_room(ring, head, &header->data_tail, total + (ring->lost ? sizeof(lost) : 0)))
		return -ENOSPC;
	if (ring->lost)
		put(ring, &head, &lost, sizeof(lost));
	ring->lost = 0;
	if (data) {
		sample.header = (struct perf_event_header){PERF_RECORD_SAMPLE, 0, (uint16_t)total};
		sample.size = (uint32_t)(total - sizeof(sample));
		put(ring, &head, &sample, sizeof(sample));
		put(ring, &head, data, size);
		put(ring, &head, (uint8_t[8]){0}, sample.size - size);
	}
	__atomic_store_n(&header->data_head, head, __ATOMIC_RELEASE);
	return 0;
}

int bp_perf_output(struct bp_map *map, uint64_t flags, const void *data, uint64_t size)
{
	struct bp_ring *ring = ring_of(map, flags);
	int error;

	if (!ring || !ring->pages || !ring->is_enabled)
		return -ENOENT;
	if (size > UINT16_MAX - sizeof(struct perf_event_header) - sizeof(uint32_t) - 7)
		return -E2BIG;
	error = put_record(ring, data ? data : "", size);
	ring->lost += error < 0;
	ring->total_lost += error < 0;
	ring_is_due(ring);
	return error;
}

int bp_ring_bells(void)
{
	const int were_due = due != NULL, saved = errno;
	struct bp_ring *ring = due, *next;

	due = NULL;
	for (; ring; ring = next) {
		next = ring->next_due;
		ring->is_due = 0;
		if (ring->lost && put_record(ring, NULL, 0))
			ring_is_due(ring); /* it is still full: again after the next batch */
		if (eventfd_write(ring->bell, 1) < 0)
			errno = saved; /* 2^64 - 2 times without a reader: it is readable */
	}
	return were_due;
}

/* ---- ring buffers */

int bp_ringbuf_may_map(const struct bp_map *map, size_t size, int prot, off_t offset)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if (offset ? offset != (off_t)page || prot & PROT_WRITE : size > page)
		return -EPERM;
	return offset && size > page + 2 * (size_t)map->max_entries ? -EINVAL : 0;
}

/* The two positions, each on a page of its own. */
static uint64_t *consumer(const struct bp_ring *ring)
{
	return (uint64_t *)ring->pages;
}

static uint64_t *producer(const struct bp_ring *ring)
{
	return (uint64_t *)(ring->pages + (ring->data - ring->pages) / 2);
}

struct ringbuf_header {
	uint32_t length, page_offset;
};

void *bp_ringbuf_reserve(struct bp_map *map, uint64_t size)
{
	struct bp_ring *ring = map->rings[0];
	uint64_t head = *producer(ring), total = (sizeof(struct ringbuf_header) + size + 7) & ~7ull;
	struct ringbuf_header *header = (struct ringbuf_header *)(ring->data + (head & (ring->data_size - 1)));

	if (size > UINT32_MAX / 4 || !has_room(ring, head, consumer(ring), total)) {
		ring->total_lost++;
		return NULL;
	}
	header->page_offset = 0;
	__atomic_store_n(&header->length, (uint32_t)size | BPF_RINGBUF_BUSY_BIT, __ATOMIC_RELAXED);
	__atomic_store_n(producer(ring), head + total, __ATOMIC_RELEASE);
	return header + 1;
}

void bp_ringbuf_commit(struct bp_map *map, void *sample, uint64_t flags, int is_discarded)
{
	struct ringbuf_header *header = (struct ringbuf_header *)sample - 1;
	uint32_t length = header->length & ~BPF_RINGBUF_BUSY_BIT;

	__atomic_store_n(&header->length, length | (is_discarded ? BPF_RINGBUF_DISCARD_BIT : 0), __ATOMIC_RELEASE);
	if (!(flags & BPF_RB_NO_WAKEUP))
		ring_is_due(map->rings[0]);
}

uint64_t bp_ringbuf_query(const struct bp_map *map, uint64_t flags)
{
	const struct bp_ring *ring = map->rings[0];
	uint64_t head = *producer(ring), tail = __atomic_load_n(consumer(ring), __ATOMIC_ACQUIRE);
	const uint64_t answers[] = {[BPF_RB_AVAIL_DATA] = head - tail, [BPF_RB_RING_SIZE] = ring->data_size,
				    [BPF_RB_CONS_POS] = tail, [BPF_RB_PROD_POS] = head};

	return flags < sizeof(answers) / sizeof(*answers) ? answers[flags] : 0;
}
