/*
 * One connection: its registrations, its requests, its rings. Nothing here waits.
 *
 * One lock (process.h) guards all of this but what an emit looks at, which is marked. Whoever holds the lock
 * has all signals blocked, so a signal handler finds it free or held by another thread that goes on: it may
 * wait for it.
 *
 * What an emit looks at is never unmapped or freed under it: memory of rings and status is replaced where
 * it is (ring.h), sessions and registrations wait in a queue before their memory is used again
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

#define UT_ASKED 64u		    /* requests under way at a time; the daemon allows 256 */
#define UT_IN_BYTES (64u << 10)	    /* more than any message to us */
#define UT_OUT_BYTES (128u << 10)   /* several requests, or one record of the largest size */
#define UT_STATUS_BYTES (256u << 10) /* an event has an id below 65536, so has the status file fewer bytes */

/* ut_session.memory: what came in, what goes out, one payload, what was not sent. */
#define UT_MEMORY_BYTES (UT_IN_BYTES + 2 * UT_OUT_BYTES + DR_MAX_PAYLOAD + 1)

#define UT_FIRST_BACK_OFF_NS 50000000ull

/* What callers wait for answers, all together until there is one: a daemon that is stopped must not hold up
 * a program once for each of its events. Behind that, LATE each. */
#define UT_ANSWER_NS 2000000000ull
#define UT_LATE_ANSWER_NS 20000000ull

enum ut_reg_state { UT_TO_ASK, UT_ASKED_FOR, UT_ANSWERED, UT_REFUSED };

#define UT_REFUSALS 4u

/* One event on one session. */
struct ut_reg {
	/* What an emit looks at. The first two are struct ut_target (emit.h). */
	_Atomic(const uint8_t *) status;
	_Atomic uint64_t place; /* ring.h; 0: none */
	_Atomic(const uint8_t *) inherited; /* a child's: its parent's byte, which holds while it is pending */
	struct ut_session *session; /* NULL: it has ended */
	uint32_t size; /* of the fixed fields; with locs: set before place, and never changed */
	uint32_t nr_locs;
	uint32_t id; /* the trace event's; another one in another daemon */
	_Atomic uint64_t lost;

	struct ut_reg *next; /* in the order in which they are registered on every connection */
	struct ut_reg *next_answered; /* ut_session.answered */
	struct ut_reg *next_of_index; /* ut_session.buckets */
	char *command;
	uint32_t flags;
	uint16_t event_id; /* what the next registration must carry; 0: nothing */
	enum ut_reg_state state;
	int error; /* of UT_REFUSED: an errno */
	char text[160];
	uint32_t number; /* write_index on the session; UT_NO_NUMBER: not given out */
	uint32_t status_index, write_index; /* of UT_ANSWERED: what the daemon said */
	int64_t old_index;		    /* write_index on the connection before; -1 */
	_Atomic uint64_t refused;	    /* records that the daemon did not take, or that are too long for it */
	struct ut_refusal refusals[UT_REFUSALS]; /* by the daemon, for the first few errors; others as the last */
	unsigned nr_refusals;
	uint64_t pending; /* as ut_count_pending found it */
	int is_heard;		/* there was an answer, in this process */
	uint64_t unheard_until; /* in a ring of our own: before it are records from before one that said off */
	uint64_t unheard;	/* so many of these */
	_Atomic int is_let_go; /* its daemon has closed the ring under a record, which is kept for the next */
	struct utracefs_event *events;
	uint32_t room; /* for locs. The answer may be read by a signal handler, which must not allocate. */
	struct ut_loc locs[];
};

/* A bit that follows an event, by a token of ours. */
struct ut_enabler {
	struct ut_enabler *next;
	char *command;
	uint32_t flags;
	uint16_t event_id; /* as of ut_reg */
	enum ut_reg_state state;
	int error;
	uint64_t token;
	uintptr_t addr;
	uint8_t size, bit, on;
};

/* A request that somebody waits for; on his stack. */
struct ut_call {
	int done;
	int error; /* 0 or negative errno */
};

enum ut_about {
	UT_ABOUT_STATUS,
	UT_ABOUT_RING,
	UT_ABOUT_ADOPT,
	UT_ABOUT_REG,
	UT_ABOUT_ENABLER,
	UT_ABOUT_NOTIFY,
	UT_ABOUT_CALL
};

struct ut_asked {
	uint32_t msgid;
	enum ut_about about;
	void *what; /* NULL: nobody is interested any more */
};

/* What a session is for: events of a program, which ask for it by this. */
struct ut_owner {
	struct ut_session *session; /* NULL: not yet, or not any more */
	int is_closed;
};

_Static_assert(offsetof(struct ut_reg, place) == offsetof(struct ut_target, place), "ut_target");

struct ut_session {
	/* What a write looks at: the registration of a number. */
	_Atomic(struct ut_reg *) *_Atomic chunks[UT_NR_CHUNKS];
	uint32_t nr_numbers;

	struct ut_session *next;
	struct ut_owner *owner; /* NULL: none */
	struct ut_settings settings;
	unsigned flags;
	uint32_t last_warning; /* its hash: what comes again is said once */
	uint64_t bytes_before; /* that were emitted into rings which are given up */
	uint64_t bytes_flushed; /* of all that was emitted */
	enum ut_state state;
	int error;	  /* why the last attempt to connect failed: negative errno */
	int is_cut_off;	  /* a child that can have no connection: it counts in its parent's ring what is lost */
	uint64_t due;	  /* UT_NEW, UT_WAITING: when to connect */
	uint64_t back_off;
	uint64_t patience; /* what looks at pending events may wait together */
	uint64_t forked_at; /* UT_FORKED */
	uint32_t changes; /* futex: counts steps, for those that wait */

	struct ut_reg *regs, **end_of_regs;
	struct ut_reg *to_ask;	 /* none before it is UT_TO_ASK; NULL: none at all */
	struct ut_reg *answered; /* of UT_UP: those that have no place yet */
	struct ut_reg **buckets; /* UT_ANSWERED, by the daemon's write_index; as many as there are regs */
	uint32_t nr_buckets, nr_regs;
	struct ut_enabler *enablers;
	uint64_t next_token;

	struct ut_descriptor socket;
	struct ut_descriptor received[4];
	unsigned nr_received;
	struct ut_descriptor status_fd;
	uint32_t status_size;
	int is_status_mapped;
	uint8_t *status_area; /* UT_STATUS_BYTES, of zeros where there is no status */

	int has_answered; /* the daemon has shown itself to be one */
	int is_notified;  /* notify_enablers was sent */
	int takes_writers; /* records on the socket may say who wrote them */
	uint32_t ring;	  /* of the daemon; it outlives a connection. 0: none */
	uint32_t local;	  /* of ours, where the daemon gives none. 0: none */
	struct dr_consumer taker; /* of the local ring */

	uint8_t *memory; /* UT_MEMORY_BYTES; NULL before the first connection */
	size_t in_size;
	struct ut_out out;
	size_t out_sent;
	size_t kept_at, kept_size; /* records that the connection before has not wholly taken */
	struct ut_asked asked[UT_ASKED];
	unsigned nr_asked;
	uint32_t next_msgid;
};

static inline void ut_go(struct ut_session *session, enum ut_input input)
{
	session->state = ut_next_state(session->state, input);
}

/* The registration of a number on the session; NULL: not given out. Without the lock. */
static inline struct ut_reg *ut_reg_of(const struct ut_session *session, uint32_t number)
{
	_Atomic(struct ut_reg *) *chunk;

	if (number >= UT_NR_CHUNKS * UT_CHUNK)
		return NULL;
	chunk = session->chunks[number / UT_CHUNK];
	return chunk ? chunk[number % UT_CHUNK] : NULL;
}

/* ---- registration.c: with the lock held */

/* Points reg and its events at this byte. */
void ut_reg_point(struct ut_reg *reg, const uint8_t *status);
void ut_reg_free(struct ut_reg *reg); /* later */
void ut_reg_remove(struct ut_reg *reg);
/* Last of all that are registered, without a number. NULL: ENOMEM. */
struct ut_reg *ut_reg_new(struct ut_session *session, const char *command, uint32_t flags);
int ut_reg_number(struct ut_reg *reg);
/* All registrations are to be asked for, on a new connection. */
void ut_ask_anew(struct ut_session *session);
/* The daemon has answered it: it is found by its write_index. */
void ut_reg_enter(struct ut_reg *reg);
/* The first registration with this write_index of the daemon's. */
struct ut_reg *ut_reg_of_daemons(const struct ut_session *session, int64_t write_index);
void ut_reg_count_refused(struct ut_reg *reg, int error, uint64_t count);
/* Have the block freed when many others came after it. */
void ut_free_later(void *block);

/* ---- connection.c: with the lock held; nothing here waits */

/* All sessions, newest first. */
extern struct ut_session *ut_sessions;
extern uint64_t ut_patience_for_answers;
/* Does what there is to do now. */
void ut_step(struct ut_session *session, uint64_t now);
/* Until when nothing is due without a descriptor's being ready (UINT64_MAX: for ever), and what to poll it
 * for. */
uint64_t ut_step_due(const struct ut_session *session);
short ut_step_events(const struct ut_session *session);
void ut_disconnect(struct ut_session *session);
/* In a child, whose session is a copy of its parent's. */
void ut_connection_start_child(struct ut_session *session);
/* Closes what the connection has open. */
void ut_close_connection(struct ut_session *session);
/* Gives *ring up, if there is one, and forgets it. lost, arg: as of ut_ring_give_up. */
void ut_session_give_up(struct ut_session *session, uint32_t *ring, void (*lost)(void *, uint32_t),
			void *arg);

/* ---- requests.c: with the lock held */

/* 0, -ENOTCONN, or -EAGAIN when there is no room now. The entry is the last of `asked`. */
int ut_ask(struct ut_session *session, enum ut_about about, void *what);
void ut_forget_asked(struct ut_session *session, const void *what);
void ut_ask_registrations(struct ut_session *session);
/* 0; -EAGAIN: the socket takes no more now; or -errno. */
int ut_send_out(struct ut_session *session);
/* The request of `adopt_ring`, with both descriptors beside its first byte: nothing else is being sent. */
int ut_send_offer(struct ut_session *session);

/* ---- connecting.c */

/* A connected socket, or -errno: of the errors the first that says more than that there is nothing. */
int ut_connect(const struct ut_settings *settings);

/* ---- local_ring.c: with the lock held */

/* There is one. 0, or -errno. */
int ut_ring_make_local(struct ut_session *session);
/* An answer has come, and the status page is mapped. If the first one in this process says off, what was kept
 * for it in our own ring is not sent. */
void ut_reg_hear(struct ut_session *session, struct ut_reg *reg);
void ut_hear_all(struct ut_session *session);
/* Whether our own ring has records that were not sent. */
int ut_ring_has_records(const struct ut_session *session);
/* Records of our own ring and of `out` that are not wholly sent: counted for each registration. In all. */
uint64_t ut_count_pending(struct ut_session *session);
/* From our own ring into `out`, as far as there is room. */
void ut_take_records(struct ut_session *session);
/* The end of a connection: keep what was taken from there and not wholly sent, for the next one. */
void ut_keep_unsent(struct ut_session *session);
/* There is no next one: it is lost. */
void ut_lose_kept(struct ut_session *session);

/* ---- enable_bits.c: with the lock held */

void ut_enablers_lost(struct ut_session *session);
void ut_enabler_answered(struct ut_enabler *enabler, const struct ut_message *message);
int ut_enablers_changed(struct ut_session *session, const struct ut_message *message);
/* 0 or -EFAULT: the bit, and no other, is made so. */
int ut_write_bit(uintptr_t addr, unsigned bit, int on);
int ut_write_enabler(struct ut_enabler *enabler, int on);

/* ---- warnings.c: with the lock held */

/* For the program's user, through a binding. */
void ut_warn(struct ut_session *session, const char *format, ...) __attribute__((format(printf, 2, 3)));
int ut_next_warning(char *text, size_t size);
void ut_on_warning(void (*hook)(void));

/* The bytes that events without a place look at: nobody wants them, or nobody knows yet. */
extern const uint8_t ut_off, ut_pending;
#define UT_PENDING 0x40u /* the status page has bits 0, 1 and 7 */

#endif
