/* Code that runs once per record (emit.c), for the public functions and bindings. */
#ifndef UTRACEFS_EMIT_H
#define UTRACEFS_EMIT_H

#include <stdint.h>

#include "data_ring.h"
#include "target.h"
#include "utracefs.h"

struct ut_reg;

struct utb_reserved {
	struct dr_record *record;
	struct dr_header *header;
	struct ut_reg *reg;
	uint32_t size;
	uint16_t ring;
	uint8_t half;
	uint8_t must_settle; /* of a binding: there is no place now, and nothing is counted */
};

static inline struct ut_reg *ut_reg_of_event(const struct utracefs_event *event)
{
	return __atomic_load_n((struct ut_reg *const *)&event->registration, __ATOMIC_ACQUIRE);
}

/* A copy: where a signal handler forks in the middle of a record, the child's views are empty (ring.h). The
 * header is read last, and once: if there is one, all before it is of the same ring. */
static inline struct data_ring ut_view(const struct data_ring *views, uint64_t place)
{
	const struct data_ring *of_place = &views[place >> 32];
	struct data_ring view = {.data = of_place->data, .lost = of_place->lost, .size = of_place->size};

	atomic_signal_fence(memory_order_seq_cst);
	view.header = __atomic_load_n(&of_place->header, __ATOMIC_RELAXED);
	return view;
}

/* Wait for room in a full ring as its `wait_us` says, until `*until` (0: not known yet). 0: in vain. Not if
 * this thread is in the middle of a record there, as a signal handler may be. */
int ut_wait_for_room(uint32_t ring, uint32_t size, uint64_t *until);

#endif
