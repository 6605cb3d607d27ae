/*
 * Enable bits in the program's memory: registered with the daemon (docs/protocol.md: tokens), on one
 * connection of the process.
 */
#include <stdlib.h>

#include "connection.h"
#include "session.h"
#include "thread.h"

static struct ut_session *enablers_session;

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

	return enabler->state == UT_ANSWERED || enabler->state == UT_REFUSED;
}

static void remove_enabler(struct ut_enabler **at)
{
	struct ut_enabler *enabler = *at;

	*at = enabler->next;
	ut_forget_asked(enablers_session, enabler);
	ut_free_later(enabler);
}

/* Removes the token at the daemon. */
static void unregister(uint64_t token)
{
	if (ut_is_connected(enablers_session->state)) /* otherwise there is no token to remove */
		ut_session_call(enablers_session, ut_put_unregister, &token, 0);
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
	made = calloc(1, sizeof(*made) + strlen(command) + 1);
	if (!made)
		return -ENOMEM;
	strcpy(made->command, command);
	made->flags = flags;
	made->event_id = event_id;
	made->token = enablers_session->next_token++;
	made->addr = addr;
	made->size = size;
	made->bit = bit;
	*find(addr, bit) = made;
	ut_begin(enablers_session, 1);
	if (!ut_await(enablers_session, is_answered, made, 0))
		error = enablers_session->state == UT_WAITING ? -ENOTCONN : -ETIMEDOUT;
	else
		error = -made->error; /* refused, or not writable */
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
	int error;

	if (strlen(command) > UT_MAX_COMMAND || (size != 4 && size != 8) || bit >= size * 8 ||
	    (uintptr_t)addr % size)
		return -EINVAL;
	ut_lock();
	error = add(command, flags, event_id, (uintptr_t)addr, size, bit);
	if (enablers_session)
		ut_thread_start();
	ut_unlock();
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
	int error = -ENOENT;
	struct ut_enabler **at;
	uint64_t token;

	ut_lock();
	at = enablers_session ? find((uintptr_t)addr, bit) : NULL;
	if (at && *at) {
		token = (*at)->token;
		error = ut_write_enabler(*at, 0);
		remove_enabler(at);
		unregister(token);
	}
	ut_unlock();
	return error;
}
