#include "stream_events.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Descriptions are kept as long as the stream. More is a daemon that has gone mad. */
#define MAX_DESCRIBED (64u << 20)

int ut_stream_events_init(struct ut_stream_events *events)
{
	events->by_id = calloc(UT_NR_IDS, sizeof(*events->by_id));
	return events->by_id ? 0 : -ENOMEM;
}

void ut_stream_events_free(struct ut_stream_events *events)
{
	struct ut_known_event *next;

	for (struct ut_known_event *one = events->all; one; one = next) {
		next = one->next;
		free(one);
	}
	free(events->by_id);
}

static struct ut_known_event **chain_of(struct ut_stream_events *events, const char *name)
{
	uint32_t hash = 2166136261u;

	while (*name)
		hash = (hash ^ (uint8_t)*name++) * 16777619u;
	return &events->names[hash % UT_NR_NAMES];
}

/* The newest one, made if there is none; format: NULL for any. NULL: no memory. */
static struct ut_known_event *find_or_add(struct ut_stream_events *events, const char *system,
					  const char *name, const char *format)
{
	struct ut_known_event **chain = chain_of(events, name), *one = *chain;
	size_t size;

	while (one && (strcmp(one->event.name, name) || strcmp(one->event.system, system) ||
		       (format && strcmp(ut_behind_id(one->event.format), ut_behind_id(format)))))
		one = one->next_of_name;
	if (one)
		return one;
	format = format ? format : "";
	size = sizeof(*one) + strlen(system) + strlen(name) + strlen(format) + 3;
	one = events->bytes + size > MAX_DESCRIBED ? NULL : calloc(1, size);
	if (!one)
		return NULL;
	events->bytes += size;
	one->event.system = strcpy(one->texts, system);
	one->event.name = strcpy(one->texts + strlen(system) + 1, name);
	one->event.format = strcpy(one->texts + strlen(system) + strlen(name) + 2, format);
	one->next = events->all;
	one->next_of_name = *chain;
	events->all = *chain = one;
	return one;
}

int ut_stream_events_describe(struct ut_stream_events *events, uint16_t id, const uint8_t *data, size_t size)
{
	static const char first[] = "name: ";
	struct ut_known_event *known = NULL;
	char *copy = calloc(1, size + 2), *format, *name;
	int error = -ENOMEM;

	if (!copy)
		return error;
	memcpy(copy, data, size); /* now the daemon cannot change it */
	format = copy + strlen(copy) + 1;
	name = strncmp(format, first, strlen(first)) ? NULL : format + strlen(first);
	if (!name) {
		error = -EPROTO;
	} else if ((name = strndup(name, strcspn(name, "\n")))) {
		known = find_or_add(events, copy, name, format);
		free(name);
	}
	free(copy);
	if (!known)
		return error;
	known->event.id = id;
	events->by_id[id] = known;
	return 0;
}

struct ut_known_event *ut_stream_events_named(struct ut_stream_events *events, const char *system,
					      const char *name)
{
	return find_or_add(events, system, name, NULL);
}

struct ut_known_event *ut_stream_events_older(const struct ut_known_event *known)
{
	struct ut_known_event *one = known->next_of_name;

	while (one && (strcmp(one->event.name, known->event.name) || strcmp(one->event.system, known->event.system)))
		one = one->next_of_name;
	return one;
}
