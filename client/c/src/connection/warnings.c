/* Warnings for the user: kept until a binding fetches them. In C they are not shown; utracefs_event_error
 * has those about an event. */
#include <stdarg.h>
#include <stdio.h>

#include "connection.h"

#define NR_TEXTS 8u
#define TEXT_BYTES 256u

static char texts[NR_TEXTS][TEXT_BYTES];
static unsigned first, count;
static void (*hook)(void);

void ut_warn(struct ut_session *s, const char *format, ...)
{
	char text[TEXT_BYTES];
	uint32_t hash = 2166136261u; /* FNV-1a */
	va_list values;

	if (!hook)
		return;
	va_start(values, format);
	vsnprintf(text, sizeof(text), format, values);
	va_end(values);
	for (const char *at = text; *at; at++)
		hash = (hash ^ (unsigned char)*at) * 16777619u;
	if (hash == s->last_warning || count == NR_TEXTS)
		return;
	s->last_warning = hash;
	memcpy(texts[(first + count++) % NR_TEXTS], text, sizeof(text));
	hook();
}

const char *ut_error_name(int error)
{
#ifdef __GLIBC__
	const char *name = strerrorname_np(error);

	return name ? name : "unknown error";
#else
	return strerror(error);
#endif
}

int ut_next_warning(char *text, size_t size)
{
	if (!count || !size)
		return 0;
	snprintf(text, size, "%s", texts[first]);
	first = (first + 1) % NR_TEXTS;
	count--;
	return 1;
}

void ut_on_warning(void (*wanted)(void))
{
	hook = wanted;
	count = 0;
}
