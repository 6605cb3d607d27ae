/*
 * One data connection from its first byte to its last: reads bytes and descriptors, sends requests, and lets
 * events follow their answers. With the lock held; nothing here waits.
 *
 * The program's ring exists before its connection: from `start_connection` on records go there, under numbers
 * that the session gives to its registrations. A new connection hands it over (adopt_ring), and then sends
 * all registrations with their numbers, without waiting: so the records of a child that ends at once arrive,
 * too. After a restart the next daemon gets the same ring in the same way, and continues where its
 * predecessor stopped. A daemon that does not take the ring gets its records over the socket (sending.c):
 * those of a child right behind its registrations, since it may end, those of a program after the answers.
 * When all answers have come, one step, `move_all`, maps the status page.
 *
 * The daemon's values are trusted unless they could crash the program: a broken message, a number out of
 * range or a missing descriptor ends the connection.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>

#include "connection.h"

#define LAST_BACK_OFF_NS 1000000000ull
/* The last pauses at a full queue: in all UT_EMIT_NS, and a quarter of a second. */
#define LAST_PAUSE_OF_CHILD_NS (2 * UT_BUSY_NS)
#define LAST_PAUSE_NS (512 * UT_BUSY_NS)

uint64_t ut_patience_for_answers = UT_ANSWER_NS;

/* ---- status bytes of events */

/* No caller waits for an answer any more. */
static void give_up_waiting(struct ut_session *s)
{
	for (struct ut_reg *reg = s->regs; reg; reg = reg->next) {
		const uint8_t *inherited = s->parents ? atomic_load(&reg->inherited) : NULL;

		/* (A child counts its records in its parent's ring, if it does not know that the event is off.) */
		if (atomic_load(&reg->status) == &ut_pending && (inherited || !s->parents))
			ut_reg_point(reg, inherited ? inherited : &ut_off);
	}
}

/* ---- the ring */

void ut_reg_count_cut_off(struct ut_reg *reg)
{
	const struct ut_session *s = reg->session;
	struct data_ring *counters = ut_ring_counters(!s ? 0 : s->parents ? s->parents : s->ring);

	if (counters)
		dr_count_lost(counters, reg->number);
	atomic_fetch_add(&reg->lost, 1);
}

int ut_reg_has_ring(const struct ut_reg *reg)
{
	const struct data_ring view = ut_view(ut_views, atomic_load(&reg->place));

	return view.header && !dr_is_closed(&view);
}

static void count_lost(void *session, uint32_t number)
{
	struct ut_reg *reg = ut_reg_of(session, number); /* (none for a refusal) */

	if (reg)
		atomic_fetch_add(&reg->lost, 1);
}

static void count_cut_off(void *session, uint32_t number)
{
	struct ut_reg *reg = ut_reg_of(session, number);

	if (reg)
		ut_reg_count_cut_off(reg);
}

void ut_session_give_up(struct ut_session *s, uint32_t *ring, int is_lost)
{
	if (!*ring)
		return;
	s->bytes_before += ut_ring_position(*ring);
	ut_ring_give_up(*ring, !is_lost ? NULL : ut_outlets[*ring].was_read ? count_lost : count_cut_off, s);
	*ring = 0;
}

static void set_places(struct ut_session *s)
{
	for (struct ut_reg *reg = s->regs; reg; reg = reg->next)
		ut_reg_place(reg);
}

/* Whether it can be used: its descriptors, if it has any, are ours (the doorbell's includes the memory's),
 * and the daemon has not closed it. */
static int has_good_ring(const struct ut_session *s)
{
	const struct ut_outlet *outlet = &ut_outlets[s->ring];

	return (!ut_ring_has_file(s->ring) || ut_is_ours(&outlet->doorbell)) && !dr_is_closed(&outlet->ring);
}

/* A new ring, unless there is a good one. */
static int make_ring(struct ut_session *s, uint32_t size)
{
	uint32_t old = s->ring;
	int made;

	if (s->ring && has_good_ring(s))
		return 0;
	made = ut_ring_make(size, s->settings.local_bytes);
	s->ring = made > 0 ? (uint32_t)made : 0;
	/* If no daemon got it before the program closed it, its records are lost, and counted in the new one. */
	ut_session_give_up(s, &old, !ut_outlets[old].was_read);
	return made < 0 ? made : 0;
}

void ut_hold(struct ut_session *s)
{
	if (s->state == UT_NEW && !make_ring(s, s->settings.ring_bytes))
		set_places(s);
}

/* ---- connecting */

/* Whether a child does not try to connect now, because the daemon might refuse it: it may end before it
 * knows, and the records in its ring would be in no number. Without a connection it counts them in its
 * parent's ring. (One that lives on tries all the same.) */
static int may_be_refused(const struct ut_session *s)
{
	struct data_ring *counters = s->parents ? ut_ring_counters(s->parents) : NULL;

	return counters && !dr_is_closed(counters) && !s->error &&
	       atomic_load_explicit(&counters->header->behind, memory_order_relaxed) & DR_BEHIND;
}

/* The reasons that have nothing to do with whether there is a daemon, and whether it serves this user. */
static void warn_of_limits(struct ut_session *s)
{
	if (s->error == -EMFILE)
		ut_warn(s, "events are off: this process has no free descriptor (ulimit -n)");
	else if (s->error == -ENOMEM || s->error == -ENOBUFS || s->error == -ENFILE || s->error == -EAFNOSUPPORT)
		ut_warn(s, "events are off: no memory or socket for the connection to the daemon (%s)",
			ut_error_name(-s->error));
}

static void fail_calls(struct ut_session *s)
{
	for (unsigned i = 0; i < s->nr_asked; i++) {
		struct ut_call *call = s->pages->asked[i].what;

		if (s->pages->asked[i].about == UT_ABOUT_CALL && call) {
			call->error = -ENOTCONN;
			call->done = 1;
		}
	}
	s->nr_asked = 0;
}

static void end_connection(struct ut_session *s)
{
	s->in_size = s->out.size = s->out_sent = s->batch_size = s->batch_sent = 0;
	ut_close(&s->socket); /* no shutdown: in a child it is the parent's, too */
	ut_close(&s->status_fd);
	fail_calls(s);
	if (s->ring) {
		atomic_store(&ut_outlets[s->ring].ring.header->wait_us, 0); /* nobody makes room */
		atomic_store(&ut_outlets[s->ring].ring.header->behind, 0);
		ut_outlets[s->ring].was_read |= s->state == UT_OFFERED || s->state == UT_UP;
	}
}

void ut_disconnect(struct ut_session *s)
{
	if (!s->parents) /* otherwise it is its parent's, whose state it has; now all placed events are off */
		mmap(s->pages->status, sizeof(s->pages->status), PROT_READ,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	ut_enablers_lost(s);
	end_connection(s);
}

/* The connection has ended with this error, or could not be made. */
static void lose_connection(struct ut_session *s, uint64_t now, int error)
{
	s->back_off = s->error ? s->back_off * 2 : UT_FIRST_BACK_OFF_NS;
	s->back_off = s->back_off < LAST_BACK_OFF_NS ? s->back_off : LAST_BACK_OFF_NS;
	s->error = error;
	ut_disconnect(s);
	warn_of_limits(s);
	ut_go(s, UT_LOST);
	s->due = now + s->back_off;
	give_up_waiting(s);
}

/* The daemon does not take the ring. If another one has read it, the place up to which is known to that one
 * only. */
static int take_ring_back(struct ut_session *s)
{
	int error = 0;

	if (s->ring && ut_outlets[s->ring].was_read) {
		ut_session_give_up(s, &s->ring, 1);
		error = make_ring(s, 0);
	}
	ut_start_sending(s);
	set_places(s);
	return error;
}

/* All that needs no answer, in one call, with the ring. 0, or -errno with nothing sent. */
static int send_first(struct ut_session *s)
{
	s->out = (struct ut_out){.data = s->pages->out, .room = UT_OUT_BYTES};
	s->out_sent = s->nr_asked = 0;
	ut_ask_anew(s);
	if (s->state == UT_OFFERED)
		ut_ask(s, UT_ABOUT_RING, NULL);
	ut_ask(s, s->flags & UT_TOKENS ? UT_ABOUT_NOTIFY : UT_ABOUT_STATUS, NULL);
	ut_ask_registrations(s);
	set_places(s); /* also of registrations without room now: their emits shall not need the lock */
	return ut_send_first(s);
}

/* The daemon serves this session, or this is a new child. */
static void begin_back_off(struct ut_session *s)
{
	s->error = 0;
	s->back_off = UT_BUSY_NS;
}

static int is_taken_away(const struct ut_session *s)
{
	return !ut_is_ours(&s->socket) || (s->ring ? !has_good_ring(s) : s->state == UT_OFFERED);
}

/* The step has failed. */
static void end_or_begin_anew(struct ut_session *s, uint64_t now, int error)
{
	if (ut_is_connected(s->state) && (error == -EBADF || is_taken_away(s))) {
		/* At once: the program has closed descriptors, perhaps one that has just been received (the daemon is
		 * unaffected, and so is its status page), the daemon has closed the ring, or is older. */
		end_connection(s);
		ut_go(s, UT_AGAIN);
		s->due = now;
	} else {
		if (error == -EPROTO)
			ut_warn(s, "the daemon cannot be understood, disconnected");
		lose_connection(s, now, error);
	}
}

/* 0, also if it has to wait; or -errno. */
static int start_connection(struct ut_session *s, uint64_t now)
{
	const uint64_t longest = s->parents ? LAST_PAUSE_OF_CHILD_NS : LAST_PAUSE_NS;
	int error;

	error = may_be_refused(s) ? -EAGAIN : ut_connect(&s->socket, s->settings.directories, "user_events_data");
	/* A program's records have a place, a child waits for a moment. Only once: a daemon that is stopped may
	 * have this queue in front of it, with a thousand programs, for long. */
	if (error == -EAGAIN && !s->error && s->back_off <= longest) {
		s->due = now + s->back_off;
		s->back_off *= 2;
		if (s->ring && !s->parents)
			ut_hold(s); /* of events declared meanwhile, who reads a former ring would know nothing */
		return 0;
	}
	if (!error && !(s->flags & UT_TOKENS)) {
		error = make_ring(s, s->settings.ring_bytes);
		if (error && !s->parents) {
			ut_warn(s, "events are off: no memory for their records (%s)", ut_error_name(-error));
			error = 0;
		}
	}
	if (error)
		return error;
	if (!s->is_old && s->ring && ut_ring_has_file(s->ring)) {
		ut_outlets[s->ring].by_socket = 0;
		ut_go(s, UT_OFFER);
		if (!send_first(s))
			return 0;
	}
	ut_go(s, UT_PLAIN);
	error = send_first(s);
	if (!error && ut_sends(s))
		take_ring_back(s);
	else if (error && s->parents && !is_taken_away(s))
		ut_session_give_up(s, &s->ring, 1);
	return error;
}

/* ---- answers */

static int status_came(struct ut_session *s, const struct ut_message *message)
{
	struct stat found;
	uint64_t size, protocol = 0;

	if (message->error) {
		ut_warn(s, "events are off: %s", message->text);
		return -ENOTCONN;
	}
	if (s->status_fd.fd < 0 || ut_parse_number(message->result, "size", &size) ||
	    ut_parse_number(message->result, "protocol", &protocol) == -EPROTO)
		return -EPROTO;
	/* Beyond the file's end the mapping would cause SIGBUS in the program. */
	if (size == 0 || size > UT_STATUS_BYTES || fstat(s->status_fd.fd, &found) || (uint64_t)found.st_size < size)
		return ut_is_ours(&s->status_fd) ? -EPROTO : -EBADF;
	if (s->is_old != (protocol < 2)) {
		s->is_old = protocol < 2; /* so this connection should have begun without, or with, ring and numbers */
		return -EBADF;
	}
	s->status_size = (uint32_t)size;
	begin_back_off(s);
	return 0;
}

static int ring_came(struct ut_session *s, const struct ut_message *message)
{
	if (message->error == E2BIG) {
		s->is_old = 1; /* the registrations fail, too, because of their numbers */
		ut_go(s, UT_PLAIN);
		return -EBADF;
	}
	if (message->error == ENOMEM && s->settings.ring_bytes > DR_LOW) {
		/* The user's share has no room for more. Records in this ring are counted as lost in the next one. */
		uint32_t refused = s->ring;

		s->settings.ring_bytes = DR_LOW;
		s->ring = 0;
		make_ring(s, DR_LOW);
		ut_session_give_up(s, &refused, 1);
		return -EBADF;
	}
	if (message->error) {
		ut_warn(s, "the daemon does not take the data ring, records go over the socket: %s", message->text);
		ut_go(s, UT_PLAIN);
	}
	return ut_sends(s) ? take_ring_back(s) : 0;
}

/* From now on the event is on or off as its byte says. */
static int follow(struct ut_reg *reg)
{
	struct ut_session *s = reg->session;
	const uint8_t *status = s->pages->status + reg->status_index;

	if (reg->status_index >= s->status_size)
		return -EPROTO;
	reg->was_off = !reg->is_answered && *(const volatile uint8_t *)status == 0;
	reg->is_answered = 1;
	ut_reg_place(reg);
	if (reg->was_off)
		reg->unwanted_until = ut_ring_position(s->ring);
	if (*(const volatile uint8_t *)status == 0 && atomic_load(&reg->status) == &ut_pending)
		reg->unwanted += atomic_exchange(&reg->lost, 0); /* they found the ring full, but were not wanted */
	ut_reg_point(reg, s->ring || s->flags & UT_TOKENS ? status : &ut_off);
	return 0;
}

static int registered(struct ut_reg *reg, const struct ut_message *message)
{
	struct ut_registered answer;

	if (message->error) {
		if (reg->error != message->error)
			ut_warn(reg->session, "event %.*s is off: %s (%s)", (int)strcspn(reg->command, " "), reg->command,
				message->text, ut_error_name(message->error));
		reg->state = UT_REFUSED;
		reg->error = message->error;
		memcpy(reg->text, message->text, sizeof(reg->text));
		atomic_store(&reg->place, 0);
		ut_reg_point(reg, &ut_off);
		return 0;
	}
	if (ut_parse_registered(message->result, 0, &answer))
		return -EPROTO;
	if (!reg->id) {
		reg->size = answer.size;
		if (answer.nr_locs <= reg->room) { /* otherwise only the daemon checks them */
			reg->nr_locs = answer.nr_locs;
			memcpy(reg->locs, answer.locs, answer.nr_locs * sizeof(*reg->locs));
		}
	}
	reg->id = answer.id;
	reg->event_id = (uint16_t)answer.event_id;
	reg->status_index = answer.status_index;
	reg->write_index = answer.write_index;
	reg->state = UT_ANSWERED;
	reg->error = 0;
	return ut_is_up(reg->session->state) ? follow(reg) : 0;
}

static int response_came(struct ut_session *s, const struct ut_message *message)
{
	struct ut_asked asked;
	unsigned i = 0;

	while (i < s->nr_asked && s->pages->asked[i].msgid != message->msgid)
		i++;
	if (i == s->nr_asked)
		return -EPROTO;
	asked = s->pages->asked[i];
	s->nr_asked--;
	memmove(&s->pages->asked[i], &s->pages->asked[i + 1], (s->nr_asked - i) * sizeof(asked));
	ut_patience_for_answers = UT_ANSWER_NS;
	switch (asked.about) {
	case UT_ABOUT_STATUS:
		return status_came(s, message);
	case UT_ABOUT_RING:
		return ring_came(s, message);
	case UT_ABOUT_NOTIFY:
		if (message->error)
			return -EPROTO;
		begin_back_off(s);
		ut_go(s, UT_READY);
		return 0;
	case UT_ABOUT_REG:
		return asked.what ? registered(asked.what, message) : 0;
	case UT_ABOUT_ENABLER:
		if (asked.what)
			ut_enabler_answered(asked.what, message);
		return 0;
	case UT_ABOUT_CALL:
		if (asked.what) {
			struct ut_call *call = asked.what;

			call->error = -message->error;
			call->done = 1;
		}
		return 0;
	}
	return 0;
}

static int message_came(struct ut_session *s, const struct ut_message *message)
{
	struct ut_reg *reg;

	switch (message->kind) {
	case UT_RESPONSE:
		return response_came(s, message);
	case UT_ENABLERS_CHANGED:
		return ut_enablers_changed(s, message);
	case UT_WRITE_ERROR:
		reg = ut_reg_of_daemons(s, message->write_index);
		if (!reg && (s->state == UT_OFFERED || s->state == UT_UP) &&
		    (reg = ut_reg_of(s, (uint32_t)message->write_index)))
			atomic_fetch_add(&reg->lost, message->count); /* its registration was refused */
		else if (reg && (reg->was_off || !reg->is_answered) && message->error == EBADF)
			reg->unwanted += message->count;
		else if (reg)
			ut_reg_count_refused(reg, message->error, message->count);
		if (reg && ut_ring_is_taken_in(s->ring)) /* else more of them may be refused */
			reg->was_off = 0;
		return 0;
	case UT_ERROR:
		ut_warn(s, "the daemon ends the connection: %s", message->text);
		return -ENOTCONN;
	case UT_UNKNOWN:
		return 0; /* ignore additions to the protocol */
	}
	return 0;
}

/* ---- receiving */

/* Reads and handles everything that has arrived. 0, or -errno at the end of the connection. */
static int receive(struct ut_session *s)
{
	for (;;) {
		struct ut_fds came;
		ssize_t got = ut_receive(s->socket.fd, s->pages->in + s->in_size, UT_IN_BYTES - s->in_size, &came);
		size_t done = 0;
		int error = 0;

		if (got <= 0)
			return got == -EAGAIN ? 0 : got ? (int)got : -ENOTCONN;
		for (unsigned i = 0; i < came.count; i++) {
			if (s->status_fd.fd >= 0) {
				close(came.fds[i]);
				error = -EPROTO;
			} else if (!error) {
				error = ut_take(&s->status_fd, came.fds[i], UT_ANY);
			}
		}
		if (error)
			return error;
		s->in_size += (size_t)got;
		for (;;) {
			ssize_t size = ut_object_size(s->pages->in + done, s->in_size - done);
			struct ut_message message;

			if (size < 0)
				return -EPROTO;
			if (size == 0)
				break;
			error = ut_parse(s->pages->in + done, (size_t)size, &message);
			if (!error)
				error = message_came(s, &message);
			if (error)
				return error;
			done += (size_t)size;
		}
		s->in_size -= done;
		memmove(s->pages->in, s->pages->in + done, s->in_size);
		if (s->in_size == UT_IN_BYTES)
			return -EPROTO; /* longer than any message of the protocol */
	}
}

/* ---- the step that moves all events together */

/* Elsewhere first: if the program has put a file over the number, events must not look at that, and it may be
 * shorter (SIGBUS). */
static int map_status(struct ut_session *s)
{
	const int fd = s->status_fd.fd;
	const size_t bytes = s->status_size;
	void *at = ut_mapped(mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0));
	int error = at ? 0 : -errno;

	if (!ut_is_ours(&s->status_fd)) {
		ut_unmap(at, bytes);
		return -EBADF;
	}
	if (error)
		return error;
	if (mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, s->pages->status) != MAP_FAILED)
		return 0;
	/* A sandbox refuses it. */
	munmap(at, bytes);
	return mmap(s->pages->status, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ? -errno : 0;
}

static int move_all(struct ut_session *s)
{
	int error = map_status(s);

	if (!error && s->state == UT_SOCKET && !ut_is_early(s))
		error = take_ring_back(s);
	for (struct ut_reg *reg = s->regs; reg && !error; reg = reg->next)
		if (reg->state == UT_ANSWERED)
			error = follow(reg);
	if (error)
		return error;
	ut_session_give_up(s, &s->parents, 0);
	s->last_warning = 0;
	ut_close(&s->status_fd);
	ut_go(s, UT_READY);
	return 0;
}

static int advance(struct ut_session *s)
{
	int waits = s->to_ask != NULL;

	if (s->flags & UT_TOKENS)
		return 0;
	for (unsigned i = 0; i < s->nr_asked && !waits; i++) {
		const struct ut_asked *asked = &s->pages->asked[i];

		waits = asked->about < UT_ABOUT_REG || (asked->about == UT_ABOUT_REG && asked->what);
	}
	return waits || ut_is_up(s->state) ? 0 : move_all(s);
}

/* With a connection. 0, or -errno. */
static int serve(struct ut_session *s)
{
	int error = is_taken_away(s) ? -EBADF : receive(s);

	if (!error)
		error = advance(s);
	if (error)
		return error;
	ut_ask_registrations(s);
	return ut_sends(s) ? ut_send_records(s) : ut_send_out(s);
}

void ut_step(struct ut_session *s, uint64_t now)
{
	int error;

	if (ut_process_is_guest()) {
		ut_wake(); /* descriptors opened or received here would be missing in the parent */
		return;
	}
	error = ut_is_connected(s->state) ? serve(s) : 0;
	if (error && error != -EAGAIN)
		end_or_begin_anew(s, now, error);
	if (s->state == UT_WAITING && now >= s->due)
		ut_go(s, UT_WANTED);
	if (s->state == UT_NEW && now >= s->due && (error = start_connection(s, now)))
		end_or_begin_anew(s, now, error);
}

uint64_t ut_step_due(const struct ut_session *s)
{
	return s->state == UT_NEW || s->state == UT_WAITING ? s->due : UINT64_MAX;
}

short ut_step_events(const struct ut_session *s)
{
	return s->out.size || s->batch_size ? POLLIN | POLLOUT : POLLIN;
}

/* ---- fork */

void ut_connection_start_child(struct ut_session *s)
{
	const uint8_t *status;

	if (!s->parents && (s->parents = s->ring)) {
		ut_close(&ut_outlets[s->parents].doorbell);
		ut_close(&ut_outlets[s->parents].memory);
	} else {
		ut_session_give_up(s, &s->ring, 0);
	}
	s->ring = 0;
	end_connection(s); /* (Calls of this thread, too, if its signal handler has forked.) */
	if (s->state == UT_SENDS)
		s->settings.ring_bytes = 0; /* this daemon does not take it */
	s->bytes_before = s->bytes_flushed = 0;
	s->forked_at = ut_clock_ns();
	ut_go(s, UT_FORK);
	s->due = 0;
	begin_back_off(s);
	ut_ask_anew(s);
	for (struct ut_reg *reg = s->regs; reg; reg = reg->next) {
		atomic_store(&reg->place, 0);
		atomic_store(&reg->lost, 0);
		reg->refused = 0;
		reg->nr_refusals = 0;
		reg->is_answered = reg->was_off = 0;
		reg->unwanted = reg->unwanted_until = 0;
		status = atomic_load(&reg->status);
		if (s->state == UT_FORKED && status != &ut_pending) {
			ut_reg_point(reg, &ut_pending);
			atomic_store(&reg->inherited, status);
		}
	}
}
