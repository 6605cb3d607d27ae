#include "stream_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

int ut_stream_ring_map(struct ut_stream_ring *ring, int fd)
{
	const int seals = fcntl(fd, F_GET_SEALS);
	struct stat found;
	uint64_t size;
	void *map;

	/* Were it to shrink, reading it would be a SIGBUS. */
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &found) < 0 ||
	    found.st_size < (off_t)(SS_DATA_OFFSET + SS_MIN_SIZE) ||
	    found.st_size > (off_t)(SS_DATA_OFFSET + SS_MAX_SIZE))
		return -EPROTO;
	size = (uint64_t)found.st_size - SS_DATA_OFFSET;
	map = mmap(NULL, (size_t)found.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	*ring = (struct ut_stream_ring){.header = map, .area = (uint8_t *)map + SS_DATA_OFFSET, .size = size};
	if (ring->header->magic != SS_MAGIC || ring->header->version != SS_VERSION ||
	    ring->header->data_offset != SS_DATA_OFFSET || ring->header->size != size || size & (size - 1)) {
		ut_stream_ring_unmap(ring);
		return -EPROTO;
	}
	ring->at = ring->head = ring->released = ss_load(&ring->header->tail);
	return ring->at % 8 ? -EPROTO : 0;
}

void ut_stream_ring_unmap(struct ut_stream_ring *ring)
{
	if (ring->header)
		munmap(ring->header, SS_DATA_OFFSET + ring->size);
	*ring = (struct ut_stream_ring){0};
}

static uint64_t load_head(const struct ut_stream_ring *ring)
{
	uint64_t head = ss_load(&ring->header->head), written;

	if (!ring->is_over)
		return head;
	written = ss_load(&ring->header->written);
	return written - head <= ring->size ? written : head;
}

int ut_stream_ring_has(const struct ut_stream_ring *ring)
{
	return ring->header && load_head(ring) != ring->at;
}

static uint64_t word_at(const uint8_t *at, unsigned index)
{
	return __atomic_load_n((const uint64_t *)at + index, __ATOMIC_RELAXED);
}

int ut_stream_ring_next(struct ut_stream_ring *ring, struct ut_stream_entry *entry)
{
	for (;;) {
		uint64_t at = ring->at & (ring->size - 1), word, common;
		const uint8_t *record = ring->area + at;
		uint32_t size;

		/* Seldom: the line of `tail` is the daemon's too. */
		if (ring->at == ring->head || ring->at - ring->released > ring->size / 16) {
			if (ring->at != ring->released)
				ss_store(&ring->header->tail, ring->at);
			ring->released = ring->at;
		}
		if (ring->at == ring->head) {
			ring->head = load_head(ring);
			if (ring->at == ring->head)
				return 0;
			if (ring->head - ring->at > ring->size)
				return -EPROTO;
		}
		word = word_at(record, 0);
		size = (uint32_t)word;
		entry->kind = (uint16_t)(word >> 32);
		entry->cpu = (uint16_t)(word >> 48);
		if (size < 8 || size & 7 || size > ring->head - ring->at || at + size > ring->size)
			return -EPROTO;
		if (entry->kind == SS_PAD) {
			ring->at += size;
			continue;
		}
		if (size < SS_RECORD_HEADER + SS_COMMON)
			return -EPROTO;
		entry->time_ns = word_at(record, 1);
		word = word_at(record, 2);
		entry->pid = (int32_t)(uint32_t)word;
		entry->length = (uint32_t)(word >> 32);
		if (entry->length < SS_COMMON || entry->length > size - SS_RECORD_HEADER)
			return -EPROTO;
		common = word_at(record, 3);
		entry->id = (uint16_t)common;
		entry->tid = (int32_t)(common >> 32);
		entry->data = record + SS_RECORD_HEADER;
		ring->at += size;
		return 1;
	}
}
