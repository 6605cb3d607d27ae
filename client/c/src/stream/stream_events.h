/* A stream's events. */
#ifndef UTRACEFS_STREAM_EVENTS_H
#define UTRACEFS_STREAM_EVENTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "utracefs_stream.h"

struct ut_known_event {
	struct utracefs_stream_event event;
	struct ut_known_event *next; /* of all */
	struct ut_known_event *next_of_name;
	uint64_t got;	 /* records and reported losses of the present connection's stream */
	uint64_t missed; /* in the answer to stream_open, on that connection; and its epoch */
	uint64_t epoch;
	uint64_t untold; /* lost between two daemons: to be reported */
	int has_missed;
	char texts[]; /* system, name, format */
};

/* A format behind the line of its id, which may be another one after a restart. */
static inline const char *ut_behind_id(const char *format)
{
	const char *id = strstr(format, "\nID: ");

	return id ? id + 5 + strspn(id + 5, "0123456789") : format;
}

#define UT_NR_IDS 65536u
#define UT_NR_NAMES 1024u

struct ut_stream_events {
	struct ut_known_event **by_id; /* UT_NR_IDS */
	struct ut_known_event *all;
	struct ut_known_event *names[UT_NR_NAMES];
	size_t bytes; /* of all descriptions */
};

int ut_stream_events_init(struct ut_stream_events *events);
void ut_stream_events_free(struct ut_stream_events *events);
/* The content of an SS_FORMAT: system, NUL, format. 0, -EPROTO, -ENOMEM. */
int ut_stream_events_describe(struct ut_stream_events *events, uint16_t id, const uint8_t *data, size_t size);
/* The newest event of this name, made without a format if need be. NULL: no memory. */
struct ut_known_event *ut_stream_events_named(struct ut_stream_events *events, const char *system,
					      const char *name);
/* The next one of its name, or NULL. */
struct ut_known_event *ut_stream_events_older(const struct ut_known_event *known);

#endif
