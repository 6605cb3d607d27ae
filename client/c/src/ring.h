/*
 * Rings for records, by number.
 *
 * The program makes them (docs/protocol.md section 5), and gives their descriptors to the daemon, which reads
 * them. Where it cannot (no memfd, UTRACEFS_DATA_RING=0, an older daemon), the native thread reads a ring of
 * the same layout and sends its records over the socket. An emit is the same for both.
 *
 * A place has all that an emit needs, in one word that changes in one store: the ring's number in the upper
 * half, the number of the registration on its session in the lower one. Place 0 is none.
 *
 * An emit reads a place and then writes into the ring; without a lock it may be stopped in between for any
 * time. So a ring that is given up stays mapped: its memory is replaced by unshared memory whose head says
 * that it is full. A record reserved before is written there and lost; a later one finds it full, and is
 * counted. A number, and with it its memory, is reused after many others.
 *
 * The kernel empties ut_views in a child, however it was forked (MADV_WIPEONFORK), so a place of its parent
 * leads to no ring. A signal handler may fork in the middle of an emit, and the child return into it with
 * the ring's address. So in a child, before it returns from fork(), private memory takes the place of each
 * ring of its parent, closed like a ring that is given up. An emit that has no place in it yet finds another
 * one. Of a record that has one the child writes the rest there, finds UT_PARENTS and counts it as lost. Only
 * the counters of lost records remain shared, by a second mapping. (A child without fork handlers, of
 * _Fork(3) or clone(2), does the same in its first call of the library that takes the lock.)
 */
#ifndef UTRACEFS_RING_H
#define UTRACEFS_RING_H

#include "data_ring_consumer.h"
#include "data_ring_producer.h"
#include "descriptor.h"

#define UT_PARENTS 1u /* dr_header.magic of that memory */
#define UT_MAX_RINGS 1280u /* of a process at a time; the limit of a user is 1,024 connections */

extern struct data_ring *ut_views; /* [UT_MAX_RINGS], and behind it the counter of spans.c */

struct ut_outlet {
	struct data_ring ring;
	struct data_ring counters; /* its header and lost[] once more: a child counts there */
	struct ut_descriptor memory, doorbell; /* for the daemon; none: it cannot have the ring */
	int in_use;
	int is_shared; /* its memory, with a daemon or with relatives */
	int by_socket; /* the native thread reads it, and sends its records */
	int was_read;  /* perhaps, by a daemon whose connection has ended */
	uint64_t losses; /* of by_socket: taken from the counters' sum, and not sent */
};
extern struct ut_outlet ut_outlets[UT_MAX_RINGS];

static inline uint64_t ut_place(uint32_t ring, uint32_t write_index)
{
	return (uint64_t)ring << 32 | write_index;
}

/* Once per process. wake: wakes the thread that reads a ring of `by_socket`; callable from signal handlers.
 * 0 or -errno. */
int ut_rings_init(void (*wake)(uint32_t ring));
/* Whether this memory is the marked one, and not a copy of it in a child. (A child of vfork(2) has its
 * parent's memory itself, so its writes are the parent's.) */
int ut_rings_are_marked(void);
/* In a child: all views are empty, also if the kernel did not do it, and no memory is its parent's. */
void ut_rings_start_child(void);
/* Unmaps everything. */
void ut_rings_end(void);
/* Where losses are counted; of a child's parent, too. NULL: nowhere. */
struct data_ring *ut_ring_counters(uint32_t ring);

/* Makes a ring whose data area has `size` bytes; if that is 0 or fails, one without descriptors, of
 * `own_size`. The number, or -errno. */
int ut_ring_make(uint32_t size, uint32_t own_size);
/* Whether the daemon can have it. */
static inline int ut_ring_has_file(uint32_t ring)
{
	return ut_outlets[ring].memory.fd >= 0;
}
/* Give it up. lost: called with the write_index of each record that was not taken out; NULL: another
 * reader takes them. */
void ut_ring_give_up(uint32_t ring, void (*lost)(void *arg, uint32_t write_index), void *arg);
/* Bytes reserved in it so far; 0 in a child for its parent's ring. */
uint64_t ut_ring_position(uint32_t ring);
/* Whether all its records are taken out; also without a ring. */
int ut_ring_is_taken_in(uint32_t ring);
/* After a commit that asks for it: wakes the reader of the ring. Callable from signal handlers. */
void ut_ring_wake(uint32_t ring);

#endif
