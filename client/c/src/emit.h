/* Functions that run once per record (emit.c), for the public functions and bindings. */
#ifndef UTRACEFS_EMIT_H
#define UTRACEFS_EMIT_H

#include <stdint.h>
#include <sys/uio.h>

#include "target.h"

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

/* Space for a record of `size` bytes, to be filled and committed at once. NULL: there is none and it is
 * counted, or there is no daemon. May wait as ut_reg_settle does. */
unsigned char *ut_emit_reserve(struct ut_reg *reg, uint32_t size, struct utb_reserved *reserved);
/* After a failed attempt to reserve at `place`. NULL: counted as lost or refused; or must_settle. */
unsigned char *ut_emit_fail(struct utb_reserved *reserved, uint32_t size, uint64_t place);
/* Wait for room in a full ring as its `wait_us` says, until `*until` (0: not known yet). 0: in vain. Not if
 * this thread is in the middle of a record there, as a signal handler may be. */
int ut_wait_for_room(uint32_t ring, uint32_t size, uint64_t *until);
/* In place of a record: the daemon counts it as refused (data_ring.h); without room, as lost. 0. */
int ut_emit_refuse(struct ut_reg *reg, const char *field, const char *what);
void ut_emit_commit(const struct utb_reserved *reserved);
/* After a commit that asks for it. Keeps errno. */
void ut_emit_wake(const struct utb_reserved *reserved);
/* 0; -EINVAL: shorter than the fixed fields; -EBADF: no consumer; -EFAULT: location words point outside. */
int ut_emit_iov(struct ut_reg *reg, const struct iovec *iov, int n);

#endif
