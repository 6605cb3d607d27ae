/* The functions of binding.h, made from those of session.h and events.h. */
#include "binding.h"

#include <stdlib.h>

#include "events.h"
#include "session.h"
#include "thread.h"

#define OF_BINDING 1u /* utracefs_event.reserved[0] */

static struct utb_session *sessions; /* made by bindings. With the lock held, like everything here. */
static int has_ended;

struct utb_session *utb_process_session(void)
{
	ut_lock();
	if (!ut_process_events.owner.session)
		ut_settings_read(&ut_process_events.settings, NULL, 0);
	ut_unlock();
	return &ut_process_events;
}

struct utb_session *utb_session_new(const char *directory, uint64_t buffer_bytes)
{
	struct utb_session *made = calloc(1, sizeof(*made));

	if (!made)
		return NULL;
	ut_settings_read(&made->settings, directory, buffer_bytes);
	ut_lock();
	made->owner.is_closed = has_ended;
	made->next = sessions;
	sessions = made;
	ut_unlock();
	return made;
}

void utb_session_free(struct utb_session *session)
{
	struct utb_session **at = &sessions;

	utb_close(session);
	ut_lock();
	while (*at != session)
		at = &(*at)->next;
	*at = session->next;
	ut_events_free(session);
	ut_unlock();
	free(session);
}

/* ---- events */

void utb_event_init(struct utracefs_event *event, const char *command, unsigned flags)
{
	memset(event, 0, sizeof(*event));
	event->state = &ut_off;
	event->command = command;
	event->flags = flags;
}

int utb_attach(struct utb_session *session, struct utracefs_event *event)
{
	int error = 0;

	ut_lock();
	if (has_ended || session->owner.is_closed)
		error = -ECANCELED;
	else if (!event->registration)
		error = ut_events_attach(session, event);
	event->reserved[0] = OF_BINDING;
	ut_unlock();
	return error;
}

int utb_find_place(struct utracefs_event *event, uint32_t size, uint64_t *until, utb_interrupted call,
		   void *arg)
{
	struct ut_interruption before = ut_interrupt_by((struct ut_interruption){call, arg, 0});
	struct ut_reg *reg = ut_reg_of_event(event);
	int has_place = reg && ut_find_place(reg, size, until);

	return ut_interrupt_by(before).has_said ? -EINTR : has_place;
}

/* ---- sessions */

int utb_flush(struct utb_session *session, uint64_t timeout_ns, utb_interrupted call, void *arg)
{
	struct ut_interruption before = ut_interrupt_by((struct ut_interruption){call, arg, 0});
	int error = ut_owner_flush(&session->owner, timeout_ns);

	ut_interrupt_by(before);
	return error;
}

void utb_close(struct utb_session *session)
{
	ut_owner_close(&session->owner);
}

void utb_stats(struct utb_session *session, struct utb_stats *stats)
{
	struct ut_session *s;

	memset(stats, 0, sizeof(*stats));
	ut_lock();
	s = session->owner.session;
	if (s) {
		stats->is_connected = ut_is_up(s->state);
		stats->pending = ut_count_pending(s);
		stats->ring_bytes = s->state == UT_UP ? ut_views[s->ring].size : 0;
		for (struct ut_reg *reg = s->regs; reg; reg = reg->next)
			stats->lost += atomic_load(&reg->lost);
	}
	ut_unlock();
}

void utb_event_stats(const struct utracefs_event *event, struct utb_event_stats *stats)
{
	struct ut_reg *reg;

	memset(stats, 0, sizeof(*stats));
	stats->error = utracefs_event_error(event, stats->text, sizeof(stats->text));
	stats->write_index = UINT32_MAX;
	ut_lock();
	reg = event->registration;
	if (reg) {
		stats->lost = atomic_load(&reg->lost);
		stats->unwanted = reg->unwanted;
		stats->pending = reg->pending;
		if (reg->session && ut_is_up(reg->session->state) && reg->state == UT_ANSWERED)
			stats->write_index = reg->write_index;
		stats->nr_refusals = reg->nr_refusals;
		memcpy(stats->refusals, reg->refusals, sizeof(stats->refusals));
	}
	ut_unlock();
}

/* ---- the process */

/* The session may have events of other bindings, which remain. */
static void detach_all(struct ut_session *s)
{
	for (struct ut_reg *reg = s->regs; reg; reg = reg->next)
		for (struct utracefs_event *event = reg->events, *next; event; event = next) {
			next = event->next;
			if (event->reserved[0] == OF_BINDING)
				ut_events_detach(event);
		}
}

void utb_end(void)
{
	uint64_t until = ut_end_until();
	struct utb_session *open;

	ut_lock();
	has_ended = 1;
	ut_unlock();
	utb_on_warning(NULL);
	ut_owner_flush(&ut_process_events.owner, UT_CLOSE_NS);
	ut_lock();
	/* Threads of the interpreter still emit, close and free: from the beginning after each wait. */
	do {
		for (open = sessions; open && !open->owner.session; open = open->next)
			open->owner.is_closed = 1;
		if (open)
			ut_session_close_until(open->owner.session, until);
	} while (open && !ut_process_is_guest());
	if (ut_process_events.owner.session)
		detach_all(ut_process_events.owner.session);
	ut_unlock();
}
