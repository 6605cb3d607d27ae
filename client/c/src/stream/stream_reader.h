/*
 * The reader's end of a stream ring (protocol's stream_ring.h). The daemon may write anything into the
 * memory at any time: each word is loaded once, checked, and used from here.
 */
#ifndef UTRACEFS_STREAM_READER_H
#define UTRACEFS_STREAM_READER_H

#include <stdint.h>

#include "stream_ring.h"
#include "utracefs_stream.h"

struct ut_stream_ring {
	struct ss_header *header; /* NULL: none */
	const uint8_t *area;
	uint64_t size;
	uint64_t at;	   /* behind the last entry */
	uint64_t head;	   /* as last loaded */
	uint64_t released; /* the tail that the daemon knows */
	int is_over;	   /* the daemon has ended: its last records need not be published */
};

struct ut_stream_entry {
	uint16_t kind, cpu, id;
	int32_t pid, tid;
	uint64_t time_ns;
	const uint8_t *data; /* with the common fields */
	uint32_t length;
};

/* Maps it; `fd` stays the caller's. 0, -EPROTO: no stream ring, or one that may shrink; or of mmap(2). */
int ut_stream_ring_map(struct ut_stream_ring *ring, int fd);
void ut_stream_ring_unmap(struct ut_stream_ring *ring);
/* 1: the next entry that is no padding, valid until the next call. 0: none now. -EPROTO. */
int ut_stream_ring_next(struct ut_stream_ring *ring, struct ut_stream_entry *entry);
/* Whether there is one, which may be padding. */
int ut_stream_ring_has(const struct ut_stream_ring *ring);
/* utracefs_stream_read_file, with another limit of waiting. */
int ut_stream_read_file(struct utracefs_stream *s, const char *path, uint64_t wait_ns, char **data,
			size_t *size);

#endif
