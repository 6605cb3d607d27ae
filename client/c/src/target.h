/* What an emit and a binding see of a registration. */
#ifndef UTRACEFS_TARGET_H
#define UTRACEFS_TARGET_H

#include <stdatomic.h>
#include <stdint.h>

/* The beginning of a registration: what an emit looks at. */
struct ut_target {
	_Atomic(const uint8_t *) status;
	_Atomic uint64_t place; /* ring.h; 0: none */
};

/* Records that the daemon did not take, for one reason. */
struct ut_refusal {
	uint64_t count;
	int error;
};

#endif
