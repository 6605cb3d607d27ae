/* The part of a registration that an emit and a binding read. */
#ifndef UTRACEFS_TARGET_H
#define UTRACEFS_TARGET_H

#include <stdatomic.h>
#include <stdint.h>

/* In the library's table of symbols: for bindings (binding.h). */
#define UT_EXPORTED __attribute__((visibility("default")))

/* The beginning of a registration, read by an emit. */
struct ut_target {
	_Atomic(const uint8_t *) status;
	_Atomic uint64_t place; /* ring.h; 0: none */
};

#define UT_REFUSALS 4u

/* Records that the daemon refused, for one reason. */
struct ut_refusal {
	uint64_t count;
	int error;
};

#endif
