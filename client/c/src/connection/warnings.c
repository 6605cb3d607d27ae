/*
 * Warnings for the user, kept until a binding fetches them, or without one, if C code has declared an event,
 * until the native thread says them.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>

#include "connection.h"
#include "utracefs.h"

#define NR_TEXTS 8u
#define TEXT_BYTES 256u

static char texts[NR_TEXTS][TEXT_BYTES];
static unsigned first, count;
static void (*hook)(void);
static void (*call_with_text)(const char *text);
static struct ut_descriptor standard_error = {.fd = -1}; /* as it was at the program's first event */
static int are_said;
static uint32_t last_without_session;

void ut_warn(struct ut_session *s, const char *format, ...)
{
	uint32_t *last = s ? &s->last_warning : &last_without_session;
	char *text = texts[(first + count) % NR_TEXTS];
	uint32_t hash = 2166136261u; /* FNV-1a */
	va_list values;

	if ((!hook && !are_said) || count == NR_TEXTS)
		return;
	va_start(values, format);
	vsnprintf(text, TEXT_BYTES, format, values);
	va_end(values);
	for (const char *at = text; *at; at++)
		hash = (hash ^ (unsigned char)*at) * 16777619u;
	if (hash == *last)
		return;
	*last = hash;
	__atomic_store_n(&count, count + 1, __ATOMIC_RELAXED);
	(hook ? hook : ut_wake)();
}

static void note_standard_error(void)
{
	static int is_noted;
	struct stat found;

	if (!is_noted && fstat(2, &found) == 0)
		standard_error = (struct ut_descriptor){2, found.st_dev, found.st_ino, NULL};
	is_noted = 1;
}

void ut_warnings_are_said(void)
{
	note_standard_error();
	are_said = 1;
}

UT_EXPORTED int utb_standard_error(void)
{
	struct pollfd polled = {2, POLLOUT, 0};
	int error = errno, flags = fcntl(2, F_GETFD), ready = poll(&polled, 1, 0);

	errno = error;
	if (flags < 0 || flags & FD_CLOEXEC || ready < 0 || polled.revents & ~POLLOUT)
		return -1;
	return ready;
}

/* Writes the text to standard error, if that is no other file by now, and does not block. Signals are
 * blocked, but the thread may be the program's own: a signal of a closed pipe, or of RLIMIT_FSIZE, is
 * removed, unless the program had one pending. */
static void say(const char *text)
{
	struct iovec line[] = {{"utracefs: ", 10}, {(char *)text, strlen(text)}, {"\n", 1}};
	sigset_t before, sent;
	int number;

	if (!ut_is_ours(&standard_error) || utb_standard_error() != 1 || sigpending(&before) ||
	    writev(2, line, 3) >= 0)
		return;
	number = errno == EPIPE ? SIGPIPE : SIGXFSZ;
	sigemptyset(&sent);
	sigaddset(&sent, number);
	if (!sigismember(&before, number))
		sigtimedwait(&sent, NULL, &(struct timespec){0, 0});
}

static int next_warning(char *text, size_t size)
{
	if (!count || !size)
		return 0;
	snprintf(text, size, "%s", texts[first]);
	first = (first + 1) % NR_TEXTS;
	__atomic_store_n(&count, count - 1, __ATOMIC_RELAXED);
	return 1;
}

void ut_say_warnings(void)
{
	while (__atomic_load_n(&count, __ATOMIC_RELAXED)) {
		void (*call)(const char *);
		char text[TEXT_BYTES];
		int found;

		ut_lock();
		call = call_with_text ? call_with_text : say;
		found = !hook && are_said && next_warning(text, sizeof(text));
		ut_unlock();
		if (!found)
			return;
		call(text);
	}
}

void ut_say_warnings_here(void)
{
	char text[TEXT_BYTES];

	while (!hook && are_said && !call_with_text && next_warning(text, sizeof(text)))
		say(text);
}

void utracefs_on_warning(void (*call)(const char *text))
{
	ut_lock();
	call_with_text = call;
	ut_unlock();
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

UT_EXPORTED int utb_next_warning(char *text, size_t size)
{
	int found;

	ut_lock();
	found = next_warning(text, size);
	ut_unlock();
	return found;
}

UT_EXPORTED void utb_on_warning(void (*wanted)(void))
{
	ut_lock();
	if (wanted)
		note_standard_error();
	hook = wanted;
	ut_unlock();
}

UT_EXPORTED void utb_say(const char *text)
{
	ut_lock(); /* signals are blocked */
	say(text);
	ut_unlock();
}
