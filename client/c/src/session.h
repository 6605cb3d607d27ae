/*
 * The core's interface for the rest of the library and the preload library. All functions are thread-safe,
 * keep errno and return negative errno.
 */
#ifndef UTRACEFS_SESSION_H
#define UTRACEFS_SESSION_H

#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Time for sending pending records over the socket at the end of a session, of the process, of the library or
 * of an interpreter. */
#define UT_CLOSE_NS 500000000ull

/* UT_CLOSE_NS from now; at the end of an interpreter and then of its process, from the first of both. */
uint64_t ut_end_until(void);

/* Bytes of a command string, or of a name to be deleted: MAX_EVENT_DESC of the kernel less its NUL. */
#define UT_MAX_COMMAND 511u

/* One data connection, in place of one open file of user_events_data. After a restart of the daemon it
 * connects again by itself, repeats its registrations, and keeps its write indexes. */
struct ut_session;

/* Until when a writer that begins now may wait for the daemon: UT_EMIT_NS. */
uint64_t ut_emit_until(void);

/* Connects. until: 0, or it is not connected by then if the daemon has too many new connections, but will be.
 * -ENOENT or -ECONNREFUSED: there is no daemon; -ENOMEM. */
int ut_session_open(struct ut_session **session, uint64_t until);

/* Waits for the daemon's answer: its errno, -ETIMEDOUT after 2 s (20 ms, if earlier waits were in vain and
 * no answer came since), -ENOTCONN without a daemon. An event that the session already has keeps its write
 * index. event_id: the value that an earlier registration of this event stored there, else 0; the daemon
 * does not find every event by its command string alone. */
int ut_session_register(struct ut_session *session, const char *command, uint16_t flags, uint16_t *event_id,
			uint32_t *write_index);

/* Registers an event of another process's file under its number there. Waits until then (0: not at all) for
 * the answers to this and earlier ones. Before its answer an event counts as on, and the daemon checks its
 * records. -ENOMEM, -EMFILE. */
int ut_session_repeat(struct ut_session *session, uint32_t write_index, const char *command, uint16_t flags,
		      uint16_t event_id, uint64_t until);

/* DIAG_IOCSDEL; waits like ut_session_register. */
int ut_session_delete(struct ut_session *session, const char *name);

/* A record as write(2) takes it, index first, of `size` bytes in all. Returns the bytes taken, all of
 * them, or the kernel's error: -EFAULT below 4 bytes, -EINVAL, -ENOENT, -EBADF if no consumer is attached,
 * -EFAULT for location words that point outside. Callable from signal handlers. The memory must be
 * readable. */
ssize_t ut_session_write(struct ut_session *session, const struct iovec *iov, int n, size_t size);

/* The result of a write of this number of payload bytes before the payload is read: 0, or as above.
 * Callable from signal handlers. */
int ut_session_judge(struct ut_session *session, int32_t write_index, size_t payload);

/* Removes the registrations, after sending pending records, until then (0: for 0.5 s); the rest is reported
 * to the daemon as lost. It takes in all committed records of its own ring. */
void ut_session_close(struct ut_session *session, uint64_t until);

/* Makes bit `bit` of the word of `size` bytes (4 or 8) at `addr` follow whether the event is enabled; its
 * present state is written before this returns. -EADDRINUSE: another enabler has that bit. -ENOMEM: not
 * writable, detected without a fault; nothing is added. event_id: as stored by ut_session_register. Other
 * errors as there. */
int ut_enabler_add(const char *command, uint16_t flags, uint16_t event_id, void *addr, uint8_t size,
		   uint8_t bit);

/* Whether an enabler has that bit. */
int ut_enabler_is_known(const void *addr, uint8_t bit);

/* -ENOENT. Clears the bit; -EFAULT if it cannot be written, but the enabler is removed. */
int ut_enabler_remove(void *addr, uint8_t bit);

/* ---- for the layers above, with the lock held */

struct ut_out;
struct ut_owner;
struct ut_record;
struct ut_reg;
struct ut_settings;

/* settings: NULL for those of the process. */
struct ut_session *ut_session_new(unsigned flags, const struct ut_settings *settings, struct ut_owner *owner);
/* Makes a forked session connect with the next step; also a session that waits for its next attempt, if
 * `is_asked`. */
void ut_begin(struct ut_session *session, int is_asked);
/* Runs steps of the session until done(arg), or until `until` (ns; 0: within the patience for answers) or no
 * progress is to be expected soon. Returns whether it is done. Releases the lock while it waits. */
int ut_await(struct ut_session *session, int (*done)(void *), void *arg, uint64_t until);
/* Sends a request, written by `put`, and waits for the answer, as ut_await. 0 or negative errno. */
int ut_session_call(struct ut_session *session, void (*put)(struct ut_out *, uint32_t, const void *),
		    const void *arg, uint64_t until);

/* Without the lock: an event that is about to be written has no place. Makes the ring, and connects; on a
 * small stack it leaves that to the thread. A child waits up to UT_EMIT_NS while the daemon has too many
 * new connections. Returns whether it has a place now. */
int ut_reg_find_place(struct ut_reg *reg);
/* Without the lock: whether to make a record of a pending event. Its program connects, and the daemon refuses
 * the record if the event is off. A child gets its parent's answer, and connects after some time, because it
 * must outlive its parent's daemon. */
int ut_reg_may_emit(struct ut_reg *reg);
/* Without the lock, of a registration without a place: returns whether a record is lost because this child
 * cannot connect; if so, counts it here and in the parent's ring. Keeps errno. */
int ut_reg_lose(struct ut_reg *reg);
/* Without the lock: the result of a write of this record, whose location words point outside, by the daemon:
 * it knows whether a tracer looks at them. 0 or negative errno; -EFAULT if there is no answer in UT_EMIT_NS,
 * and then at once until one comes. */
int ut_reg_ask(struct ut_reg *reg, struct ut_record *record);
/* With the lock held, as ut_session_close. */
void ut_session_close_until(struct ut_session *session, uint64_t until);
/* Without the lock: sends pending records and waits until the daemon has taken them in: 0 or negative errno.
 * 0 at once if there is no session, or nothing was emitted since the last flush. While there is no daemon it
 * waits for one only if a ring has records for it. */
int ut_owner_flush(struct ut_owner *owner, uint64_t timeout_ns);
/* Closes its session, if it has one; it gets no other. */
void ut_owner_close(struct ut_owner *owner);
/* While this thread waits, `call` is called after a signal and every 100 ms; a result other than 0 ends
 * the wait. Returns the previous setting. */
struct ut_interruption {
	int (*call)(void *arg);
	void *arg;
	int has_said;
};
struct ut_interruption ut_interrupt_by(struct ut_interruption interruption);
int ut_is_interrupted(void);

#endif
