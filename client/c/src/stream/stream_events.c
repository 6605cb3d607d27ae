#include "stream_events.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Descriptions are kept as long as the stream. More is a daemon that has gone mad. */
#define MAX_DESCRIBED (64u << 20)
/* Threads with names; a full table forgets all. */
#define MAX_NAMES (1u << 20)
#define FIRST_NAMES 256u

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

static uint32_t hash_of(const char *name, size_t size)
{
	uint32_t hash = 2166136261u;

	while (size--)
		hash = (hash ^ (uint8_t)*name++) * 16777619u;
	return hash % UT_NR_NAMES;
}

static int is_text(const char *text, const char *other, size_t size)
{
	return strlen(text) == size && memcmp(text, other, size) == 0;
}

struct text {
	const char *at;
	size_t size;
};

static char *put_text(char **at, struct text text)
{
	char *begin = *at;

	memcpy(begin, text.at, text.size);
	begin[text.size] = 0;
	*at += text.size + 1;
	return begin;
}

/* Behind the line of the id, which may be another one after a restart. */
static const char *behind_id(const char *format)
{
	const char *id = strstr(format, "\nID: ");

	return id ? id + 5 + strspn(id + 5, "0123456789") : format;
}

/* The newest one; format: NULL for any. */
static struct ut_known_event *find(const struct ut_stream_events *events, struct text system,
				   struct text name, const char *format)
{
	struct ut_known_event *one = events->names[hash_of(name.at, name.size)];

	while (one && !(is_text(one->event.name, name.at, name.size) &&
			is_text(one->event.system, system.at, system.size) &&
			(!format || strcmp(behind_id(one->event.format), behind_id(format)) == 0)))
		one = one->next_of_name;
	return one;
}

static struct ut_known_event *add(struct ut_stream_events *events, struct text system, struct text name,
				  struct text format)
{
	size_t size = sizeof(struct ut_known_event) + system.size + name.size + format.size + 3;
	struct ut_known_event *one = events->bytes + size > MAX_DESCRIBED ? NULL : calloc(1, size);
	struct ut_known_event **of_name = &events->names[hash_of(name.at, name.size)];
	char *at;

	if (!one)
		return NULL;
	events->bytes += size;
	at = one->texts;
	one->event.system = put_text(&at, system);
	one->event.name = put_text(&at, name);
	one->event.format = put_text(&at, format);
	one->next = events->all;
	one->next_of_name = *of_name;
	events->all = *of_name = one;
	return one;
}

int ut_stream_events_describe(struct ut_stream_events *events, uint16_t id, const uint8_t *data, size_t size)
{
	static const char first[] = "name: ";
	struct ut_known_event *known;
	struct text system, name, format;
	char *copy = malloc(size + 1);
	int error = -EPROTO;

	if (!copy)
		return -ENOMEM;
	memcpy(copy, data, size); /* now the daemon cannot change it */
	copy[size] = 0;
	system = (struct text){copy, strlen(copy)};
	if (system.size >= size)
		goto end;
	format = (struct text){copy + system.size + 1, strlen(copy + system.size + 1)};
	if (strncmp(format.at, first, strlen(first)))
		goto end;
	name = (struct text){format.at + strlen(first), strcspn(format.at + strlen(first), "\n")};
	known = find(events, system, name, format.at);
	if (!known)
		known = add(events, system, name, format);
	error = known ? 0 : -ENOMEM;
	if (known) {
		known->event.id = id;
		events->by_id[id] = known;
	}
end:
	free(copy);
	return error;
}

struct ut_known_event *ut_stream_events_named(struct ut_stream_events *events, const char *system,
					      const char *name)
{
	const struct text system_text = {system, strlen(system)}, name_text = {name, strlen(name)};
	struct ut_known_event *known = find(events, system_text, name_text, NULL);

	return known ? known : add(events, system_text, name_text, (struct text){"", 0});
}

struct ut_known_event *ut_stream_events_older(const struct ut_known_event *known)
{
	struct ut_known_event *one = known->next_of_name;

	while (one && (strcmp(one->event.name, known->event.name) || strcmp(one->event.system, known->event.system)))
		one = one->next_of_name;
	return one;
}

static struct ut_thread_name *slot_of(const struct ut_thread_names *names, int32_t tid)
{
	uint32_t at = (uint32_t)tid * 2654435769u;

	for (at ^= at >> 16;; at++) {
		struct ut_thread_name *slot = &names->table[at & (names->size - 1)];

		if (!slot->tid || slot->tid == tid)
			return slot;
	}
}

const char *ut_thread_name_of(const struct ut_thread_names *names, int32_t tid)
{
	const struct ut_thread_name *slot = names->size && tid ? slot_of(names, tid) : NULL;

	return slot && slot->tid ? slot->name : NULL;
}

static int grow(struct ut_thread_names *names)
{
	struct ut_thread_names larger = {.size = names->size ? 2 * names->size : FIRST_NAMES};

	larger.table = calloc(larger.size, sizeof(*larger.table));
	if (!larger.table)
		return -ENOMEM;
	for (uint32_t i = 0; i < names->size; i++)
		if (names->table[i].tid) {
			*slot_of(&larger, names->table[i].tid) = names->table[i];
			larger.used++;
		}
	free(names->table);
	*names = larger;
	return 0;
}

void ut_thread_name_set(struct ut_thread_names *names, int32_t tid, const uint8_t *name)
{
	struct ut_thread_name *slot;

	if (!tid)
		return;
	if (names->used >= names->size / 2 && (names->size >= MAX_NAMES || grow(names))) {
		if (!names->size)
			return;
		memset(names->table, 0, names->size * sizeof(*names->table));
		names->used = 0;
	}
	slot = slot_of(names, tid);
	names->used += slot->tid == 0;
	slot->tid = tid;
	memcpy(slot->name, name, 15);
}
