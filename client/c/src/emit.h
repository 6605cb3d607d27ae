/*
 * A record's way into a ring, for emit.c and, inline, for bindings. Both define UT_THREAD, UT_CPU_OFFSET and
 * DR_WAITS of producer.h before.
 */
#ifndef UTRACEFS_EMIT_H
#define UTRACEFS_EMIT_H

#include "producer.h"
#include "target.h"

struct ut_reg;

struct utb_reserved {
	struct dr_record *record;
	struct dr_header *header;
	struct ut_reg *reg;
	uint32_t size;
	uint16_t ring;
	uint8_t half;
	uint8_t needs_place; /* there is no place, or room, now, and nothing is counted */
};

/* After an attempt that needs_place: makes a place for records of this event, or waits for room in its full
 * ring as that one's `wait_us` says, until `*until` (0: not known yet). 0: in vain. Does not wait if this
 * thread is in the middle of a record there, as a signal handler may be. */
int ut_find_place(struct ut_reg *reg, uint32_t size, uint64_t *until);
/* After a commit that asks for it. Keeps errno. */
UT_EXPORTED void utb_wake(const struct utb_reserved *r) __attribute__((cold));

/* Whether there is space for a payload of at most DR_MAX_PAYLOAD. */
static inline int ut_reserve_at(const struct data_ring *views, uint64_t place, uint32_t flag, uint32_t size,
				struct utb_reserved *r)
{
	struct data_ring view = ut_view(views, place);
	int half = 0;

	r->record = NULL;
	if (__builtin_expect(view.header != NULL, 1))
		r->record = ut_reserve(&view, (uint32_t)place | flag, size, &half);
	r->header = view.header;
	r->size = size;
	r->ring = (uint16_t)(place >> 32);
	r->half = (uint8_t)half;
	return __builtin_expect(r->record != NULL, 1);
}

static inline void utb_commit(const struct utb_reserved *r)
{
	struct data_ring view;

	view.header = r->header;
	if (__builtin_expect(dr_commit(&view, r->record, r->size) || r->half, 0))
		utb_wake(r);
}

#endif
