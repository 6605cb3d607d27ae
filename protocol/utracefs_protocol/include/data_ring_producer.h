/*
 * The producer's side of a data ring (data_ring.h): reserve, fill, commit.
 *
 *     int half;
 *     struct dr_record *rec = dr_reserve(&ring, write_index, length, &half);
 *     if (rec) {
 *         ... ts_ns, tid, cpu, zero and `length` bytes of payload ...
 *         if (dr_commit(&ring, rec, length) || half)
 *             ... write 8 bytes to the doorbell ...
 *     }
 *
 * Any thread and any signal handler may do this at any time; nothing here waits. producer.h has what fills a
 * record.
 */
#ifndef UTRACEFS_DATA_RING_PRODUCER_H
#define UTRACEFS_DATA_RING_PRODUCER_H

#include "data_ring.h"

static inline void dr_count_lost(struct data_ring *r, uint32_t write_index)
{
	uint32_t slot = write_index < DR_LOST_COUNTERS ? write_index : DR_LOST_COUNTERS - 1;

	atomic_fetch_add_explicit(&r->lost[slot], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&r->header->lost, 1, memory_order_release);
}

/* Reserves a record with room for `payload` bytes. NULL: it did not fit and is counted as lost. `*half` is
 * set when this reservation made the ring more than half full: ring the doorbell after the commit. */
static inline struct dr_record *dr_reserve(struct data_ring *r, uint32_t write_index, uint32_t payload,
					   int *half)
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

/* For a producer that gives its ring up: steps through the records that no daemon took. `*position` begins at
 * 0. 1: a record of `*write_index`; 0: no more, or one without a length, which hides all behind it. */
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

#endif
