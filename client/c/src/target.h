/* The part of a registration that an emit and a binding read. */
#ifndef UTRACEFS_TARGET_H
#define UTRACEFS_TARGET_H

#include <stdatomic.h>
#include <stdint.h>

#include "data_ring.h"

/* In the library's table of symbols: for bindings (binding.h). */
#define UT_EXPORTED __attribute__((visibility("default")))

/* The beginning of a registration, read by an emit. */
struct ut_target {
	_Atomic(const uint8_t *) status;
	_Atomic uint64_t place; /* ring.h; 0: none */
};

#define UT_REFUSALS 4u

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

/* Records that the daemon refused, for one reason. */
struct ut_refusal {
	uint64_t count;
	int error;
};

#endif
