/*
 * Where records go: data rings, by number.
 *
 * A ring is one of the daemon's (docs/protocol.md section 5) or, where that gives none, one of our own with
 * the same layout, which the native thread empties into the socket. To emit is the same for both.
 *
 * A place is what one emit needs to know, in one word that changes in one store: the ring's number above, the
 * write_index there below. (In a ring of our own the number of the registration on its session.) Place 0 is
 * none.
 *
 * An emit reads a place and then writes into the ring, and no lock keeps it from being stopped in between
 * for as long as it likes. So a ring that is given up stays mapped: its memory is exchanged for memory of
 * nobody's in which head says that it is full. What was reserved before is filled in there and lost; what
 * comes later finds it full, and counts itself. A number is used again after many others were, and the
 * room of its memory with it.
 *
 * ut_views is emptied by the kernel in a child, however that was forked (MADV_WIPEONFORK): whatever it
 * finds by a place of its parent's is no ring. So a child never writes into its parent's ring.
 */
#ifndef UTRACEFS_RING_H
#define UTRACEFS_RING_H

#include "data_ring_consumer.h"
#include "data_ring_producer.h"
#include "descriptor.h"

#define UT_MAX_RINGS 1280u /* of a process at a time; a user has 1,024 connections */

extern struct data_ring *ut_views; /* [UT_MAX_RINGS] */

struct ut_outlet {
	struct data_ring ring;
	struct ut_descriptor memory, doorbell; /* of a ring of the daemon's */
	int in_use;
	int is_local;
};
extern struct ut_outlet ut_outlets[UT_MAX_RINGS];

static inline uint64_t ut_place(uint32_t ring, uint32_t write_index)
{
	return (uint64_t)ring << 32 | write_index;
}

/* Once per process. wake: who empties rings of our own; from signal handlers, too. 0 or -errno. */
int ut_rings_init(void (*wake)(void));
/* Whether this is the memory that was marked, and not a copy of it in a child. (A child of vfork(2) has its
 * parent's memory itself, so what it does here is done in its parent.) */
void ut_rings_mark(void);
int ut_rings_are_marked(void);
/* In a child: all views are empty, also where the kernel did not see to that. */
void ut_rings_start_child(void);

/* A ring of the daemon's; takes both descriptors over, also when it fails. size: bytes of the data area,
 * which the memory must have, sealed against shrinking (-EPROTO). The number, or -errno. */
int ut_ring_map(struct ut_descriptor memory, struct ut_descriptor doorbell, uint64_t size);
/* A ring of our own. The number, or -errno. */
int ut_ring_make(uint32_t size);
/* Whether the program has left its descriptors alone. */
int ut_ring_is_ours(uint32_t ring);
/* Give it up. lost: called with the write_index of each record that nobody has taken out; NULL: somebody
 * will. */
void ut_ring_give_up(uint32_t ring, void (*lost)(void *arg, uint32_t write_index), void *arg);
/* Bytes that were ever reserved in it; 0 in a child for its parent's. */
uint64_t ut_ring_position(uint32_t ring);
/* After a commit that says so: wakes who empties the ring. From signal handlers, too. */
void ut_ring_wake(uint32_t ring);

#endif
