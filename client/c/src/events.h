/* Events of a program on a session: which commands were declared, and where each leads (utracefs.c). */
#ifndef UTRACEFS_EVENTS_H
#define UTRACEFS_EVENTS_H

#include "connection.h"
#include "utracefs.h"

struct known;

/* What a binding calls a session (binding.h): declarations, and the session made by the first of them. */
struct utb_session {
	struct ut_owner owner;
	struct ut_settings settings;
	int has_settings; /* else those of the process */
	struct known **known; /* all commands and flags that were attached or declared, by their hash */
	uint32_t nr_buckets, nr_known;
	struct utb_session *next; /* of those that bindings made */
};

extern struct utb_session ut_process_events;

/* With the lock held. Has the event registered, without waiting. 0 or negative errno. */
int ut_events_attach(struct utb_session *session, struct utracefs_event *event);
/* With the lock held: nothing of the library leads to the event any more. */
void ut_events_detach(struct utracefs_event *event);
/* With the lock held: forget the declarations. */
void ut_events_free(struct utb_session *session);

static inline struct ut_reg *ut_reg_of_event(const struct utracefs_event *event)
{
	return __atomic_load_n((struct ut_reg *const *)&event->registration, __ATOMIC_ACQUIRE);
}

#endif
