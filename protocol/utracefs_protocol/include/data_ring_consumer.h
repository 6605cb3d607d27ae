/*
 * The daemon's side of a data ring (data_ring.h): take records out of untrusted memory.
 *
 *     dr_look       loads head, the producers' position
 *     dr_next       copies the record at the tail out, or reports that there is none or the memory is corrupt
 *     dr_advance    clears its place when it is processed
 *     dr_publish    gives the cleared space back to the producers
 *     dr_skip       steps over free space of an empty ring
 *
 * One thread at a time. data_ring.h says which words of this memory are trusted.
 */
#ifndef UTRACEFS_DATA_RING_CONSUMER_H
#define UTRACEFS_DATA_RING_CONSUMER_H

#include "data_ring.h" /* defines _GNU_SOURCE */
#include "copy.h"

/* Prefetch distance in bytes. Lines are prefetched for writing, since they are cleared after reading. It
 * saves 2 ns of 30 per record. */
#define DR_AHEAD 512u

enum dr_state {
	DR_EMPTY = 0,	/* nothing committed at tail now */
	DR_RECORD = 1,	/* a record was copied out */
	DR_CORRUPT = -1 /* invalid shared memory: end the connection (EPROTO) */
};

/* The daemon's state of a ring. This `tail` is authoritative; the shared one informs producers. */
struct dr_consumer {
	struct data_ring ring;
	uint64_t tail;
	uint64_t published; /* tail as last published */
	uint64_t withheld; /* consumed bytes that producers do not get back for now */
	uint64_t head; /* as dr_look found it; tail <= head <= tail + size */
};

/* A record's header, copied out of the hostile memory. */
struct dr_taken {
	uint32_t length;
	uint32_t write_index;
	uint64_t time;
	uint32_t tid;
	uint16_t cpu;
	uint16_t flags;
	uint32_t bytes; /* what it occupies in the ring */
	unsigned char comm[DR_COMM]; /* with DR_NAMED, as given by the producer */
};

/* Loads head, the limit of dr_next. Call it once for many records: each load takes the cache line from a
 * producer, which waits for it with its next record. DR_CORRUPT for a head behind
 * tail, one too far ahead, and one that is no multiple of 8; else 0. */
static inline int dr_look(struct dr_consumer *c)
{
	/* seq_cst: it is the daemon's second look before it sleeps (point 3 of data_ring.h). */
	uint64_t head = atomic_load_explicit(&c->ring.header->head, memory_order_seq_cst);

	if (head - c->tail > c->ring.size)
		head &= ~DR_CLOSED;
	if (head - c->tail > c->ring.size || (head & 7))
		return DR_CORRUPT;
	c->head = head;
	return 0;
}

/* Takes over a ring at the tail stored in its memory (0 for a new one). 0, or -EPROTO for invalid
 * positions. */
static inline int dr_consumer_start(struct dr_consumer *c)
{
	c->head = c->published = c->tail = atomic_load_explicit(&c->ring.header->tail, memory_order_acquire);
	return (c->tail & 7) || dr_look(c) == DR_CORRUPT ? -EPROTO : 0;
}

/* Looks at the record at the consumer's tail. With `dead` (the producer is gone) records that were reserved
 * and never committed are skipped and counted in `*holes`. On DR_RECORD the header is in `*out` and the
 * payload, at most `room` bytes of it (room >= DR_MAX_PAYLOAD), in `payload`; without the name. dr_advance
 * moves the tail. */
static inline int dr_next(struct dr_consumer *c, struct dr_taken *out, unsigned char *payload, uint32_t room,
			  int dead, uint64_t *holes)
{
	for (;;) {
		uint64_t have = c->head - c->tail;
		struct dr_record *rec;
		uint32_t word, length, bytes;

		/* (a tail that was moved without a look since then may be ahead of it) */
		if (have == 0 || have > c->ring.size)
			return DR_EMPTY;
		rec = (struct dr_record *)(c->ring.data + (c->tail & (c->ring.size - 1)));
		if (have > DR_AHEAD)
			__builtin_prefetch((unsigned char *)rec + DR_AHEAD, 1);
		word = atomic_load_explicit(&rec->length_word, memory_order_seq_cst);
		length = word & DR_LENGTH_MASK;
		bytes = dr_need(length);
		if (!(word & DR_COMMITTED)) {
			if (!dead)
				return DR_EMPTY;
			++*holes;
			/* Its thread died before it stored the length: the next record is where zeros end. */
			for (bytes = word ? bytes : 8; !word && bytes < have && bytes < dr_need(DR_MAX_PAYLOAD); bytes += 8)
				if (atomic_load_explicit(&((struct dr_record *)((unsigned char *)rec + bytes))->length_word,
							 memory_order_relaxed))
					break;
			if (length > DR_MAX_PAYLOAD || bytes > have)
				return DR_EMPTY;
			memset((void *)rec, 0, bytes);
			c->tail += bytes;
			continue;
		}
		/* (word carries neither bits 24..30 nor a length that reaches past head) */
		if ((word & ~(DR_COMMITTED | DR_LENGTH_MASK)) || length > DR_MAX_PAYLOAD || bytes > have ||
		    length > room)
			return DR_CORRUPT;
		out->length = length;
		out->write_index = rec->write_index;
		out->time = rec->time;
		out->tid = rec->tid;
		out->cpu = rec->cpu;
		out->flags = rec->flags;
		out->bytes = bytes;
		ut_copy(payload, rec->payload, length);
		if (out->flags & DR_NAMED) {
			if (length < DR_COMM) {
				out->flags &= (uint16_t)~DR_NAMED;
			} else {
				out->length -= DR_COMM;
				memcpy(out->comm, payload + out->length, DR_COMM);
			}
		}
		return DR_RECORD;
	}
}

/* The record of dr_next is processed: clears its space, which may be reused after dr_publish. */
static inline void dr_advance(struct dr_consumer *c, uint32_t bytes)
{
	ut_clear(c->ring.data + (c->tail & (c->ring.size - 1)), bytes);
	c->tail += bytes;
}

/* Returns the consumed space to the producers, but for `withheld`. */
static inline void dr_publish(struct dr_consumer *c)
{
	if (c->tail - c->published > c->withheld) {
		c->published = c->tail - c->withheld;
		atomic_store_explicit(&c->ring.header->tail, c->published, memory_order_release);
	}
}

/* How far an empty ring skips from `position` ("Memory" in data_ring.h): to a lap's beginning, or else to
 * give memory back. Needs a size of at least 2 * DR_LOW. */
static inline uint32_t dr_skip_bytes(const struct dr_consumer *c, uint64_t position)
{
	uint32_t left = c->ring.size - (uint32_t)(position & (c->ring.size - 1));

	return left >= DR_END && left <= c->ring.size - DR_LOW ? left : c->ring.size / 2;
}

/* Moves head and the consumer's tail by that; dr_publish then stores tail. 0: the ring is not empty, or
 * closed. Everything consumed must be published. */
static inline int dr_skip(struct dr_consumer *c, uint32_t bytes)
{
	uint64_t head = c->tail;

	if (!atomic_compare_exchange_strong_explicit(&c->ring.header->head, &head, head + bytes,
						     memory_order_seq_cst, memory_order_relaxed))
		return 0;
	c->tail += bytes;
	return 1;
}

/* A killed daemon was about to skip from `from`: where it has skipped to, or `from`.
 *
 * If it had not moved head yet, producers have reserved what is there, and each record begins with a word
 * that is not zero. All of it is zero only if each of these producers was stopped between its
 * compare-and-swap and its next instruction: eight at least, since it is DR_END bytes or more. */
static inline uint64_t dr_skipped(const struct dr_consumer *c, uint64_t from)
{
	uint32_t bytes = dr_skip_bytes(c, from);
	uint64_t have = (atomic_load_explicit(&c->ring.header->head, memory_order_acquire) & ~DR_CLOSED) - from;

	if (from != c->tail || c->ring.size < 2 * DR_LOW || have < bytes || have > c->ring.size)
		return from;
	for (uint32_t i = 0; i < bytes; i += 8) {
		const unsigned char *at = c->ring.data + ((from + i) & (c->ring.size - 1));

		if (atomic_load_explicit((const _Atomic uint64_t *)at, memory_order_relaxed))
			return from;
	}
	return from + bytes;
}

/* Closes the ring for producers, or opens it again. */
static inline void dr_close(struct dr_consumer *c, int closed)
{
	if (closed)
		atomic_fetch_or_explicit(&c->ring.header->head, DR_CLOSED, memory_order_seq_cst);
	else if (atomic_load(&c->ring.header->head) - c->tail > c->ring.size)
		atomic_fetch_and_explicit(&c->ring.header->head, ~DR_CLOSED, memory_order_seq_cst);
}

/* Before sleeping: ask for the doorbell. The caller looks at the ring once more afterwards, and sleeps only
 * if it is still empty (point 3 of data_ring.h). */
static inline void dr_want_wakeup(struct dr_consumer *c, int wanted)
{
	atomic_store_explicit(&c->ring.header->need_wakeup, wanted ? 1u : 0u, memory_order_seq_cst);
}

/* The present value in shared memory; untrusted. */
static inline uint64_t dr_head(struct dr_consumer *c)
{
	return atomic_load_explicit(&c->ring.header->head, memory_order_acquire) & ~DR_CLOSED;
}

static inline int dr_has_lost(const struct dr_consumer *c)
{
	return atomic_load_explicit(&c->ring.header->lost, memory_order_relaxed) != 0;
}

/* How many records were lost since the last call; dr_lost_of then has the numbers by event, of 32 bits:
 * beside a daemon that is stopped for minutes one may pass zero, and only this sum shows it. A number stays
 * in the memory until dr_forget_lost_of, called when the loss is marked in every ring buffer. So the memory
 * holds the losses that no file of a daemon has, and the successor of a killed daemon marks these. It must
 * not count them again: readers of streams, which outlive the daemon, may have seen them. So `counted` says
 * how many of them are counted. Stores, and what the successor does after a kill behind each one:
 *
 *     lost += n            (producer)                          the successor counts and marks n
 *     reported to streams (ss_header.lost)                     counts n again: streams have them twice
 *     dr_set_counted(n)                                        marks n
 *     marked in the ring buffers                               marks n again, see DataRing.mark_lost
 *     dr_set_counted(0)                                        counts n again
 *     dr_forget_lost_of(n): lost -= n                          nothing
 *
 * So no loss is hidden, whatever the producer adds meanwhile. Losses of an event without a ring buffer need
 * no mark: they are forgotten at once. A producer that writes `counted` hides its own losses, which it could
 * also not report.
 *
 * A producer adds to its event's number first. If that number is taken before the producer adds to the total,
 * the next call reports a loss and no number is found. */
static inline uint64_t dr_take_lost(struct dr_consumer *c)
{
	return dr_has_lost(c) ? atomic_exchange_explicit(&c->ring.header->lost, 0, memory_order_acquire) : 0;
}

static inline uint32_t dr_lost_of(const struct dr_consumer *c, uint32_t write_index)
{
	return atomic_load_explicit(&c->ring.lost[write_index], memory_order_relaxed);
}

static inline void dr_forget_lost_of(struct dr_consumer *c, uint32_t write_index, uint32_t n)
{
	atomic_fetch_sub_explicit(&c->ring.lost[write_index], n, memory_order_relaxed);
}

static inline _Atomic uint32_t *dr_counted(const struct dr_consumer *c, uint32_t write_index)
{
	return (_Atomic uint32_t *)((unsigned char *)c->ring.header + DR_COUNTED) + write_index;
}

static inline uint32_t dr_counted_of(const struct dr_consumer *c, uint32_t write_index)
{
	return atomic_load_explicit(dr_counted(c, write_index), memory_order_relaxed);
}

/* (seq_cst: behind all that streams have, in front of dr_forget_lost_of) */
static inline void dr_set_counted(struct dr_consumer *c, uint32_t write_index, uint32_t n)
{
	atomic_store_explicit(dr_counted(c, write_index), n, memory_order_seq_cst);
}

/* Sets the clocks that a record may use from now on. */
static inline void dr_set_clock(struct dr_consumer *c, uint32_t clock, uint64_t tsc_rate)
{
	atomic_store_explicit(&c->ring.header->tsc_rate, tsc_rate, memory_order_relaxed);
	atomic_store_explicit(&c->ring.header->clock, clock, memory_order_relaxed);
}

/* Lets producers wait for room for so long; 0: not at all. */
static inline void dr_set_wait(struct dr_consumer *c, uint32_t wait_us)
{
	atomic_store_explicit(&c->ring.header->wait_us, wait_us, memory_order_relaxed);
}

/* Whether children of this producer shall not connect now. */
static inline void dr_set_behind(struct dr_consumer *c, int is_behind)
{
	atomic_store_explicit(&c->ring.header->behind, is_behind ? DR_BEHIND : 0u, memory_order_relaxed);
}

/* Requests the name of each thread with its next record. */
static inline void dr_ask_names(struct dr_consumer *c, uint32_t names)
{
	atomic_store_explicit(&c->ring.header->names, names, memory_order_relaxed);
}

/* A new ring: the file is new, so all else is zero. */
static inline void dr_init(struct data_ring *r)
{
	r->header->magic = DR_MAGIC;
	r->header->version = DR_VERSION;
	r->header->size = r->size;
	r->header->record_header = DR_RECORD_HEADER;
}

#endif
