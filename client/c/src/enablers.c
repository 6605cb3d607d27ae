/*
 * Enable bits of the program's own, told by the daemon (docs/protocol.md: tokens), on one connection of the
 * process.
 *
 * A bit is changed by the kernel on our behalf: FUTEX_WAKE_OP does an atomic or, or and-not, on a word of
 * the program's, faults pages in as a store would, and says EFAULT where a store would have been a fault.
 * So there is no moment between asking whether a word can be written and writing it, the neighbours are
 * left alone whatever the program does with them, and a program that has unmapped its word goes on. It
 * needs words of 4 bytes: bit 32 and above of 8 bytes are the word behind (in front of, where the machine
 * is big-endian).
 */
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "core.h"

static struct ut_session *enablers_session;

int ut_write_bit(uintptr_t addr, unsigned bit, int on)
{
	static uint32_t nobody_waits;
	uint32_t *word = (uint32_t *)addr;
	unsigned what = (on ? FUTEX_OP_OR : FUTEX_OP_ANDN) | FUTEX_OP_OPARG_SHIFT;

	/* Wakes nobody but who waits with futex(2) for this very word to be 0x7ff. */
	if (syscall(SYS_futex, &nobody_waits, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, NULL, word,
		    FUTEX_OP(what, bit, FUTEX_OP_CMP_EQ, 0x7ff)) < 0)
		return -errno;
	return 0;
}

static int write_enabler(struct ut_enabler *enabler, int on)
{
	uintptr_t addr = enabler->addr;
	unsigned bit = enabler->bit;

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	if (enabler->size == 8)
		addr += bit < 32 ? 4 : 0;
#else
	addr += bit / 32 * 4;
#endif
	enabler->on = (uint8_t)on;
	return ut_write_bit(addr, bit % 32, on);
}

void ut_enablers_begin(struct ut_session *s)
{
	for (struct ut_enabler *enabler = s->enablers; enabler; enabler = enabler->next)
		enabler->state = UT_TO_ASK;
	ut_ask(s, UT_ABOUT_NOTIFY, NULL);
}

/* No daemon, no consumer. */
void ut_enablers_lost(struct ut_session *s)
{
	for (struct ut_enabler *enabler = s->enablers; enabler; enabler = enabler->next)
		if (enabler->on)
			write_enabler(enabler, 0);
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
		enabler->error = write_enabler(enabler, answer.enabled) ? ENOMEM : 0;
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
				write_enabler(enabler, on); /* what cannot be written is tried again with the next */
				break;
			}
	}
	if (UT_OUT_BYTES - s->out.size < 64)
		return -EPROTO; /* requests alone never fill it */
	ut_put_enablers_written(&s->out, message->seq);
	return 0;
}

static struct ut_enabler **find(uintptr_t addr, unsigned bit)
{
	struct ut_enabler **at = &enablers_session->enablers;

	while (*at && ((*at)->addr != addr || (*at)->bit != bit))
		at = &(*at)->next;
	return at;
}

static int is_answered(void *arg)
{
	const struct ut_enabler *enabler = arg;

	return enabler->state == UT_ANSWERED || enabler->state == UT_REFUSED ||
	       (enablers_session->state == UT_UP && !enablers_session->is_notified);
}

static void remove_enabler(struct ut_enabler **at)
{
	struct ut_enabler *enabler = *at;

	*at = enabler->next;
	ut_forget_asked(enablers_session, enabler);
	ut_free_later(enabler->command);
	ut_free_later(enabler);
}

static int is_done(void *arg)
{
	return ((struct ut_call *)arg)->done;
}

/* Has the daemon forget the token. */
static void unregister(uint64_t token)
{
	struct ut_session *s = enablers_session;
	struct ut_call waiting = {0, 0};

	if (ut_ask(s, UT_ABOUT_CALL, &waiting))
		return; /* without a connection there is nothing to forget */
	ut_put_unregister(&s->out, s->asked[s->nr_asked - 1].msgid, token);
	if (!ut_await(s, is_done, &waiting))
		ut_forget_asked(s, &waiting);
}

static int add(const char *command, uint32_t flags, uint16_t event_id, uintptr_t addr, uint8_t size,
	       uint8_t bit)
{
	struct ut_enabler *made, **at;
	int error = 0;

	if (!enablers_session) {
		enablers_session = ut_session_new(UT_TOKENS, NULL, NULL);
		if (!enablers_session)
			return -ENOMEM;
	}
	if (*find(addr, bit))
		return -EADDRINUSE;
	made = calloc(1, sizeof(*made));
	if (made)
		made->command = strdup(command);
	if (!made || !made->command) {
		free(made);
		return -ENOMEM;
	}
	made->flags = flags;
	made->event_id = event_id;
	made->token = enablers_session->next_token++;
	made->addr = addr;
	made->size = size;
	made->bit = bit;
	*find(addr, bit) = made;
	ut_begin(enablers_session, 1);
	if (!ut_await(enablers_session, is_answered, made))
		error = enablers_session->state == UT_WAITING ? -ENOTCONN : -ETIMEDOUT;
	else if (made->state == UT_REFUSED)
		error = -made->error;
	else if (made->state != UT_ANSWERED)
		error = -ENOSYS; /* a daemon that does not speak first */
	else if (made->error)
		error = -made->error; /* not writable */
	at = find(addr, bit);
	if (error && *at == made) {
		int is_known = made->state == UT_ANSWERED || made->state == UT_ASKED_FOR;
		uint64_t token = made->token;

		remove_enabler(at);
		if (is_known)
			unregister(token);
	}
	return error;
}

int ut_enabler_add(const char *command, uint16_t flags, uint16_t event_id, void *addr, uint8_t size,
		   uint8_t bit)
{
	int saved = errno, error;

	if (strlen(command) > UT_MAX_COMMAND || (size != 4 && size != 8) || bit >= size * 8 ||
	    (uintptr_t)addr % size)
		return -EINVAL;
	ut_lock();
	ut_process_look();
	error = add(command, flags, event_id, (uintptr_t)addr, size, bit);
	if (enablers_session)
		ut_thread_start();
	ut_unlock();
	errno = saved;
	return error;
}

int ut_enabler_is_known(const void *addr, uint8_t bit)
{
	int known;

	ut_lock();
	known = enablers_session && *find((uintptr_t)addr, bit);
	ut_unlock();
	return known;
}

int ut_enabler_remove(void *addr, uint8_t bit)
{
	int saved = errno, error = -ENOENT;
	struct ut_enabler **at;
	uint64_t token;

	ut_lock();
	ut_process_look();
	at = enablers_session ? find((uintptr_t)addr, bit) : NULL;
	if (at && *at) {
		token = (*at)->token;
		error = write_enabler(*at, 0);
		remove_enabler(at);
		unregister(token);
	}
	ut_unlock();
	errno = saved;
	return error;
}
