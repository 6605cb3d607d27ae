/*
 * Spans of C and C++, and ids for all. The span around others is that of the thread.
 *
 * Ids: random numbers of 63 bits, so that readers with signed 64 bit have them exactly; never 0,
 * which is no span. splitmix64 of a counter that begins at a random number in each process, so ids of one
 * process are as random as those of several. In a child that memory is empty, however it was forked.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "process.h"
#include "ring.h"
#include "utracefs.h"

static __thread uint64_t present; /* the thread's innermost span */

/* 0: not begun */
static uint64_t *counter(void)
{
	static uint64_t without_session;

	return ut_views ? (uint64_t *)(ut_views + UT_MAX_RINGS) : &without_session;
}

static void begin_anew(void)
{
	*counter() = 0;
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, begin_anew);
}

static void begin(uint64_t *next)
{
	uint64_t seed, none = 0;
	int before = errno;

	/* Not getrandom(3), where a thread may be cancelled. */
	if (syscall(SYS_getrandom, &seed, sizeof(seed), GRND_NONBLOCK) != sizeof(seed))
		seed = ut_clock_ns() << 20 ^ (uint64_t)getpid();
	errno = before;
	__atomic_compare_exchange_n(next, &none, seed | 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

uint64_t utracefs_new_span_id(void)
{
	uint64_t *next = counter(), last, id;

	do {
		last = __atomic_load_n(next, __ATOMIC_RELAXED);
		if (!last)
			begin(next);
		/* (No plain addition: in a child that is forked here it would begin at 0.) */
		id = last + 0x9e3779b97f4a7c15u;
		if (!last || !__atomic_compare_exchange_n(next, &last, id, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			id = 0;
		id = (id ^ id >> 30) * 0xbf58476d1ce4e5b9u;
		id = (id ^ id >> 27) * 0x94d049bb133111ebu;
		id = (id ^ id >> 31) >> 1;
	} while (!id);
	return id;
}

struct utracefs_span utracefs_span_begin(struct utracefs_event *end_event)
{
	struct utracefs_span span = {utracefs_new_span_id(), present, ut_clock_ns(), NULL, end_event};

	present = span.id;
	return span;
}

void utracefs_span_end(struct utracefs_span *span)
{
	const char *error = span->error ? span->error : "";
	size_t size = utracefs_string_size(error);
	struct utracefs_reserved reserved;
	unsigned char *at, *data;

	if (!span->id)
		return;
	present = span->parent_id;
	if (utracefs_enabled(span->end_event) &&
	    utracefs_reserve(span->end_event, 3 * sizeof(uint64_t) + 4 + size, &reserved)) {
		at = reserved.payload;
		data = at + 3 * sizeof(uint64_t) + 4;
		utracefs_put_u64(&at, span->id);
		utracefs_put_u64(&at, span->parent_id);
		utracefs_put_u64(&at, ut_clock_ns() - span->begin_ns);
		utracefs_put_string(&at, &data, error, size);
		utracefs_commit(&reserved);
	}
	span->id = 0;
}
