/*
 * The producer's side of a data ring (data_ring.h): reserve, fill, commit.
 *
 *     int half;
 *     struct dr_record *rec = dr_reserve(&ring, write_index, length, &half);
 *     if (rec) {
 *         ... time, tid, cpu, flags and `length` bytes of payload ...
 *         if (dr_commit(&ring, rec, length) || half)
 *             ... write 8 bytes to the doorbell ...
 *     }
 *
 * Any thread and any signal handler may do this at any time; nothing here waits. producer.h fills a record.
 * A caller that itself waits for room where the daemon asks for that defines DR_WAITS as dr_may_wait.
 */
#ifndef UTRACEFS_DATA_RING_PRODUCER_H
#define UTRACEFS_DATA_RING_PRODUCER_H

#include "data_ring.h"

static inline void dr_count_lost(struct data_ring *r, uint32_t write_index)
{
	uint32_t index = write_index & ~DR_REFUSED;
	uint32_t slot = index < DR_LOST_COUNTERS ? index : DR_LOST_COUNTERS - 1;

	if (dr_is_closed(r))
		return; /* that number is no longer read */
	atomic_fetch_add_explicit(&r->lost[slot], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&r->header->lost, 1, memory_order_release);
}

/* Whether a payload of so many bytes fits now. With a single producer the answer stays true. */
static inline int dr_has_room(struct data_ring *r, uint32_t payload)
{
	uint64_t head = atomic_load_explicit(&r->header->head, memory_order_relaxed);
	uint64_t used = head - atomic_load_explicit(&r->header->tail, memory_order_acquire);

	return payload <= DR_MAX_PAYLOAD && used <= r->size && used + dr_need(payload) <= r->size;
}

/* dr_reserve without counting: NULL, it does not fit, or the ring is closed. */
static inline struct dr_record *dr_try_reserve(struct data_ring *r, uint32_t write_index, uint32_t payload,
					       int *half)
{
	uint32_t need = dr_need(payload), much;
	uint64_t head = atomic_load_explicit(&r->header->head, memory_order_relaxed);
	uint64_t used;
	struct dr_record *rec;

	if (payload > DR_MAX_PAYLOAD)
		return NULL;
	for (;;) {
		uint64_t tail = atomic_load_explicit(&r->header->tail, memory_order_acquire);
		uint64_t now;

		used = head - tail;
		/* Unsigned: a tail ahead of head (a broken daemon) is "full" as well. */
		if (used <= r->size && used + need <= r->size) {
			/* Fails when head moved on; seq_cst for point 3 of data_ring.h. */
			if (atomic_compare_exchange_weak_explicit(&r->header->head, &head, head + need,
								  memory_order_seq_cst,
								  memory_order_relaxed))
				break;
			continue;
		}
		/* Full, or a head from before others reserved and the daemon took what they wrote: then tail has
		 * passed it. The ring is full only if head is unchanged. Each retry means progress of another producer. */
		now = atomic_load_explicit(&r->header->head, memory_order_relaxed);
		if (now == head)
			return NULL;
		head = now;
	}
	much = dr_much(r);
	*half = used <= much && used + need > much;
	rec = (struct dr_record *)(r->data + (head & (r->size - 1)));
	atomic_store_explicit(&rec->length_word, payload, memory_order_relaxed);
	rec->write_index = write_index;
	return rec;
}

/* Whether to wait for room in a full ring. */
static inline int dr_may_wait(const struct data_ring *r, uint32_t payload)
{
	return atomic_load_explicit(&r->header->wait_us, memory_order_relaxed) && !dr_is_closed(r) &&
	       dr_need(payload) <= r->size &&
	       atomic_load_explicit(&r->header->waited_at, memory_order_relaxed) !=
		       atomic_load_explicit(&r->header->tail, memory_order_relaxed) + 1;
}

#ifndef DR_WAITS
#define DR_WAITS(r, payload) 0
#endif

/* Reserves a record with room for `payload` bytes. NULL: it did not fit and is counted as lost, or the ring
 * is closed (dr_is_closed): then the record is for the next connection. `*half` is set when this reservation
 * made the ring fuller than half, or than DR_MUCH: ring the doorbell after the commit. With NULL: it is not
 * counted, since the caller waits. */
static inline struct dr_record *dr_reserve(struct data_ring *r, uint32_t write_index, uint32_t payload,
					   int *half)
{
	struct dr_record *rec = dr_try_reserve(r, write_index, payload, half);

	if (!rec && !(*half = DR_WAITS(r, payload)))
		dr_count_lost(r, write_index);
	return rec;
}

/* Makes a filled record visible; `payload`: the reserved size, without a name. 1: ring the doorbell (write 8
 * bytes to the eventfd), the daemon sleeps. */
static inline int dr_commit(struct data_ring *r, struct dr_record *rec, uint32_t payload)
{
	uint32_t length = payload + (rec->flags & DR_NAMED) * (DR_COMM / DR_NAMED);

	atomic_store_explicit(&rec->length_word, length | DR_COMMITTED, memory_order_seq_cst);
	if (atomic_load_explicit(&r->header->need_wakeup, memory_order_seq_cst) == 0)
		return 0;
	return atomic_exchange_explicit(&r->header->need_wakeup, 0, memory_order_seq_cst) == 1;
}

/* For a producer that gives its ring up: iterates over the records that no daemon took. `*position` begins
 * at 0. 1: a record (or refusal) of `*write_index`; 0: no more, or an invalid length word, which hides all
 * records behind it.
 *
 * The daemon publishes its tail after it has cleared several records, or skipped free space, so a killed one
 * leaves zeros from the published tail to its own; they are skipped, as is the place of a thread that died
 * before it stored its length. A daemon killed while it cleared a record may leave the end of a payload,
 * which is taken for a length word. */
static inline int dr_walk(struct data_ring *r, uint64_t *position, uint32_t *write_index)
{
	uint64_t head = atomic_load_explicit(&r->header->head, memory_order_acquire) & ~DR_CLOSED;

	if (*position == 0)
		*position = atomic_load_explicit(&r->header->tail, memory_order_acquire);
	if (head - *position > r->size || ((head | *position) & 7))
		return 0;
	for (; *position != head; *position += 8) {
		struct dr_record *rec = (struct dr_record *)(r->data + (*position & (r->size - 1)));
		uint32_t word = atomic_load_explicit(&rec->length_word, memory_order_acquire);
		uint32_t length = word & DR_LENGTH_MASK;

		if (word == 0)
			continue;
		if ((word & ~(DR_COMMITTED | DR_LENGTH_MASK)) || length > DR_MAX_PAYLOAD ||
		    dr_need(length) > head - *position)
			return 0;
		*write_index = rec->write_index;
		*position += dr_need(length);
		return 1;
	}
	return 0;
}

#endif
