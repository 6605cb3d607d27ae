/*
 * What the rest of the library and the preload library see of the core. All functions are thread-safe, keep
 * errno and return negative errno.
 */
#ifndef UTRACEFS_SESSION_H
#define UTRACEFS_SESSION_H

#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define UT_WAIT 1u /* ut_session_open: connect now */

/* Bytes of a command string, or of a name to be deleted: MAX_EVENT_DESC of the kernel less its NUL. */
#define UT_MAX_COMMAND 511u

/* One data connection, which stands for one open file of user_events_data. It finds a daemon that was started
 * anew by itself, registers again what was registered, and keeps its write indexes. */
struct ut_session;

/* With UT_WAIT -ENOENT or -ECONNREFUSED without a daemon; -ENOMEM. */
int ut_session_open(struct ut_session **session, unsigned flags);

/* Waits for the daemon's answer: its errno, -ETIMEDOUT after 2 s (20 ms, if others waited in vain and there
 * was no answer since), -ENOTCONN without a daemon. An event that the session has already keeps its write
 * index. event_id: what a registration of this event before stored there, else 0; the daemon does not find
 * every event by its command string alone. */
int ut_session_register(struct ut_session *session, const char *command, uint16_t flags, uint16_t *event_id,
			uint32_t *write_index);

/* DIAG_IOCSDEL, waits as ut_session_register. */
int ut_session_delete(struct ut_session *session, const char *name);

/* A record as write(2) takes it, index first, of `size` bytes in all. Bytes taken, all of them, or what the
 * kernel answers: -EFAULT below 4 bytes, -EINVAL, -ENOENT, -EBADF while no consumer is attached, -EFAULT for
 * location words that lead outside. From signal handlers, too. The memory must be readable. */
ssize_t ut_session_write(struct ut_session *session, const struct iovec *iov, int n, size_t size);

/* What a write of so many payload bytes is answered before anything looks at them: 0, or as above. From
 * signal handlers, too. */
int ut_session_judge(struct ut_session *session, int32_t write_index, size_t payload);

/* Gives the references back, after sending what is pending, for at most 0.5 s. What was committed is taken
 * in. */
void ut_session_close(struct ut_session *session);

/* Have bit `bit` of the word of `size` bytes (4 or 8) at `addr` say whether the event is enabled: its state
 * now is written before this returns. -EADDRINUSE: that bit is taken. -ENOMEM: not writable, found out
 * without a fault; then nothing is added. event_id: what ut_session_register stored. Else as that. */
int ut_enabler_add(const char *command, uint16_t flags, uint16_t event_id, void *addr, uint8_t size,
		   uint8_t bit);

/* Whether that bit is taken. */
int ut_enabler_is_known(const void *addr, uint8_t bit);

/* -ENOENT. Clears the bit; -EFAULT if that cannot be written, but it is removed. */
int ut_enabler_remove(void *addr, uint8_t bit);

/* ---- for the layers above, with the lock held */

struct ut_owner;
struct ut_reg;
struct ut_settings;

/* settings: NULL for those of the process. */
struct ut_session *ut_session_new(unsigned flags, const struct ut_settings *settings, struct ut_owner *owner);
/* One that was forked connects with the next step; one that waits for its next attempt does, too, if
 * somebody asks for something now. */
void ut_begin(struct ut_session *session, int is_asked);
/* Steps of the session until done(arg), or until `until` (ns) or nothing is to be expected soon: whether it
 * is done. The lock is given up while it waits. */
int ut_drive(struct ut_session *session, int (*done)(void *), void *arg, uint64_t until);
/* The same for an answer of the daemon's, as long as it is worth waiting for one. */
int ut_await(struct ut_session *session, int (*done)(void *), void *arg);

/* Without the lock: an event that is to be written has no place. Whether it has one now, after waiting
 * within the patience. Where an answer is still to come, and in a signal handler in a thread that waits,
 * records go into a ring of our own until then. */
int ut_reg_settle(struct ut_reg *reg);
/* The same for an event that is pending and looked at: whether it is on. A child sees what its parent sees,
 * and connects when it has lived for a while: it must outlive its parent's daemon. */
int ut_reg_look(struct ut_reg *reg);
/* Without the lock, of one without a place: whether a record is lost because this is a child that can have no
 * connection. Then it is counted, in its parent's ring, too. Keeps errno. */
int ut_reg_lose(struct ut_reg *reg);
/* Send what is pending and have the daemon take it in: 0 or negative errno. 0 at once if nothing was emitted
 * since the last. */
int ut_session_flush(struct ut_session *session, uint64_t timeout_ns);
/* As ut_session_close. */
void ut_session_close_within(struct ut_session *session, uint64_t timeout_ns);
/* While this thread waits from here on, `call` is asked after a signal and each 100 ms whether it is to go on
 * waiting: not 0 ends the wait. What there was before. */
struct ut_interruption {
	int (*call)(void *arg);
	void *arg;
	int has_said;
};
struct ut_interruption ut_interrupt_by(struct ut_interruption interruption);

#endif
