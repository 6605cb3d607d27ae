/* Code that runs once per record (emit.c), for the public functions and bindings. */
#ifndef UTRACEFS_EMIT_H
#define UTRACEFS_EMIT_H

#include <stdint.h>

#include "target.h"
#include "utracefs.h"

struct dr_header;
struct dr_record;
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

/* Wait for room in a full ring as its `wait_us` says, until `*until` (0: not known yet). 0: in vain. Not if
 * this thread is in the middle of a record there, as a signal handler may be. */
int ut_wait_for_room(uint32_t ring, uint32_t size, uint64_t *until);

#endif
