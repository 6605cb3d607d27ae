/* Events of a program on a session: declared commands, and the registration of each (utracefs.c). */
#ifndef UTRACEFS_EVENTS_H
#define UTRACEFS_EVENTS_H

#include "connection.h"
#include "utracefs.h"

/* A session of a binding (binding.h): declarations, and the session that the first of them makes. */
struct utb_session {
	struct ut_owner owner;
	struct ut_settings settings; /* without local_bytes: those of the process */
	void *known; /* all attached or declared commands and flags, of tsearch(3) */
	struct utb_session *next; /* of the sessions that bindings made */
};

extern struct utb_session ut_process_events;

/* With the lock held. Registers the event, without waiting. 0 or negative errno. */
int ut_events_attach(struct utb_session *session, struct utracefs_event *event);
/* With the lock held: removes all the library's pointers to the event. */
void ut_events_detach(struct utracefs_event *event);
/* With the lock held: removes the declarations. */
void ut_events_free(struct utb_session *session);

static inline struct ut_reg *ut_reg_of_event(const struct utracefs_event *event)
{
	return __atomic_load_n((struct ut_reg *const *)&event->registration, __ATOMIC_ACQUIRE);
}

#endif
