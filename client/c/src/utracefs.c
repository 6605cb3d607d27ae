/* The public functions (utracefs.h): events, on the process's session or on those of bindings. */
#include <search.h>
#include <stdlib.h>

#include "events.h"
#include "session.h"
#include "thread.h"

_Static_assert(UTRACEFS_IS_PENDING == UT_PENDING, "what a pending event's byte says");

struct utb_session ut_process_events;

struct known {
	struct ut_reg *reg;
	struct utracefs_event event; /* of utracefs_declare */
	char command[];
};

static void point(struct utracefs_event *event, const uint8_t *status)
{
	__atomic_store_n(&event->state, status, __ATOMIC_RELEASE);
}

static int compare(const void *one, const void *other)
{
	const struct utracefs_event *a = &((const struct known *)one)->event;
	const struct utracefs_event *b = &((const struct known *)other)->event;

	return a->flags != b->flags ? (a->flags < b->flags ? -1 : 1) : strcmp(a->command, b->command);
}

/* With the lock held: the entry, made if there is none. NULL: no memory. */
static struct known *know(struct utb_session *session, const char *command, unsigned flags)
{
	const struct known wanted = {.event = {.command = command, .flags = flags}};
	struct known **found = tfind(&wanted, &session->known, compare), *made;

	if (found)
		return *found;
	made = calloc(1, sizeof(*made) + strlen(command) + 1);
	if (!made)
		return NULL;
	made->event = (struct utracefs_event){
		.state = &ut_off, .command = strcpy(made->command, command), .flags = flags};
	if (tsearch(made, &session->known, compare))
		return made;
	free(made);
	return NULL;
}

void ut_events_free(struct utb_session *events)
{
	tdestroy(events->known, free);
	events->known = NULL;
}

/* After the end of the library. */
__attribute__((destructor(101))) static void free_events(void)
{
	if (ut_phase == UT_UNLOADED)
		ut_events_free(&ut_process_events);
}

/* The registrations that have room, if there is a connection. Whether the thread, which polls that one, has
 * nothing more to do. */
static int send_registrations(struct ut_session *session)
{
	ino_t before = session->socket.ino; /* the next one may have the same number */

	if (!ut_is_connected(session->state) || ut_process_is_on_small_stack())
		return 0;
	ut_step(session, ut_clock_ns());
	ut_futex_wake(&session->changes); /* answers may have come that others wait for */
	return ut_is_connected(session->state) && session->socket.ino == before &&
	       ut_step_events(session) == POLLIN;
}

int ut_events_attach(struct utb_session *events, struct utracefs_event *event)
{
	struct ut_session *session;
	struct known *found;
	struct ut_reg *reg;
	int error, is_sent = 0;

	if (events->owner.is_closed)
		return -ECANCELED;
	if (strlen(event->command) > UT_MAX_COMMAND)
		return -EINVAL;
	if (!events->owner.session)
		ut_session_new(0, events->settings.local_bytes ? &events->settings : NULL, &events->owner);
	session = events->owner.session;
	if (!session)
		return -ENOMEM;
	found = know(events, event->command, event->flags);
	if (!found)
		return -ENOMEM;
	reg = found->reg;
	if (!reg) {
		reg = found->reg = ut_reg_new(session, event->command, event->flags);
		if (!reg)
			return -ENOMEM;
		if (ut_reg_number(reg, session->nr_numbers)) {
			reg->state = UT_REFUSED; /* permanently: there are too many */
			reg->error = EMFILE;
			ut_warn(session, "event %.100s is off: this process has too many events", event->command);
		} else if (session->state != UT_WAITING) {
			ut_reg_point(reg, &ut_pending);
			/* So no emit needs the lock, and the daemon knows the event before its first record. */
			is_sent = send_registrations(session);
			ut_reg_place(reg);
		}
	}
	event->next = reg->events;
	reg->events = event;
	__atomic_store_n(&event->registration, reg, __ATOMIC_RELEASE);
	point(event, atomic_load(&reg->status));
	ut_begin(session, 0);
	error = ut_thread_start();
	if (error && atomic_load(&reg->status) == &ut_pending) {
		ut_reg_point(reg, &ut_off);
		if (error != -ECANCELED)
			ut_warn(session, "events are off: no thread for them can start (%s; ulimit -u, -v)",
				ut_error_name(-error));
	}
	if (!is_sent)
		ut_wake();
	return 0;
}

static void attach(struct utracefs_event *event)
{
	if (ut_events_attach(&ut_process_events, event) == -ENOMEM)
		ut_warn(NULL, "events are off: no memory for them");
	if (!ut_thread_is_running())
		ut_say_warnings_here();
}

void utracefs_attach(struct utracefs_event *event)
{
	ut_lock();
	ut_warnings_are_said();
	if (!event->registration)
		attach(event);
	ut_unlock();
}

void ut_events_detach(struct utracefs_event *event)
{
	struct ut_reg *reg = event->registration;

	if (reg) {
		struct utracefs_event **at = &reg->events;

		while (*at && *at != event)
			at = &(*at)->next;
		if (*at)
			*at = event->next;
		if (!reg->session && !reg->events)
			ut_free_later(reg);
	}
	point(event, &ut_off);
	event->next = NULL;
	__atomic_store_n(&event->registration, NULL, __ATOMIC_RELEASE);
}

void utracefs_detach(struct utracefs_event *event)
{
	ut_lock();
	ut_events_detach(event);
	ut_unlock();
}

struct utracefs_event *utracefs_declare(const char *command, unsigned flags)
{
	struct known *made;

	if (!command || strlen(command) > UT_MAX_COMMAND)
		return NULL;
	ut_lock();
	ut_warnings_are_said();
	made = know(&ut_process_events, command, flags);
	if (made && !made->event.registration)
		attach(&made->event);
	ut_unlock();
	return made ? &made->event : NULL;
}

/* ---- records */

int utracefs_is_wanted(const struct utracefs_event *event)
{
	struct ut_reg *reg = ut_reg_of_event(event);

	if (reg && __atomic_load_n(&event->state, __ATOMIC_RELAXED) == &ut_pending)
		return ut_reg_may_emit(reg);
	return *__atomic_load_n(&event->state, __ATOMIC_RELAXED) != 0;
}

/* ---- all events */

int utracefs_event_error(const struct utracefs_event *event, char *text, size_t size)
{
	int error = ENOTCONN;
	const char *words = "";
	struct ut_session *session;
	struct ut_reg *reg;

	ut_lock();
	reg = event->registration;
	session = reg ? reg->session : NULL;
	if (session && reg->state == UT_REFUSED) {
		error = reg->error;
		words = reg->text;
	} else if (session && ((ut_is_up(session->state) && reg->state == UT_ANSWERED) ||
			       atomic_load(&reg->inherited))) { /* in a child: its parent's answer */
		error = 0;
	} else if (session && session->state != UT_WAITING) {
		error = EINPROGRESS;
	}
	if (text && size) {
		strncpy(text, words, size - 1);
		text[size - 1] = 0;
	}
	ut_unlock();
	return error;
}

void utracefs_event_stats(const struct utracefs_event *event, struct utracefs_event_stats *stats)
{
	struct ut_reg *reg;

	ut_lock();
	reg = event->registration;
	stats->lost = reg ? atomic_load(&reg->lost) : 0;
	stats->refused = reg ? atomic_load(&reg->refused) : 0;
	ut_unlock();
}

int utracefs_flush(unsigned timeout_ms)
{
	return ut_owner_flush(&ut_process_events.owner, timeout_ms * UINT64_C(1000000));
}

void utracefs_close(void)
{
	ut_owner_close(&ut_process_events.owner);
}
