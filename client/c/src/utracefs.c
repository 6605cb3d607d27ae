/* The public functions (utracefs.h): events, on one session of the process. */
#include "utracefs.h"

#include <stdlib.h>

#include "core.h"
#include "emit.h"
#include "thread.h"

_Static_assert(UTRACEFS_IS_PENDING == UT_PENDING, "what a pending event's byte says");
_Static_assert(sizeof(struct ut_reserved) <= sizeof(((struct utracefs_reserved *)0)->internal),
	       "utracefs_reserved");

static struct ut_session *session; /* with the lock held */
static int is_closed;

/* By utracefs_declare. */
static struct dynamic {
	struct utracefs_event event;
	struct dynamic *next;
	char command[];
} *dynamics;

static void point(struct utracefs_event *event, const uint8_t *status)
{
	__atomic_store_n(&event->state, status, __ATOMIC_RELEASE);
}

void ut_events_point(struct utracefs_event *events, const uint8_t *status)
{
	for (struct utracefs_event *event = events; event; event = event->next)
		point(event, status);
}

static struct ut_reg *find(const char *command, unsigned flags)
{
	for (struct ut_reg *reg = session->regs; reg; reg = reg->next)
		if (reg->flags == flags && strcmp(reg->command, command) == 0)
			return reg;
	return NULL;
}

/* With the lock held: has the event registered, without waiting. 0 or negative errno. */
static int attach(struct utracefs_event *event)
{
	struct ut_reg *reg;

	if (is_closed)
		return -ECANCELED;
	if (strlen(event->command) > UT_MAX_COMMAND)
		return -EINVAL;
	if (!session)
		session = ut_session_new(0);
	if (!session)
		return -ENOMEM;
	ut_process_look();
	reg = find(event->command, event->flags);
	if (!reg) {
		reg = ut_reg_new(session, event->command, event->flags);
		if (!reg)
			return -ENOMEM;
		if (ut_reg_number(reg)) {
			reg->state = UT_REFUSED; /* for good: there are too many */
			reg->error = EMFILE;
		} else if (session->state != UT_WAITING) {
			ut_reg_point(reg, &ut_pending);
		}
	}
	event->next = reg->events;
	reg->events = event;
	__atomic_store_n(&event->registration, reg, __ATOMIC_RELEASE);
	point(event, atomic_load(&reg->status));
	if (session->state == UT_FORKED) {
		session->state = UT_NEW;
		session->due = 0;
	}
	if (ut_thread_start() && atomic_load(&reg->status) == &ut_pending)
		ut_reg_point(reg, &ut_off);
	ut_thread_wake();
	return 0;
}

void utracefs_attach(struct utracefs_event *event)
{
	int saved = errno;

	ut_lock();
	if (!event->registration)
		attach(event);
	ut_unlock();
	errno = saved;
}

void utracefs_detach(struct utracefs_event *event)
{
	int saved = errno;
	struct ut_reg *reg;

	ut_lock();
	/* (Of a session that has ended nothing is left.) */
	reg = session ? event->registration : NULL;
	if (reg) {
		struct utracefs_event **at = &reg->events;

		while (*at && *at != event)
			at = &(*at)->next;
		if (*at)
			*at = event->next;
	}
	point(event, &ut_off);
	event->next = NULL;
	ut_unlock();
	errno = saved;
}

struct utracefs_event *utracefs_declare(const char *command, unsigned flags)
{
	int saved = errno;
	struct dynamic *made;

	if (!command || strlen(command) > UT_MAX_COMMAND)
		return NULL;
	ut_lock();
	for (made = dynamics; made; made = made->next)
		if (made->event.flags == flags && strcmp(made->command, command) == 0)
			break;
	if (!made) {
		made = calloc(1, sizeof(*made) + strlen(command) + 1);
		if (made) {
			strcpy(made->command, command);
			made->event = (struct utracefs_event){.state = &ut_off, .command = made->command, .flags = flags};
			made->next = dynamics;
			dynamics = made;
			attach(&made->event);
		}
	}
	ut_unlock();
	errno = saved;
	return made ? &made->event : NULL;
}

/* ---- records */

static struct ut_reg *reg_of(const struct utracefs_event *event)
{
	return __atomic_load_n((struct ut_reg *const *)&event->registration, __ATOMIC_ACQUIRE);
}

int utracefs_is_wanted(const struct utracefs_event *event)
{
	if (__atomic_load_n(&event->state, __ATOMIC_RELAXED) == &ut_pending)
		ut_reg_settle(reg_of(event));
	return *__atomic_load_n(&event->state, __ATOMIC_RELAXED) != 0;
}

int utracefs_reserve(struct utracefs_event *event, size_t size, struct utracefs_reserved *reserved)
{
	struct ut_reg *reg = reg_of(event);

	if (!reg)
		return 0;
	reserved->payload = ut_emit_reserve(reg, size > UINT32_MAX ? UINT32_MAX : (uint32_t)size,
					    (struct ut_reserved *)(void *)reserved->internal);
	return reserved->payload != NULL;
}

void utracefs_commit(struct utracefs_reserved *reserved)
{
	ut_emit_commit((const struct ut_reserved *)(const void *)reserved->internal);
}

int utracefs_emit_iov(struct utracefs_event *event, const struct iovec *iov, int n)
{
	struct ut_reg *reg = reg_of(event);

	return reg ? ut_emit_iov(reg, iov, n) : -EBADF;
}

/* ---- all events */

int utracefs_event_error(const struct utracefs_event *event, char *text, size_t size)
{
	int saved = errno, error = ENOTCONN;
	const char *words = "";
	struct ut_reg *reg;

	ut_lock();
	reg = session ? event->registration : NULL;
	if (reg && reg->state == UT_REFUSED) {
		error = reg->error;
		words = reg->text;
	} else if (reg && session->state == UT_UP && reg->state == UT_ANSWERED) {
		error = 0;
	} else if (reg && session->state != UT_WAITING) {
		error = EINPROGRESS;
	}
	if (text && size) {
		strncpy(text, words, size - 1);
		text[size - 1] = 0;
	}
	ut_unlock();
	errno = saved;
	return error;
}

void utracefs_event_stats(const struct utracefs_event *event, struct utracefs_event_stats *stats)
{
	int saved = errno;
	struct ut_reg *reg;

	ut_lock();
	reg = session ? event->registration : NULL;
	stats->lost = reg ? atomic_load(&reg->lost) : 0;
	stats->refused = reg ? reg->refused : 0;
	ut_unlock();
	errno = saved;
}

int utracefs_flush(unsigned timeout_ms)
{
	int saved = errno;
	struct ut_session *s;

	ut_lock();
	s = session;
	ut_unlock();
	errno = saved;
	return s ? ut_session_flush(s, timeout_ms * UINT64_C(1000000)) : 0;
}

void ut_events_end(void)
{
	session = NULL;
	is_closed = 1;
}

void utracefs_close(void)
{
	struct ut_session *s;
	int saved = errno;

	ut_lock();
	s = session;
	ut_events_end();
	ut_unlock();
	errno = saved;
	if (s)
		ut_session_close(s);
}
