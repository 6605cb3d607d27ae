/*
 * Enable bits in the program's memory, set from the daemon's messages.
 *
 * The kernel changes a bit for us: FUTEX_WAKE_OP does an atomic or, or and-not, on a word of the program,
 * faults pages in as a store would, and returns EFAULT instead of a fault. So there is no gap between
 * checking whether a word is writable and writing it, neighbouring bits are unchanged even if the program
 * writes them at the same time, and a program that has unmapped its word is unharmed. The operation needs
 * words of 4 bytes: bits from 32 on of 8 bytes are in the next word (the previous one on big-endian
 * machines).
 */
#include <linux/futex.h>
#include <sys/syscall.h>

#include "connection.h"

int ut_write_enabler(struct ut_enabler *enabler, int on)
{
	static uint32_t nobody_waits;
	unsigned what = (on ? FUTEX_OP_OR : FUTEX_OP_ANDN) | FUTEX_OP_OPARG_SHIFT;
	uint32_t *word = (uint32_t *)enabler->addr + enabler->bit / 32;

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	if (enabler->size == 8)
		word = (uint32_t *)enabler->addr + (enabler->bit < 32);
#endif
	enabler->on = (uint8_t)on;
	/* Wakes only a thread that waits with futex(2) for this word to be 0x7ff. */
	if (syscall(SYS_futex, &nobody_waits, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, NULL, word,
		    FUTEX_OP(what, enabler->bit % 32, FUTEX_OP_CMP_EQ, 0x7ff)) < 0)
		return -errno;
	return 0;
}

/* No daemon, no consumer. */
void ut_enablers_lost(struct ut_session *s)
{
	for (struct ut_enabler *enabler = s->enablers; enabler; enabler = enabler->next)
		if (enabler->on)
			ut_write_enabler(enabler, 0);
}

void ut_enabler_answered(struct ut_enabler *enabler, const struct ut_message *message)
{
	struct ut_registered answer;

	enabler->state = UT_REFUSED;
	if (message->error) {
		enabler->error = message->error;
	} else if (ut_parse_registered(message->result, 1, &answer)) {
		enabler->error = EPROTO;
	} else {
		/* (Also for 0: a child has its parent's bits, and the program may have set its own.) */
		enabler->error = ut_write_enabler(enabler, answer.enabled != 0) ? ENOMEM : 0;
		enabler->state = UT_ANSWERED;
	}
}

int ut_enablers_changed(struct ut_session *s, const struct ut_message *message)
{
	struct ut_in pairs = message->result;

	for (uint32_t i = 0; i < message->nr_pairs; i++) {
		uint64_t token;
		int on;

		if (ut_next_pair(&pairs, &token, &on))
			return -EPROTO;
		for (struct ut_enabler *enabler = s->enablers; enabler; enabler = enabler->next)
			if (enabler->token == token) {
				ut_write_enabler(enabler, on); /* a failed write is repeated with the next
							        * change */
				break;
			}
	}
	if (UT_OUT_BYTES - s->out.size < 64)
		return -EPROTO; /* requests alone never fill it */
	ut_put_enablers_written(&s->out, message->seq);
	return 0;
}
