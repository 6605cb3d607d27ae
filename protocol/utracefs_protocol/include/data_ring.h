/*
 * The data ring: one process's records on their way to the daemon, in memory that both map.
 *
 * Not the ring buffer. The ring buffer belongs to a consumer inside the daemon and keeps records until somebody reads
 * them; the data ring carries them there, and nothing stays in it.
 *
 * The memory (a memfd made by the daemon, sealed against shrinking, growing and further seals):
 *
 *     0                     4096                        4096 + size              4096 + size + 16384
 *     +---------------------+---------------------------+------------------------+
 *     | header page         | data area                 | lost[4096], u32 each   |
 *     +---------------------+---------------------------+------------------------+
 *
 * Both sides map the data area twice, back to back, so that a record which begins near its end is written and read
 * in one piece (dr_map below):
 *
 *     header | data | data again | lost
 *
 * Positions (head, tail) count bytes since the beginning and never wrap in practice (2^64); `position & (size - 1)`
 * is the place in the data area. A record starts on a multiple of 8.
 *
 * Who may touch what, and when
 * ----------------------------
 *   head            producers only, by compare-and-swap. It only grows.
 *   tail            the daemon only. It only grows. Everything in [tail, head) belongs to producers until committed,
 *                   everything outside of it is zero: the daemon clears what it consumed before it moves tail.
 *   a record        from the compare-and-swap that reserved it until its COMMITTED bit is set: the one thread that
 *                   reserved it. Afterwards: the daemon. Nobody else, ever.
 *   lost, lost[]    producers add, the daemon reads.
 *   need_wakeup     the daemon sets it to 1 before it sleeps; the producer that exchanges it to 0 rings the doorbell.
 *
 * States of the length word at a record's start
 * ---------------------------------------------
 *   0                       reserved a moment ago, or not reserved at all
 *   length                  reserved by a thread that is filling it now (or that died while it did)
 *   COMMITTED | length      complete
 *
 * The bare length lets the daemon step over the record of a dead producer and take what lies behind it. Only a
 * producer that dies in the one instruction between its compare-and-swap and that store leaves a hole of unknown
 * length, which ends the ring.
 *
 * Memory order
 * ------------
 * 1. The daemon's clearing must be seen before the space is used again: it clears, then stores tail with release; a
 *    producer loads tail with acquire before it reserves. Hence a fresh length word is 0, never a leftover of the lap
 *    before that happens to look committed. This is why everything consumed is cleared and not just the length words:
 *    in the next lap the records start elsewhere.
 * 2. A record's bytes must be seen before its COMMITTED bit: the bit is stored with (at least) release and loaded with
 *    acquire.
 * 3. No lost wake-up: the producer stores COMMITTED and then loads need_wakeup; the daemon stores need_wakeup and then
 *    looks at the ring once more. Store-then-load on both sides needs one total order, so these four are seq_cst: on
 *    x86-64 one xchg, on aarch64 stlr and ldar, which the architecture orders.
 * 4. head needs no order of its own: a record is found through its length word, and head only tells how far to look. It
 *    is acquire/release all the same so that the daemon never sees a length word from before the reservation.
 *
 * Everything in this memory is hostile to the daemon: it keeps its own tail, bounds head and every length against
 * the size that it knows, and copies a record out before it looks at it (dr_next). A producer trusts the daemon but
 * cannot be made to write outside of its mapping either: places are masked.
 *
 * Signal handlers may emit: reserving takes no lock, and a handler that interrupts a thread between reserve and
 * commit simply reserves behind it.
 */
#ifndef UTRACEFS_DATA_RING_H
#define UTRACEFS_DATA_RING_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DR_MAGIC 0x52525455u /* "UTRR" */
#define DR_VERSION 1u
#define DR_HEADER_BYTES 4096u
#define DR_RECORD_HEADER 24u
#define DR_LOST_COUNTERS 4096u
#define DR_LOST_BYTES (DR_LOST_COUNTERS * 4u)
#define DR_MIN_SIZE (64u << 10)
#define DR_MAX_SIZE (64u << 20)
#define DR_DEFAULT_SIZE (1u << 20)
#define DR_COMMITTED 0x80000000u
#define DR_LENGTH_MASK 0x00ffffffu
/* One record's payload: what the socket path takes, too (a bin object of 64 KiB, less its header and the index). */
#define DR_MAX_PAYLOAD 65529u

/* Each field that somebody writes while others read stands on a cache line of its own. */
struct dr_header {
	uint32_t magic;
	uint32_t version;
	uint32_t size;
	uint32_t record_header;
	unsigned char pad0[64 - 16];
	_Atomic uint64_t head;
	unsigned char pad1[64 - 8];
	_Atomic uint64_t tail;
	unsigned char pad2[64 - 8];
	_Atomic uint64_t lost;
	unsigned char pad3[64 - 8];
	_Atomic uint32_t need_wakeup;
};

struct dr_record {
	_Atomic uint32_t length_word;
	uint32_t write_index;
	uint64_t ts_ns;
	uint32_t tid;
	uint16_t cpu;
	uint16_t zero;
	unsigned char payload[];
};

_Static_assert(offsetof(struct dr_header, head) == 64, "head");
_Static_assert(offsetof(struct dr_header, tail) == 128, "tail");
_Static_assert(offsetof(struct dr_header, lost) == 192, "lost");
_Static_assert(offsetof(struct dr_header, need_wakeup) == 256, "need_wakeup");
_Static_assert(sizeof(struct dr_record) == DR_RECORD_HEADER, "record header");
_Static_assert(offsetof(struct dr_record, ts_ns) == 8 && offsetof(struct dr_record, cpu) == 20, "record");

/* A process's view of one ring. */
struct data_ring {
	struct dr_header *header;
	unsigned char *data;
	_Atomic uint32_t *lost;
	uint32_t size;
	size_t map_bytes;
};

static inline int dr_valid_size(uint64_t size)
{
	return size >= DR_MIN_SIZE && size <= DR_MAX_SIZE && (size & (size - 1)) == 0;
}

static inline size_t dr_file_bytes(uint32_t size)
{
	return (size_t)DR_HEADER_BYTES + size + DR_LOST_BYTES;
}

/* Maps the memfd `fd` of a ring whose data area has `size` bytes. 0, or -errno with nothing mapped. The caller has
 * checked the file's length and seals (the daemon), or has the size from the daemon (the producer). */
static inline int dr_map(struct data_ring *r, int fd, uint32_t size)
{
	const int prot = PROT_READ | PROT_WRITE;
	const int flags = MAP_SHARED | MAP_FIXED;
	size_t bytes = (size_t)DR_HEADER_BYTES + 2 * (size_t)size + DR_LOST_BYTES;
	unsigned char *at;

	if (!dr_valid_size(size))
		return -EINVAL;
	at = (unsigned char *)mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return -errno;
	if (mmap(at, (size_t)DR_HEADER_BYTES + size, prot, flags, fd, 0) == MAP_FAILED ||
	    mmap(at + DR_HEADER_BYTES + size, (size_t)size + DR_LOST_BYTES, prot, flags, fd, DR_HEADER_BYTES) ==
		    MAP_FAILED) {
		int error = -errno;
		munmap(at, bytes);
		return error;
	}
	r->header = (struct dr_header *)at;
	r->data = at + DR_HEADER_BYTES;
	/* The second mapping of the data runs on into the counters: data | data again | lost. */
	r->lost = (_Atomic uint32_t *)(at + DR_HEADER_BYTES + 2 * (size_t)size);
	r->size = size;
	r->map_bytes = bytes;
	return 0;
}

static inline void dr_unmap(struct data_ring *r)
{
	if (r->header)
		munmap(r->header, r->map_bytes);
	memset(r, 0, sizeof(*r));
}

/* The daemon's part of making a ring: the file is new, so all else is zero. */
static inline void dr_init(struct data_ring *r)
{
	r->header->magic = DR_MAGIC;
	r->header->version = DR_VERSION;
	r->header->size = r->size;
	r->header->record_header = DR_RECORD_HEADER;
}

static inline uint32_t dr_need(uint32_t payload)
{
	return (DR_RECORD_HEADER + payload + 7u) & ~7u;
}

/* ------------------------------------------------------------------------------------------------ producer */

static inline void dr_count_lost(struct data_ring *r, uint32_t write_index)
{
	uint32_t slot = write_index < DR_LOST_COUNTERS ? write_index : DR_LOST_COUNTERS - 1;

	atomic_fetch_add_explicit(&r->lost[slot], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&r->header->lost, 1, memory_order_release);
}

/* Reserves a record with room for `payload` bytes. NULL: it did not fit and is counted as lost. `*half` is set when
 * this reservation made the ring more than half full: ring the doorbell after the commit. */
static inline struct dr_record *dr_reserve(struct data_ring *r, uint32_t write_index, uint32_t payload, int *half)
{
	uint32_t need = dr_need(payload);
	uint64_t head = atomic_load_explicit(&r->header->head, memory_order_relaxed);
	uint64_t used;
	struct dr_record *rec;

	if (payload > DR_MAX_PAYLOAD) {
		dr_count_lost(r, write_index);
		return NULL;
	}
	do {
		uint64_t tail = atomic_load_explicit(&r->header->tail, memory_order_acquire);

		used = head - tail;
		/* Unsigned: a tail ahead of head (a broken daemon) is "full" as well. `used` may be stale when head
		 * moved on; the compare-and-swap below then fails and it is looked at again. */
		if (used > r->size || used + need > r->size) {
			dr_count_lost(r, write_index);
			return NULL;
		}
	} while (!atomic_compare_exchange_weak_explicit(&r->header->head, &head, head + need, memory_order_acq_rel,
							memory_order_relaxed));
	*half = used <= r->size / 2 && used + need > r->size / 2;
	rec = (struct dr_record *)(r->data + (head & (r->size - 1)));
	atomic_store_explicit(&rec->length_word, payload, memory_order_relaxed);
	rec->write_index = write_index;
	return rec;
}

/* Makes a filled record visible. 1: ring the doorbell (write 8 bytes to the eventfd), the daemon sleeps. */
static inline int dr_commit(struct data_ring *r, struct dr_record *rec, uint32_t payload)
{
	atomic_store_explicit(&rec->length_word, payload | DR_COMMITTED, memory_order_seq_cst);
	if (atomic_load_explicit(&r->header->need_wakeup, memory_order_seq_cst) == 0)
		return 0;
	return atomic_exchange_explicit(&r->header->need_wakeup, 0, memory_order_seq_cst) == 1;
}

/* For a producer that gives its ring up: steps through the records that nobody took. `*position` begins at 0. 1: a record
 * of `*write_index`; 0: no more (or one without a length, behind which nothing can be found). */
static inline int dr_walk(struct data_ring *r, uint64_t *position, uint32_t *write_index)
{
	uint64_t head = atomic_load_explicit(&r->header->head, memory_order_acquire);
	struct dr_record *rec;
	uint32_t length;

	if (*position == 0)
		*position = atomic_load_explicit(&r->header->tail, memory_order_acquire);
	if (head - *position == 0 || head - *position > r->size)
		return 0;
	rec = (struct dr_record *)(r->data + (*position & (r->size - 1)));
	length = atomic_load_explicit(&rec->length_word, memory_order_acquire) & DR_LENGTH_MASK;
	if (atomic_load_explicit(&rec->length_word, memory_order_relaxed) == 0 || length > DR_MAX_PAYLOAD)
		return 0;
	*write_index = rec->write_index;
	*position += dr_need(length);
	return 1;
}

/* For measurements: empty a ring that nobody else uses, as the daemon would leave it. */
static inline void dr_empty(struct data_ring *r)
{
	memset(r->data, 0, r->size);
	atomic_store_explicit(&r->header->tail, atomic_load_explicit(&r->header->head, memory_order_relaxed),
			      memory_order_release);
}

/* ------------------------------------------------------------------------------------------------ the daemon */

enum dr_state {
	DR_EMPTY = 0,	/* nothing committed at tail now */
	DR_RECORD = 1,	/* a record was copied out */
	DR_CORRUPT = -1 /* the shared memory says what cannot be: end the connection (EPROTO) */
};

/* The daemon's own side of a ring. `tail` here is the truth; the shared one only tells producers. */
struct dr_consumer {
	struct data_ring ring;
	uint64_t tail;
	uint64_t told; /* tail as last published */
};

/* A record's header and payload, copied out of the hostile memory. */
struct dr_taken {
	uint32_t length;
	uint32_t write_index;
	uint64_t ts_ns;
	uint32_t tid;
	uint16_t cpu;
	uint32_t bytes; /* what it occupies in the ring */
};

/* Takes over a ring at the tail that its memory tells (0 for a new one). 0, or -EPROTO when that cannot be. */
static inline int dr_consumer_start(struct dr_consumer *c)
{
	uint64_t head = atomic_load_explicit(&c->ring.header->head, memory_order_acquire);

	c->tail = atomic_load_explicit(&c->ring.header->tail, memory_order_acquire);
	c->told = c->tail;
	return head - c->tail > c->ring.size || (c->tail & 7) || (head & 7) ? -EPROTO : 0;
}

/* Looks at the record at the consumer's tail. With `dead` (the producer is gone) records that were reserved and never
 * committed are stepped over and counted in `*holes`. On DR_RECORD the header is in `*out` and the payload, at most
 * `room` bytes of it (room >= DR_MAX_PAYLOAD), in `payload`. The tail moves on with dr_advance. */
static inline int dr_next(struct dr_consumer *c, struct dr_taken *out, unsigned char *payload, uint32_t room, int dead,
			  uint64_t *holes)
{
	for (;;) {
		uint64_t head = atomic_load_explicit(&c->ring.header->head, memory_order_acquire);
		uint64_t have = head - c->tail;
		struct dr_record *rec;
		uint32_t word, length, bytes;

		if (have == 0)
			return DR_EMPTY;
		/* Covers a head behind tail (huge), one too far ahead, and one that is no multiple of 8. */
		if (have > c->ring.size || (have & 7))
			return DR_CORRUPT;
		rec = (struct dr_record *)(c->ring.data + (c->tail & (c->ring.size - 1)));
		word = atomic_load_explicit(&rec->length_word, memory_order_seq_cst);
		length = word & DR_LENGTH_MASK;
		bytes = dr_need(length);
		if (!(word & DR_COMMITTED)) {
			if (!dead)
				return DR_EMPTY;
			++*holes;
			if (word == 0 || length > DR_MAX_PAYLOAD || bytes > have)
				return DR_EMPTY; /* length unknown: what lies behind cannot be found */
			memset((void *)rec, 0, bytes);
			c->tail += bytes;
			continue;
		}
		/* (word carries neither bits 24..30 nor a length that reaches past head) */
		if ((word & ~(DR_COMMITTED | DR_LENGTH_MASK)) || length > DR_MAX_PAYLOAD || bytes > have || length > room)
			return DR_CORRUPT;
		out->length = length;
		out->write_index = rec->write_index;
		out->ts_ns = rec->ts_ns;
		out->tid = rec->tid;
		out->cpu = rec->cpu;
		out->bytes = bytes;
		memcpy(payload, rec->payload, length);
		return DR_RECORD;
	}
}

/* The record that dr_next gave has been dealt with: its space is cleared, and may be used again once told. */
static inline void dr_advance(struct dr_consumer *c, uint32_t bytes)
{
	memset(c->ring.data + (c->tail & (c->ring.size - 1)), 0, bytes);
	c->tail += bytes;
}

/* Gives the consumed space back to the producers. */
static inline void dr_publish(struct dr_consumer *c)
{
	if (c->told != c->tail) {
		atomic_store_explicit(&c->ring.header->tail, c->tail, memory_order_release);
		c->told = c->tail;
	}
}

/* Before sleeping: ask for the doorbell. The caller looks at the ring once more afterwards, and sleeps only if it is
 * still empty (point 3 above). */
static inline void dr_want_wakeup(struct dr_consumer *c, int wanted)
{
	atomic_store_explicit(&c->ring.header->need_wakeup, wanted ? 1u : 0u, memory_order_seq_cst);
}

/* What the shared memory says now; hostile, like all of it. */
static inline uint64_t dr_head(struct dr_consumer *c)
{
	return atomic_load_explicit(&c->ring.header->head, memory_order_acquire);
}

static inline uint64_t dr_lost(struct dr_consumer *c)
{
	return atomic_load_explicit(&c->ring.header->lost, memory_order_acquire);
}

static inline uint32_t dr_lost_of(struct dr_consumer *c, uint32_t write_index)
{
	return atomic_load_explicit(&c->ring.lost[write_index], memory_order_relaxed);
}

#endif
