/*
 * What a binding of another language needs: sessions of its own, events in its own objects, records without
 * a call, and waits that it can leave. Not installed; a binding is built with the library's sources, and the
 * shared library exports these names under UTRACEFS_BINDING_0.1.
 *
 *     looking    utracefs_enabled(&event) of utracefs.h, or, where signal handlers of the language must run
 *                while it waits, utb_enabled: two loads; PENDING leads to utb_look
 *     emitting   utb_reserve, fill, utb_commit: no call in the usual case
 *
 *         struct utb_reserved r;
 *         unsigned char *payload = utb_reserve(&event, 0, size, &r);
 *         if (!payload && r.must_settle) {
 *             ... release the interpreter's lock ...
 *             utb_settle(&event, interrupted, arg);
 *             ... take it again ...
 *             payload = utb_reserve(&event, 0, size, &r); // must_settle now: off, there is no daemon
 *         }
 *         if (payload) {
 *             ... fill all `size` bytes ...
 *             utb_commit(&r);
 *         }
 *
 * Who may wait: utb_look, utb_settle, utracefs_refuse, utb_flush, utb_close, utb_end, utb_pause, and nothing
 * else. Call these without the interpreter's lock. None of them needs it, and neither does the native thread.
 *
 * `interrupted(arg)` is called in a thread that waits, without any lock of the library, after a signal and at
 * least every 100 ms. It runs the language's signal handlers; not 0 ends the wait (-EINTR). What such a
 * handler emits does not wait as well: it is kept for the answer. May be NULL.
 *
 * Counting. The library counts what is lost, pending and refused by the daemon. A binding counts the records
 * that it commits, and those that are lost at once (utb_reserve: NULL without must_settle): it has a lock
 * under which that costs nothing. Sent is what it counted, less lost, pending and unheard.
 *
 * Sizes: a buffer (ring of our own) has 64 KiB to 64 MiB; other sizes are rounded and cut to that.
 */
#ifndef UTRACEFS_BINDING_H
#define UTRACEFS_BINDING_H

#ifndef _GNU_SOURCE
#error "compile with -D_GNU_SOURCE, or include Python.h first"
#endif

#include "utracefs.h"

#define UT_THREAD utb_thread
#define UT_CPU_OFFSET utb_cpu_offset
#include "producer.h"

#include "emit.h"

#pragma GCC visibility push(default)

/* A table of declarations, and one connection from the first of them on. */
struct utb_session;

typedef int (*utb_interrupted)(void *arg);

/* The one behind utracefs_declare, UTRACEFS_EVENT and utracefs_flush. Always the same; never NULL. Reads the
 * environment, unless it is connected already. */
struct utb_session *utb_process_session(void);
/* Starts and connects nothing. directory: of the daemon's sockets; NULL: as the environment says now
 * (UTRACEFS_DIR, ...). buffer_bytes: room for records not yet sent; 0: UTRACEFS_BUFFER_KB, else 1 MiB. The
 * rest of the environment is read here, too. NULL: no memory. A directory too long for a socket is one where
 * no daemon is. */
struct utb_session *utb_session_new(const char *directory, uint64_t buffer_bytes);
/* Closes it, if nobody did. Its events stay harmless. Not the process's. */
void utb_session_free(struct utb_session *session);

/* Has event->command (and flags) registered, from memory of the caller's: {&off, command, NULL, NULL, flags}
 * as in UTRACEFS_DEFINE_EVENT; `utb_event_init` makes it. Does not wait. The same command and flags share one
 * registration. 0; -ECANCELED: the session is closed, or the interpreter has ended; -EINVAL, -ENOMEM. In any
 * case the event may be looked at and written; it is off for good then. */
int utb_attach(struct utb_session *session, struct utracefs_event *event);
void utb_event_init(struct utracefs_event *event, const char *command, unsigned flags);
/* From here on nothing of the library leads to this memory. Also after close, and twice. (No other thread may
 * be emitting the event.) The registration stays. */
void utb_detach(struct utracefs_event *event);

/* Whether the event is on; waits for the daemon's answer, within the patience. A forked child sees what its
 * parent sees, without waiting. 1, 0, or -EINTR. From signal handlers, too. */
int utb_look(struct utracefs_event *event, utb_interrupted interrupted, void *arg);

/* A place for records of this event: 1 if there is one now, else 0. -EINTR. */
int utb_settle(struct utracefs_event *event, utb_interrupted interrupted, void *arg);

/* Whether all that was emitted before has reached the consumers: 0, -ETIMEDOUT, -ENOTCONN, -EINTR, -EDEADLK
 * from the native thread. 0 at once if nothing was emitted since the last. From signal handlers, too. */
int utb_flush(struct utb_session *session, uint64_t timeout_ns, utb_interrupted interrupted, void *arg);
/* Sends what is pending, for at most 0.5 s, and gives all registrations back; events are off for good. Twice
 * is harmless. */
void utb_close(struct utb_session *session);

struct utb_stats {
	uint64_t lost;	  /* no room, or no daemon to have them any more; of all events */
	uint64_t pending; /* committed, but not sent yet */
	int is_connected;
	uint32_t ring_bytes; /* of the data ring; 0: none */
};
void utb_stats(struct utb_session *session, struct utb_stats *stats);

#define UTB_REFUSALS 4u
struct utb_event_stats {
	uint64_t lost;
	uint64_t pending;	      /* as the last utb_stats found it */
	uint64_t unheard;	      /* committed before an answer that said off */
	uint32_t write_index;	      /* on the session's connection; UINT32_MAX: none */
	unsigned nr_refusals;
	struct ut_refusal refusals[UTB_REFUSALS]; /* by the daemon */
	int error;		      /* as utracefs_event_error: 0, EINPROGRESS, ENOTCONN, or why it is refused */
	char text[160];		      /* the daemon's words for that */
};
void utb_event_stats(const struct utracefs_event *event, struct utb_event_stats *stats);

/* Before a fork, and after it in the parent: the native thread ends and starts again, if there was one. Calls
 * nest. Waits for the end of a step (1 s at most, mostly microseconds): 0, or -ETIMEDOUT, then it is still
 * there. In the child nothing is to be called. */
int utb_pause(void);
void utb_resume(void);

/* The interpreter exits: as utb_close of the sessions that utb_session_new made, and utb_flush of the
 * process's, for 0.5 s in all; then no event that utb_attach was called with is looked at or written by the
 * library any more, and utb_attach does nothing. What C code of the program has declared stays on. */
void utb_end(void);

/* What a user must hear of, at most 8 texts at a time; what comes again is said once. The oldest: 1 and its
 * text, or 0. From any thread. */
int utb_next_warning(char *text, size_t size);
/* Called when there is one, from any thread, with the library's lock held and signals blocked: it may only
 * make a note (Py_AddPendingCall). NULL: nobody. */
void utb_on_warning(void (*hook)(void));

/* ---- what the inline functions need */

extern struct data_ring *utb_views; /* (Compile with -fPIC: no copy of it.) */
unsigned char *utb_reserve_slowly(struct utracefs_event *event, uint32_t flag, uint32_t size, uint64_t place,
				  struct utb_reserved *r) __attribute__((cold));
void utb_wake(uint32_t ring) __attribute__((cold));
#pragma GCC visibility pop

/* -EINTR is "on": ask PyErr_Occurred or the like. */
static inline int utb_enabled(struct utracefs_event *event, utb_interrupted interrupted, void *arg)
{
	unsigned char state = __atomic_load_n(__atomic_load_n(&event->state, __ATOMIC_RELAXED), __ATOMIC_RELAXED);

	if (__builtin_expect(state == 0, 1))
		return 0;
	return state != UTRACEFS_IS_PENDING ? 1 : utb_look(event, interrupted, arg);
}

/* Room for a record, or with DR_REFUSED as `flag` for a refusal (data_ring.h). NULL: none, which is counted;
 * or r->must_settle. Never waits. */
static inline unsigned char *utb_reserve(struct utracefs_event *event, uint32_t flag, uint32_t size,
					 struct utb_reserved *r)
{
	struct ut_target *target = (struct ut_target *)event->registration;
	uint64_t place;
	struct data_ring view;

	r->must_settle = 0;
	if (__builtin_expect(!target, 0))
		return NULL;
	place = atomic_load_explicit(&target->place, memory_order_acquire);
	view = utb_views[place >> 32];
	if (__builtin_expect(view.header && size <= DR_MAX_PAYLOAD, 1)) {
		r->record = ut_reserve(&view, (uint32_t)place | flag, size, &r->half);
		if (__builtin_expect(r->record != NULL, 1)) {
			r->header = view.header;
			r->ring = (uint32_t)(place >> 32);
			r->size = size;
			return r->record->payload;
		}
	}
	return utb_reserve_slowly(event, flag, size, place, r);
}

static inline void utb_commit(const struct utb_reserved *r)
{
	struct data_ring view;

	view.header = r->header;
	if (__builtin_expect(dr_commit(&view, r->record, r->size) || r->half, 0))
		utb_wake(r->ring);
}

#endif
