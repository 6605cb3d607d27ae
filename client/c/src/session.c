/*
 * Sessions and registrations: creating them, waiting for them, ending them.
 *
 * A caller that waits for an answer first runs the session's steps itself (ut_await): this sends its request.
 * Then the native thread reads the answer and wakes the caller. Without a thread, or if only a child's first
 * record is to be written, the caller continues to run steps. So a registration needs no thread, and neither
 * does a child that ends at once.
 */
#include <sched.h>
#include <stdlib.h>

#include "connection.h"
#include "session.h"
#include "thread.h"
#include "utracefs.h"

#define TURN_NS 100000000ull
#define FOLLOW_NS 1000000000ull /* time that a child follows its parent's bytes before it needs a
				 * connection */

/* ---- memory */

static struct ut_session *ended; /* newest first: if there are enough of them, their memory is reused */
static unsigned nr_ended;
#define NR_ENDED 64u

static struct ut_session *new_memory(void)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	struct ut_session **last = &ended, *s;
	struct ut_pages *pages;

	if (nr_ended > NR_ENDED) {
		while ((*last)->next)
			last = &(*last)->next;
		s = *last;
		*last = NULL;
		nr_ended--;
		pages = s->pages;
	} else {
		s = malloc(sizeof(*s));
		pages = s ? ut_mapped(mmap(NULL, sizeof(*pages), PROT_READ | PROT_WRITE, flags, -1, 0)) : NULL;
		if (!pages) {
			free(s);
			return NULL;
		}
	}
	memset(s, 0, sizeof(*s));
	s->pages = pages;
	return s;
}

struct ut_session *ut_session_new(unsigned flags, const struct ut_settings *settings, struct ut_owner *owner)
{
	struct ut_session *s;

	if (ut_thread_init())
		return NULL;
	s = new_memory();
	if (!s)
		return NULL;
	s->flags = flags;
	s->settings = settings ? *settings : ut_settings;
	s->owner = owner;
	if (owner)
		owner->session = s;
	s->back_off = UT_BUSY_NS;
	s->socket.fd = s->status_fd.fd = -1;
	s->end_of_regs = &s->regs;
	s->next = ut_sessions;
	ut_sessions = s;
	return s;
}

static void end_session(struct ut_session *s)
{
	struct ut_session **at = &ut_sessions;

	while (*at && *at != s)
		at = &(*at)->next;
	if (!*at)
		return;
	*at = s->next;
	if (s->owner) {
		s->owner->session = NULL;
		s->owner->is_closed = 1;
	}
	if (ut_sends(s))
		ut_lose_rest(s);
	if (ut_outlets[s->ring].by_socket)
		ut_session_give_up(s, &s->ring, 1);
	ut_count_pending(s);
	/* A daemon has its records, or the next one may get the ring from its manager. */
	ut_session_give_up(s, &s->ring, 0);
	ut_session_give_up(s, &s->parents, 0);
	ut_disconnect(s);
	ut_go(s, UT_CLOSE);
	ut_futex_wake(&s->changes);
	for (struct ut_reg *reg = s->regs, *next; reg; reg = next) {
		next = reg->next;
		atomic_store(&reg->place, 0);
		ut_reg_point(reg, &ut_off);
		reg->session = NULL;
		for (struct utracefs_event *event; ut_phase == UT_UNLOADED && (event = reg->events);) {
			reg->events = event->next;
			event->registration = NULL;
		}
		if (!reg->events) /* the program's events point at the others, and may be written at any
				   * time: the last one that is detached frees it */
			ut_free_later(reg);
	}
	s->regs = s->to_ask = NULL;
	s->end_of_regs = &s->regs;
	for (unsigned i = 0; i < UT_NR_CHUNKS && s->chunks[i]; i++) {
		ut_free_later(s->chunks[i]);
		s->chunks[i] = NULL;
	}
	s->nr_numbers = 0;
	madvise(s->pages, sizeof(*s->pages), MADV_DONTNEED);
	s->next = ended;
	ended = s;
	nr_ended++;
}

/* ---- waiting */

/* The function that interrupts a wait of this thread. */
static __thread struct ut_interruption interruption;

struct ut_interruption ut_interrupt_by(struct ut_interruption wanted)
{
	struct ut_interruption before = interruption;

	interruption = wanted;
	return before;
}

/* To be called without the lock. */
int ut_is_interrupted(void)
{
	if (interruption.call && !interruption.has_said)
		interruption.has_said = interruption.call(interruption.arg) != 0;
	return interruption.has_said;
}

void ut_begin(struct ut_session *s, int is_asked)
{
	if (s->state == UT_FORKED || (is_asked && s->state == UT_WAITING)) {
		ut_go(s, UT_WANTED);
		s->due = 0;
	}
}

/* ut_await with a time. waits_for_daemon: continues between attempts to connect. */
static int drive(struct ut_session *s, int (*done)(void *), void *arg, uint64_t until, int waits_for_daemon)
{
	int before = ut_is_waiting, must_end = 0, must_wake = 1, is_done;

	ut_is_waiting = 1;
	for (;;) {
		uint64_t now = ut_clock_ns(), due = ut_step_due(s), wait;
		struct pollfd polled = {s->socket.fd, ut_step_events(s), 0};
		enum ut_state state = s->state;
		uint32_t seen;

		ut_step(s, now);
		is_done = done(arg);
		/* Wake the thread only if it has to wait for something else: it wakes us after each step. */
		must_wake |= polled.fd != s->socket.fd || polled.events != ut_step_events(s) ||
			     state != s->state || due != ut_step_due(s);
		if (is_done || must_end || now >= until || (s->state == UT_WAITING && !waits_for_daemon) ||
		    s->state == UT_CLOSED || (ut_process_is_guest() && !ut_thread_is_running()))
			break;
		due = ut_step_due(s);
		wait = until < due ? until : due;
		seen = s->changes;
		if (ut_thread_is_running() && !ut_thread_is_current()) {
			if (must_wake)
				ut_wake();
			must_wake = 0;
			ut_unlock();
			ut_futex_wait(&s->changes, seen, wait < now + TURN_NS ? wait : now + TURN_NS);
		} else {
			polled = (struct pollfd){s->socket.fd, ut_step_events(s), 0};
			ut_unlock();
			/* In short turns, because another waiting thread may have read the answer. */
			wait = wait < now + TURN_NS / 20 ? wait : now + TURN_NS / 20;
			ut_poll(&polled, 1, wait);
		}
		must_end = ut_is_interrupted();
		ut_lock();
		if (!ut_is_waiting) { /* a signal handler has forked, and this is its child */
			ut_is_waiting = 1;
			ut_begin(s, 0);
		}
	}
	/* A child that has connected here, not for a record, needs a thread for further answers, and daemons. */
	if (s->forked_at && s->state != UT_FORKED && s->state != UT_CLOSED)
		ut_thread_start();
	ut_is_waiting = before;
	return is_done;
}

/* A wait for an answer was in vain. */
static void lose_patience(uint64_t taken)
{
	ut_patience_for_answers -= taken < ut_patience_for_answers ? taken : ut_patience_for_answers;
}

int ut_await(struct ut_session *s, int (*done)(void *), void *arg, uint64_t until)
{
	uint64_t began = ut_clock_ns(), left = ut_patience_for_answers;
	int is_done;

	if (until)
		return drive(s, done, arg, until, 0);
	is_done = drive(s, done, arg, began + (left > UT_LATE_ANSWER_NS ? left : UT_LATE_ANSWER_NS), 0);
	if (!is_done && s->state != UT_WAITING)
		lose_patience(ut_clock_ns() - began);
	return is_done;
}

static int is_up(void *session)
{
	return ut_is_up(((struct ut_session *)session)->state);
}

static int is_connected(void *session)
{
	struct ut_session *s = session;

	return ut_is_connected(s->state);
}

static int has_tried(void *session)
{
	return ((struct ut_session *)session)->state != UT_NEW;
}

/* The state that the program's events of this registration show, on if there is none. */
static int is_on(struct ut_reg *reg)
{
	const uint8_t *status = atomic_load(&reg->status), *inherited = atomic_load(&reg->inherited);

	if (status == &ut_pending)
		return !inherited || *(const volatile uint8_t *)inherited;
	return *(const volatile uint8_t *)status != 0;
}

/* Whether it returns at once: in a place where the library must not connect, or in a signal handler in a
 * thread that waits. */
static int must_not_wait(void)
{
	return ut_thread_is_current() || ut_process_is_guest() || ut_is_waiting || ut_process_is_on_small_stack();
}

int ut_reg_find_place(struct ut_reg *reg)
{
	struct ut_session *s;
	int is_due;

	if (ut_thread_is_current() || ut_process_is_guest())
		return ut_reg_has_ring(reg);
	ut_lock();
	s = reg->session;
	if (s) {
		is_due = s->state != UT_WAITING; /* else the thread knows when it tries again */
		ut_begin(s, 0);
		/* First look whether there is a daemon. The ring needs no answer of it. */
		if (!ut_process_is_on_small_stack())
			ut_step(s, ut_clock_ns());
		else if (s->state == UT_NEW)
			s->due = ut_clock_ns(); /* the thread's task */
		if (!s->parents)
			ut_hold(s);
		/* The daemon's queue is full: slower children may all find room there. */
		if (s->parents && s->state == UT_NEW && !must_not_wait())
			drive(s, has_tried, s, UINT64_MAX, 0);
		if (!ut_thread_is_running())
			ut_thread_start();
		else if (is_due)
			ut_wake();
	}
	ut_unlock();
	/* In a child of a signal handler, which nothing has begun for yet: once more. */
	return ut_reg_has_ring(reg) || (s && s->state == UT_FORKED && ut_reg_find_place(reg));
}

int ut_reg_may_emit(struct ut_reg *reg)
{
	const uint8_t *inherited = atomic_load(&reg->inherited);
	const struct ut_session *s = reg->session;

	if (inherited && s && ut_rings_are_marked() && ut_clock_ns() - s->forked_at > FOLLOW_NS &&
	    !ut_process_is_guest()) {
		ut_lock();
		if (reg->session && reg->session->state == UT_FORKED) {
			ut_begin(reg->session, 0);
			ut_thread_start();
			ut_wake();
		}
		ut_unlock();
	}
	if (!is_on(reg))
		return 0;
	/* A small stack has no room for the frames of this and of the emit. */
	if (!ut_reg_has_ring(reg) && (!inherited || ut_process_is_on_small_stack()) && !ut_reg_find_place(reg) &&
	    ut_process_is_on_small_stack()) {
		ut_reg_lose(reg);
		return 0;
	}
	return *(const volatile uint8_t *)atomic_load(&reg->status) != 0;
}

int ut_reg_lose(struct ut_reg *reg)
{
	const struct ut_session *s;
	int is_lost;

	ut_lock();
	s = reg->session;
	/* (A child's without a ring, beside an older daemon, or behind the end of its connection; not if nothing was
	 * tried yet. Others if the registration has no room among those under way, or comes when the ring has no
	 * connection; all of a child of vfork(2), which tries nothing.) */
	is_lost = s && !ut_reg_has_ring(reg) && /* (another thread may have made it) */
		  (ut_process_is_guest() ||
		   (s->state != UT_FORKED &&
		    (s->parents && (!s->ring || s->is_old || s->state == UT_WAITING)
			     ? s->state != UT_NEW || s->due
			     : ut_reg_is_too_new(reg) || (reg->state == UT_TO_ASK && !ut_has_room(s, 0))))) &&
		  is_on(reg);
	if (is_lost)
		ut_reg_count_cut_off(reg);
	ut_unlock();
	return is_lost;
}

/* ---- the interface of session.h */

uint64_t ut_emit_until(void)
{
	return ut_clock_ns() + UT_EMIT_NS;
}

int ut_session_open(struct ut_session **session, uint64_t until)
{
	int error = 0;
	struct ut_session *s;

	*session = NULL;
	if (ut_process_is_guest())
		return -ECANCELED;
	ut_lock();
	s = ut_session_new(0, NULL, NULL);
	if (!s) {
		error = -ENOMEM;
	} else if (!ut_await(s, is_connected, s, until) && !(until && s->state == UT_NEW)) {
		error = s->error ? s->error : -ENOENT;
		end_session(s);
	} else {
		*session = s;
		if (ut_thread_start() == 0)
			ut_wake();
	}
	ut_unlock();
	return error;
}

static int is_answered(void *arg)
{
	struct ut_reg *reg = arg;

	/* (Another thread may have closed the session.) */
	return reg->state == UT_REFUSED ||
	       (reg->state == UT_ANSWERED && reg->session && ut_is_up(reg->session->state));
}

int ut_session_register(struct ut_session *s, const char *command, uint16_t flags, uint16_t *event_id,
			uint32_t *write_index)
{
	int error = 0;
	struct ut_reg *reg, *first;

	if (strlen(command) > UT_MAX_COMMAND)
		return -EINVAL;
	ut_lock();
	ut_begin(s, 1);
	reg = ut_reg_new(s, command, flags);
	if (!reg) {
		ut_unlock();
		return -ENOMEM;
	}
	reg->event_id = *event_id;
	if (!ut_await(s, is_answered, reg, 0))
		error = s->state == UT_WAITING || s->state == UT_CLOSED ? -ENOTCONN : -ETIMEDOUT;
	else if (reg->state == UT_REFUSED)
		error = -reg->error;
	*event_id = reg->event_id;
	if (s->state != UT_CLOSED) {
		/* Of registrations that the daemon treats as one event the first remains, also if its call has given
		 * up: a new connection asks for numbers in ascending order. */
		for (first = s->regs; first != reg; first = first->next)
			if (!error && first->state == UT_ANSWERED && first->write_index == reg->write_index)
				break;
		if (!error && first->number == UT_NO_NUMBER)
			error = s->state == UT_UP ? ut_reg_number(first, first->write_index) : ut_reg_number_last(first);
		ut_reg_place(first);
		if (!error)
			*write_index = first->number;
		/* (One that was sent and timed out remains: the daemon may have given it an index.) */
		if (first != reg || (error && reg->state != UT_ASKED_FOR)) {
			ut_forget_asked(s, reg);
			ut_reg_remove(reg);
		}
		ut_thread_start();
	}
	ut_unlock();
	return error;
}

int ut_session_repeat(struct ut_session *s, uint32_t write_index, const char *command, uint16_t flags,
		      uint16_t event_id, uint64_t until)
{
	int error = -ENOMEM;
	struct ut_reg *reg;

	ut_lock();
	reg = ut_reg_new(s, command, flags);
	if (reg)
		error = ut_reg_number(reg, write_index);
	if (!error) {
		reg->event_id = event_id;
		ut_reg_point(reg, &ut_pending);
		ut_reg_place(reg);
		if (until)
			ut_await(s, is_answered, reg, until);
	} else if (reg) {
		ut_reg_remove(reg);
	}
	ut_unlock();
	return error;
}

/* Asks as soon as there is a connection, and room. */
static int is_carried_out(void *arg)
{
	struct ut_call *call = arg;

	if (!call->is_asked && is_up(call->session) && !ut_ask(call->session, UT_ABOUT_CALL, call)) {
		call->is_asked = 1;
		ut_step(call->session, ut_clock_ns());
	}
	return call->done;
}

int ut_session_call(struct ut_session *s, void (*put)(struct ut_out *, uint32_t, const void *),
		    const void *arg, uint64_t until)
{
	struct ut_call waiting = {.session = s, .put = put, .arg = arg};

	ut_begin(s, 1);
	if (ut_await(s, is_carried_out, &waiting, until))
		return waiting.error;
	ut_forget_asked(s, &waiting);
	return ut_is_connected(s->state) ? -ETIMEDOUT : -ENOTCONN;
}

int ut_session_delete(struct ut_session *s, const char *name)
{
	int error;

	if (strlen(name) > UT_MAX_COMMAND)
		return -EINVAL;
	ut_lock();
	error = ut_session_call(s, ut_put_delete, name, 0);
	ut_unlock();
	return error;
}

int ut_reg_ask(struct ut_reg *reg, struct ut_record *record)
{
	uint64_t until = ut_emit_until();
	int error = -EFAULT;
	struct ut_session *s;

	if (must_not_wait())
		return error;
	ut_lock();
	s = reg->session;
	/* Not if an earlier wait was in vain, and no answer came since. */
	if (s && ut_patience_for_answers == UT_ANSWER_NS) {
		ut_begin(s, 0);
		if (!ut_await(s, is_answered, reg, until)) {
			error = -ETIMEDOUT;
		} else if (reg->state == UT_ANSWERED) {
			record->write_index = reg->write_index;
			error = ut_session_call(s, ut_put_write, record, until);
		}
		if (error == -ETIMEDOUT)
			lose_patience(UT_EMIT_NS);
	}
	ut_unlock();
	return error == -ETIMEDOUT || error == -ENOTCONN ? -EFAULT : error;
}

/* Whether all is sent that can be: without a connection, and with none being made, nothing can. A daemon that
 * has the ring needs the registrations, and finds both also when this process has ended; unless it refuses
 * the connection, so a program waits for its first answer. (Children look before they connect.) */
static int has_sent_all(void *session)
{
	struct ut_session *s = session;

	switch (s->state) {
	case UT_NEW:
		return ut_ring_is_taken_in(s->ring);
	case UT_OFFERED:
	case UT_UP:
		return ut_ring_is_taken_in(s->ring) ||
		       (!s->out.size && !s->to_ask &&
			(s->forked_at || !s->nr_asked || s->pages->asked[0].about != UT_ABOUT_RING));
	case UT_SOCKET:
	case UT_SENDS:
		return ut_ring_is_taken_in(s->ring) && !s->batch_size && (!ut_sends(s) || !s->out.size);
	case UT_WAITING: /* there is a daemon, if its queue is full */
		return s->error != -EAGAIN || ut_ring_is_taken_in(s->ring);
	default:
		return 1;
	}
}

static int flush(struct ut_session *s, uint64_t until)
{
	uint64_t forked_at = s->forked_at, emitted = s->bytes_before + ut_ring_position(s->ring);
	int error, is_over = 0;

	if (ut_thread_is_current() || ut_process_is_guest())
		return -EDEADLK;
	if (emitted == s->bytes_flushed)
		return 0;
	ut_begin(s, 1);
	do {
		/* A daemon is starting again, or has no space for a connection now, or ended during the flush: the
		 * records are for the next one. */
		if (!is_up(s) && !ut_ring_is_taken_in(s->ring) && !drive(s, is_up, s, until, 1))
			is_over = 1;
		if (!drive(s, has_sent_all, s, until, 0) && is_up(s))
			error = -ETIMEDOUT;
		else
			error = ut_session_call(s, ut_put_plain, "sync", until);
	} while (error == -ENOTCONN && !is_over && s->state != UT_CLOSED && !ut_ring_is_taken_in(s->ring));
	/* (Not if a thread has a record to commit, which the next flush waits for.) */
	if (!error && s->forked_at == forked_at && ut_ring_is_taken_in(s->ring))
		s->bytes_flushed = emitted;
	return error && interruption.has_said ? -EINTR : error;
}

void ut_session_close_until(struct ut_session *s, uint64_t until)
{
	if (ut_process_is_guest())
		return;
	drive(s, has_sent_all, s, until, 0);
	end_session(s);
	if (ut_thread_is_running())
		ut_wake();
}

void ut_session_close(struct ut_session *s, uint64_t until)
{
	ut_lock();
	ut_session_close_until(s, until ? until : ut_clock_ns() + UT_CLOSE_NS);
	ut_unlock();
}

int ut_owner_flush(struct ut_owner *owner, uint64_t timeout_ns)
{
	int error = 0;

	ut_lock();
	if (owner->session)
		error = flush(owner->session, ut_clock_ns() + timeout_ns);
	ut_unlock();
	return error;
}

void ut_owner_close(struct ut_owner *owner)
{
	ut_lock();
	owner->is_closed = 1;
	if (owner->session)
		ut_session_close_until(owner->session, ut_clock_ns() + UT_CLOSE_NS);
	ut_unlock();
}

/* By the links of a folder: 2, and one for each thread. Without /proc by a call that does nothing, which only
 * a single thread may make. */
static int has_one_thread(void)
{
	struct stat threads;

	return stat("/proc/self/task", &threads) == 0 ? threads.st_nlink == 3 : unshare(CLONE_THREAD) == 0;
}

uint64_t ut_end_until(void)
{
	static uint64_t until;
	uint64_t now = ut_clock_ns();

	if (now > until + UT_CLOSE_NS)
		until = now + UT_CLOSE_NS;
	return until;
}

/* The end of the process, or of a program's library that contains this one. Rings of the daemon need no
 * flush: it takes in all committed records. (Before that of utracefs.c.) */
__attribute__((destructor(102))) static void end(void)
{
	uint64_t until = ut_end_until();
	struct ut_session *s;
	int is_alone;

	if (!ut_process_is_own())
		return;
	do {
		ut_lock();
		for (s = ut_sessions; s && has_sent_all(s); s = s->next)
			;
		if (s)
			flush(s, until);
		ut_unlock();
	} while (s && ut_clock_ns() < until);
	is_alone = ut_thread_end() && ut_phase == UT_UNLOADED && has_one_thread();
	if (!is_alone)
		ut_phase = UT_EXITS;
	ut_lock();
	while (ut_sessions)
		end_session(ut_sessions);
	ut_bell_close(&ut_bell);
	if (is_alone) {
		for (struct ut_session *s = ended, *next; s; s = next) {
			next = s->next;
			munmap(s->pages, sizeof(*s->pages));
			free(s);
		}
		ut_free_all_later();
		ut_rings_end();
		ut_process_end();
	}
	ut_unlock();
}
