/*
 * One connection: its registrations, its requests, its rings. Nothing here waits.
 *
 * One lock (process.h) guards everything here except the members that an emit reads, which are marked.
 * Signals are blocked while the lock is held. So a signal handler finds it free, or held by another thread
 * that will release it: it may wait for it.
 *
 * Memory that an emit reads is never unmapped or freed during the emit: memory of rings and status is
 * replaced in place (ring.h); sessions and registrations wait in a queue before their memory is reused
 * (ut_free_later).
 */
#ifndef UTRACEFS_CONNECTION_H
#define UTRACEFS_CONNECTION_H

#include <stddef.h>

#include "process.h"
#include "ring.h"
#include "states.h"
#include "target.h"
#include "wire.h"

struct utracefs_event;

#define UT_TOKENS 2u /* a session of enablers: no status, no ring */

#define UT_CHUNK 64u
#define UT_NR_CHUNKS 1024u
#define UT_NO_NUMBER UINT32_MAX

#define UT_ASKED 2048u		    /* requests under way at a time: more than a socket takes */
#define UT_IN_BYTES (64u << 10)	    /* more than any message from the daemon */
#define UT_OUT_BYTES (128u << 10)   /* several requests, or one record of the largest size */
#define UT_STATUS_BYTES (256u << 10) /* an event has an id below 65536, so the status file has fewer bytes */

#define UT_FIRST_BACK_OFF_NS 50000000ull

/* Until the next attempt, if the daemon has too many new connections: each time twice as long. */
#define UT_BUSY_NS 250000ull
/* The longest wait of an emit for the daemon: of a forked child in all such attempts, of a write(2) for an
 * answer. */
#define UT_EMIT_NS (3 * UT_BUSY_NS)

/* Time that callers wait for answers, in total until an answer comes: a stopped daemon must not delay a
 * program once for each of its events. After that, LATE for each. */
#define UT_ANSWER_NS 2000000000ull
#define UT_LATE_ANSWER_NS 20000000ull

enum ut_reg_state { UT_TO_ASK, UT_ASKED_FOR, UT_ANSWERED, UT_REFUSED };

/* One event on one session. */
struct ut_reg {
	/* Read by an emit. The first two are struct ut_target (emit.h). */
	_Atomic(const uint8_t *) status;
	_Atomic uint64_t place; /* ring.h; 0: none */
	_Atomic(const uint8_t *) inherited; /* in a child: its parent's byte, valid while it is pending */
	struct ut_session *session; /* NULL: the session has ended */
	uint32_t size; /* of the fixed fields; like locs set before place, and never changed */
	uint32_t nr_locs;
	uint32_t id; /* the trace event's; another one in another daemon */
	_Atomic uint64_t lost;

	struct ut_reg *next; /* in the order of registration, the same on every connection */
	const char *command; /* behind locs */
	uint32_t flags;
	uint16_t event_id; /* to be sent with the next registration; 0: nothing */
	enum ut_reg_state state;
	int error; /* of UT_REFUSED: an errno */
	char text[160];
	uint32_t number; /* of its records in rings; UT_NO_NUMBER: none yet */
	/* Of UT_ANSWERED: from the daemon's answer. A daemon that has the ring gives `number` as write_index. */
	uint32_t status_index, write_index;
	_Atomic uint64_t refused;	    /* records that the daemon refused, or that are too long for it */
	struct ut_refusal refusals[UT_REFUSALS]; /* by the daemon, for the first few errors; others as the last */
	unsigned nr_refusals;
	uint64_t pending; /* set by ut_count_pending */
	int is_answered;	/* an answer has come, in this process */
	int was_off;		/* the first one was "off", and earlier records may still be refused */
	uint64_t unwanted_until; /* the end of these in the ring */
	uint64_t unwanted;	 /* their number, as far as known */
	struct utracefs_event *events;
	uint32_t room; /* for locs. A signal handler may read the answer, and must not allocate. */
	struct ut_loc locs[];
};

/* A bit that follows an event, by a token of this client. */
struct ut_enabler {
	struct ut_enabler *next;
	uint32_t flags;
	uint16_t event_id; /* as in ut_reg */
	enum ut_reg_state state;
	int error;
	uint64_t token;
	uintptr_t addr;
	uint8_t size, bit, on;
	char command[];
};

/* A request that a caller waits for; on the caller's stack. */
struct ut_call {
	struct ut_session *session;
	void (*put)(struct ut_out *out, uint32_t msgid, const void *arg);
	const void *arg;
	int is_asked, done;
	int error; /* 0 or negative errno */
};

enum ut_about {
	UT_ABOUT_STATUS,
	UT_ABOUT_RING,
	UT_ABOUT_REG,
	UT_ABOUT_ENABLER,
	UT_ABOUT_NOTIFY,
	UT_ABOUT_CALL
};

struct ut_asked {
	uint32_t msgid;
	enum ut_about about;
	void *what; /* NULL: nobody waits for it any more */
};

/* The user of a session: events of a program, which reach the session through it. */
struct ut_owner {
	struct ut_session *session; /* NULL: not yet, or no longer */
	int is_closed;
};

_Static_assert(offsetof(struct ut_reg, place) == offsetof(struct ut_target, place), "ut_target");

/* Memory of a session that takes space where it is used. */
struct ut_pages {
	uint8_t status[UT_STATUS_BYTES]; /* zeros if there is none; first, since other pages take its place */
	uint8_t in[UT_IN_BYTES];
	uint8_t out[UT_OUT_BYTES];
	uint8_t batch[UT_OUT_BYTES]; /* of UT_SENDS: records from taker.tail on */
	uint8_t payload[DR_MAX_PAYLOAD]; /* of one of them */
	struct ut_asked asked[UT_ASKED];
};

struct ut_session {
	struct ut_pages *pages;

	/* Read by a write: the registration of a number. */
	_Atomic(struct ut_reg *) *_Atomic chunks[UT_NR_CHUNKS];
	uint32_t nr_numbers;

	struct ut_session *next;
	struct ut_owner *owner; /* NULL: none */
	struct ut_settings settings;
	unsigned flags;
	uint32_t last_warning; /* its hash, since a repeated text is reported once */
	uint64_t bytes_before; /* emitted into rings that are given up */
	uint64_t bytes_flushed; /* of all emitted bytes */
	enum ut_state state;
	int error;	  /* why the last attempt to connect failed: negative errno; 0: none did since it was up */
	uint64_t due;	  /* UT_NEW, UT_WAITING: when to connect */
	uint64_t back_off;
	uint64_t forked_at; /* UT_FORKED */
	uint32_t changes; /* futex: counts steps, for waiting threads */

	struct ut_reg *regs, **end_of_regs;
	struct ut_reg *to_ask;	 /* the first that is UT_TO_ASK, in order; NULL: none */
	struct ut_enabler *enablers;
	uint64_t next_token;

	struct ut_descriptor socket;
	struct ut_descriptor status_fd; /* received, and not mapped yet */
	uint32_t status_size;

	int is_old;	/* the daemon takes neither the program's ring nor numbers of registrations */
	uint32_t ring;	  /* outlives a connection. 0: none */
	uint32_t parents; /* of a child that was never up: its parent's ring, to count in. 0: none */
	struct dr_consumer taker; /* of UT_SENDS: of the ring */

	size_t in_size;
	struct ut_out out;
	size_t out_sent;
	size_t batch_size, batch_sent;
	unsigned nr_asked; /* of pages->asked */
	uint32_t next_msgid;
};

/* Whether records over the socket wait for no answer: a child may end before it. */
static inline int ut_is_early(const struct ut_session *session)
{
	return session->forked_at && !session->is_old;
}

/* Whether the ring's records go over the socket now. */
static inline int ut_sends(const struct ut_session *session)
{
	return session->state == UT_SENDS || (session->state == UT_SOCKET && ut_is_early(session));
}

/* Whether registrations ask for the number that their records have. */
static inline int ut_has_numbers(const struct ut_session *session)
{
	return session->state == UT_OFFERED || session->state == UT_UP || ut_is_early(session);
}

static inline void ut_go(struct ut_session *session, enum ut_input input)
{
	session->state = ut_next_state(session->state, input);
}

/* The registration of a number on the session; NULL: no such number. Without the lock. */
static inline struct ut_reg *ut_reg_of(const struct ut_session *session, uint32_t number)
{
	_Atomic(struct ut_reg *) *chunk;

	if (number >= UT_NR_CHUNKS * UT_CHUNK)
		return NULL;
	chunk = session->chunks[number / UT_CHUNK];
	return chunk ? chunk[number % UT_CHUNK] : NULL;
}

/* ---- registration.c: with the lock held */

/* All sessions, newest first. */
extern struct ut_session *ut_sessions;
/* Points reg and its events at this byte. */
void ut_reg_point(struct ut_reg *reg, const uint8_t *status);
void ut_reg_remove(struct ut_reg *reg);
/* Appended to the registrations, without a number. NULL: ENOMEM. */
struct ut_reg *ut_reg_new(struct ut_session *session, const char *command, uint32_t flags);
/* 0, -EMFILE or -ENOMEM. It allocates, so it is not for the native thread. */
int ut_reg_number(struct ut_reg *reg, uint32_t number);
/* The same with the next number: it moves behind all with a number, those without one behind it. */
int ut_reg_number_last(struct ut_reg *reg);
/* Whether it was declared since the last connection ended: the daemon may still read the ring of that
 * connection, and would not know its records. */
int ut_reg_is_too_new(const struct ut_reg *reg);
/* Its records go into the session's ring, if both have a number. */
void ut_reg_place(struct ut_reg *reg);
/* Marks all registrations and enablers to be sent again, on a new connection. */
void ut_ask_anew(struct ut_session *session);
/* The first registration with a number and this write_index of the daemon. */
struct ut_reg *ut_reg_of_daemons(const struct ut_session *session, int64_t write_index);
void ut_reg_count_refused(struct ut_reg *reg, int error, uint64_t count);
/* Frees the block after many later ones. */
void ut_free_later(void *block);
void ut_free_all_later(void);

/* ---- connection.c: with the lock held; nothing here waits */

extern uint64_t ut_patience_for_answers;
/* Does everything that is due. */
void ut_step(struct ut_session *session, uint64_t now);
/* The time until which nothing is due unless a descriptor is ready (UINT64_MAX: forever), and what to poll
 * it for. */
uint64_t ut_step_due(const struct ut_session *session);
short ut_step_events(const struct ut_session *session);
void ut_disconnect(struct ut_session *session);
/* In a child, whose session is a copy of its parent's. */
void ut_connection_start_child(struct ut_session *session);
/* In a child: counts a lost record in its ring, or without one in its parent's, where the daemon, or its
 * parent's thread, finds the number. */
void ut_reg_count_cut_off(struct ut_reg *reg);
/* Where a caller must not connect: makes the ring that the next connection gets. */
void ut_hold(struct ut_session *session);
/* Whether its emits find a ring. */
int ut_reg_has_ring(const struct ut_reg *reg);
/* Gives *ring up, if there is one, and clears it. is_lost: its records are counted as lost. */
void ut_session_give_up(struct ut_session *session, uint32_t *ring, int is_lost);

/* ---- requests.c: with the lock held */

/* Whether there is room for one more request, which may have `more` bytes than a registration. */
int ut_has_room(const struct ut_session *session, size_t more);
/* 0, -ENOTCONN, or -EAGAIN if there is no space now. */
int ut_ask(struct ut_session *session, enum ut_about about, void *what);
void ut_forget_asked(struct ut_session *session, const void *what);
void ut_ask_registrations(struct ut_session *session);
/* 0; -EAGAIN: the socket is full; or -errno. */
int ut_send_bytes(struct ut_session *session, const uint8_t *data, size_t size, size_t *sent);
int ut_send_out(struct ut_session *session);
/* The first requests; of UT_OFFERED with both descriptors of the ring beside the first byte. 0, or -errno
 * with nothing sent. */
int ut_send_first(struct ut_session *session);

/* ---- sending.c: with the lock held */

/* The session is UT_SENDS now. */
void ut_start_sending(struct ut_session *session);
/* Sends records, as far as the socket takes them and their registrations are answered. 0, or -errno. */
int ut_send_records(struct ut_session *session);
/* At the end of a session that is UT_SENDS: the records that are left are lost, and so reported to the
 * daemon as far as the socket takes that. */
void ut_lose_rest(struct ut_session *session);
/* Counts the records that are in the ring, unless the daemon reads it, for each registration. Returns the
 * total. */
uint64_t ut_count_pending(struct ut_session *session);

/* ---- enable_bits.c: with the lock held */

void ut_enablers_lost(struct ut_session *session);
void ut_enabler_answered(struct ut_enabler *enabler, const struct ut_message *message);
int ut_enablers_changed(struct ut_session *session, const struct ut_message *message);
/* Sets or clears only this bit. 0 or -EFAULT. */
int ut_write_enabler(struct ut_enabler *enabler, int on);

/* ---- warnings.c: with the lock held */

/* A warning for the program's user. `session` may be NULL. */
void ut_warn(struct ut_session *session, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "EINVAL"; where the C library has no names, as musl, its description. */
const char *ut_error_name(int error);
/* From now on ut_say_warnings says a warning if no binding fetches it. The native thread calls that, without
 * the lock. */
void ut_warnings_are_said(void);
void ut_say_warnings(void);
/* With the lock held, where no thread can start to say them: only to standard error. */
void ut_say_warnings_here(void);

/* Status bytes of events without a place: off, or not known yet. */
extern const uint8_t ut_off, ut_pending;
#define UT_PENDING 0x40u /* the status page has bits 0, 1 and 7 */

#endif
