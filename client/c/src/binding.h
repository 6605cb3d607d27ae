/*
 * Interface for bindings of other languages: sessions of their own, events in their own objects, records
 * without a call, and interruptible waits. Not installed: a binding is built with the library's sources. The
 * shared library exports these names under UTRACEFS_BINDING_ and a checksum of this header and of what it
 * includes, so that a binding never runs with another build's.
 *
 *     testing    utracefs_enabled(&event) of utracefs.h
 *     emitting   utb_reserve, fill, utb_commit: no call in the usual case
 *
 *         struct utb_reserved r;
 *         uint64_t until = 0;
 *         unsigned char *payload = utb_reserve(&event, 0, size, &r);
 *         while (!payload && r.needs_place) {
 *             int is_full = r.half, has_place;
 *             ... release the interpreter's lock ...
 *             has_place = utb_find_place(&event, size, &until, interrupted, arg) > 0;
 *             ... take it again ...
 *             payload = utb_reserve(&event, 0, size, &r);
 *             if (!is_full && !has_place)
 *                 break; // needs_place now: off, there is no daemon
 *         }
 *         if (payload) {
 *             ... fill all `size` bytes ...
 *             utb_commit(&r);
 *         }
 *
 * Only utb_find_place, utracefs_refuse, utb_flush, utb_close, utb_end and utb_pause may wait. Call them
 * without the interpreter's lock. They do not need it, and neither does the native thread.
 *
 * `interrupted(arg)` is called in a waiting thread, without any lock of the library, after a signal and at
 * least every 100 ms. It runs the language's signal handlers; a result other than 0 ends the wait (-EINTR).
 * Such a handler's own records do not wait. May be NULL.
 *
 * Counting: the library counts records that are lost, pending or refused by the daemon. A binding counts the
 * records that it commits, and records lost at once (utb_reserve: NULL without needs_place): its own
 * lock makes that free. Sent = counted by the binding - lost - pending - unwanted.
 *
 * Sizes: a buffer (a ring whose records go over the socket) has 64 KiB to 64 MiB; other sizes are rounded and
 * cut to that.
 */
#ifndef UTRACEFS_BINDING_H
#define UTRACEFS_BINDING_H

#ifndef _GNU_SOURCE
#error "compile with -D_GNU_SOURCE, or include Python.h first"
#endif

#include "utracefs.h"

#define UT_THREAD utb_thread
#define UT_CPU_OFFSET utb_cpu_offset
#define DR_WAITS dr_may_wait
#include "emit.h"

#pragma GCC visibility push(default)

/* A table of declarations, and a connection, which the first declaration starts. */
struct utb_session;

typedef int (*utb_interrupted)(void *arg);

/* The session of utracefs_declare, UTRACEFS_EVENT and utracefs_flush. Always the same; never NULL. Reads
 * the environment, unless it is connected already. */
struct utb_session *utb_process_session(void);
/* Starts and connects nothing. directory: of the daemon's sockets; NULL: from the environment of this
 * moment (UTRACEFS_DIR, ...). buffer_bytes: space for records not yet sent; 0: UTRACEFS_BUFFER_KB, else 1
 * MiB. The rest of the environment is read here, too. NULL: no memory. A directory too long for a socket's
 * address counts as one without a daemon. */
struct utb_session *utb_session_new(const char *directory, uint64_t buffer_bytes);
/* Closes it if it is open. Its events can still be used; they are off. Not for the process's session. */
void utb_session_free(struct utb_session *session);

/* Registers event->command (and flags); the event is in memory of the caller: {&off, command, NULL, NULL,
 * flags} as in UTRACEFS_DEFINE_EVENT; `utb_event_init` makes it. Does not wait. The same command and flags
 * share one registration. 0; -ECANCELED: the session is closed, or the interpreter has ended; -EINVAL,
 * -ENOMEM. After an error the event can be used, and is off permanently. */
int utb_attach(struct utb_session *session, struct utracefs_event *event);
void utb_event_init(struct utracefs_event *event, const char *command, unsigned flags);
/* (utracefs_detach removes all the library's pointers to this memory; after close, too, and twice. No other
 * thread may be emitting the event. The registration remains.) */

/* Finds a place for records of this event, or waits for room for one of `size` bytes, as a lossless reader
 * asks: 1 if there is one, else 0. -EINTR. *until: 0 at a record's first call; it bounds all of its waits. */
int utb_find_place(struct utracefs_event *event, uint32_t size, uint64_t *until, utb_interrupted interrupted,
	       void *arg);

/* Wait until all records emitted before have reached the consumers: 0, -ETIMEDOUT, -ENOTCONN, -EINTR,
 * -EDEADLK from the native thread. 0 at once if nothing was emitted since the last flush. Allowed in
 * signal handlers. */
int utb_flush(struct utb_session *session, uint64_t timeout_ns, utb_interrupted interrupted, void *arg);
/* Sends pending records, for at most 0.5 s, and removes all registrations; events are off permanently. A
 * second call does nothing. */
void utb_close(struct utb_session *session);

struct utb_stats {
	uint64_t lost;	  /* of all events: no space, or the daemon ended */
	uint64_t pending; /* committed, but not sent yet; without a daemon also: in the data ring */
	int is_connected;
	uint32_t ring_bytes; /* of the data ring; 0: none */
};
void utb_stats(struct utb_session *session, struct utb_stats *stats);

struct utb_event_stats {
	uint64_t lost;
	uint64_t pending;	      /* at the last utb_stats, or at the end of the session */
	uint64_t unwanted;	      /* emitted before an answer "off" */
	uint32_t write_index;	      /* on the session's connection; UINT32_MAX: none */
	unsigned nr_refusals;
	struct ut_refusal refusals[UT_REFUSALS]; /* by the daemon */
	int error;		      /* as in utracefs_event_error: 0, EINPROGRESS, ENOTCONN, or the
				       * reason of a refusal */
	char text[160];		      /* the daemon's text for it */
};
void utb_event_stats(const struct utracefs_event *event, struct utb_event_stats *stats);

/* Before a fork, and after it in the parent: ends the native thread and starts it again, if there was one.
 * Calls nest. Waits for the end of a step (1 s at most, usually microseconds): 0, or -ETIMEDOUT if it is
 * still running. The child calls nothing. */
int utb_pause(void);
void utb_resume(void);

/* The interpreter exits: utb_close of all sessions of utb_session_new, and utb_flush of the process's
 * session, within 0.5 s in total. Afterwards the library neither reads nor writes any event of utb_attach,
 * and utb_attach does nothing. Events that C code declared stay on. */
void utb_end(void);

/* Warnings for the user, at most 8 at a time, each text once. Returns the oldest: 1 and its text, or 0.
 * From any thread. */
int utb_next_warning(char *text, size_t size);
/* The hook is called when there is a warning, from any thread, with the library's lock held and signals
 * blocked: it may only make a note, or start a thread. NULL: no hook. At the first one descriptor 2 is the
 * program's standard error, for utb_say. */
void utb_on_warning(void (*hook)(void));

/* Descriptor 2 as standard error: 1 ready; 0 it would block; -1 closed or broken. (-1 also for a file that an
 * exec would close: the program did not begin with it, but has opened it after closing standard error.) */
int utb_standard_error(void);
/* Writes a warning to standard error if that is ready, and the one of the first utb_on_warning. Never blocks,
 * sends no signal. From any thread. */
void utb_say(const char *text);

/* ---- for the inline functions */

extern struct data_ring *utb_views; /* (Compile with -fPIC: no copy of it.) */
unsigned char *utb_reserve_slowly(struct utb_reserved *r, uint32_t size, uint64_t place)
	__attribute__((cold));
#pragma GCC visibility pop

/* Space for a record, or with DR_REFUSED as `flag` for a refusal (data_ring.h). NULL: there is none and it
 * is counted, or r->needs_place. Never waits. */
static inline unsigned char *utb_reserve(struct utracefs_event *event, uint32_t flag, uint32_t size,
					 struct utb_reserved *r)
{
	/* Once: another thread may detach the event at any time (utb_end). A registration stays readable. */
	struct ut_target *target = (struct ut_target *)__atomic_load_n(&event->registration, __ATOMIC_ACQUIRE);
	uint64_t place;

	r->half = r->needs_place = 0;
	r->reg = (struct ut_reg *)target;
	if (__builtin_expect(!target, 0))
		return NULL;
	place = atomic_load_explicit(&target->place, memory_order_acquire);
	if (__builtin_expect(size <= DR_MAX_PAYLOAD, 1) && ut_reserve_at(utb_views, place, flag, size, r))
		return r->record->payload;
	return utb_reserve_slowly(r, size, place);
}

#endif
