/*
 * One data connection from its first byte to its last: reads bytes and descriptors, sends requests, and gives
 * events their places. With the lock held; nothing here waits.
 *
 * On a new connection all registrations of the session are sent again, in their order, so they usually get
 * their former write indexes. Then the ring of the previous connection is offered to the daemon (adopt_ring),
 * which continues where its predecessor stopped. If the indexes differ, or the daemon refuses, its records
 * are lost and counted, and another ring is requested. Then one step, `move_all`, gives all events their
 * places and maps the status page; from then on they can emit.
 *
 * The daemon's values are trusted unless they could crash the program: a broken message, a number out of
 * range or a missing descriptor ends the connection.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>

#include "connection.h"

#define LAST_BACK_OFF_NS 1000000000ull
#define BUSY_NS 5000000ull /* until the next attempt, if the daemon's socket is full of new programs */

uint64_t ut_patience_for_answers = UT_ANSWER_NS;


/* ---- status bytes of events */

/* From here on the status of all placed events is zero. */
static void unmap_status(struct ut_session *s)
{
	if (s->is_status_mapped)
		mmap(s->status_area, UT_STATUS_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
		     -1, 0);
	s->is_status_mapped = 0;
}

/* No caller waits for an answer any more. */
static void give_up_waiting(struct ut_session *s)
{
	for (struct ut_reg *reg = s->regs; reg; reg = reg->next) {
		const uint8_t *inherited = s->is_cut_off ? atomic_load(&reg->inherited) : NULL;

		if (atomic_load(&reg->status) == &ut_pending)
			ut_reg_point(reg, inherited ? inherited : &ut_off);
	}
}

/* ---- connecting */

void ut_reg_count_cut_off(struct ut_reg *reg)
{
	const struct ut_session *s = reg->session;
	uint32_t ring = !s ? 0 : s->parents ? s->parents : s->ring ? s->ring : s->local;
	struct data_ring *counters = ut_ring_counters(ring);

	if (counters)
		dr_count_lost(counters, s->parents ? reg->parents_index : s->ring ? reg->write_index : reg->number);
	atomic_fetch_add(&reg->lost, 1);
}

static void count_cut_off(void *session, uint32_t number)
{
	struct ut_reg *reg = ut_reg_of(session, number & ~DR_REFUSED);

	if (!reg)
		return;
	ut_reg_count_cut_off(reg);
	atomic_store(&reg->place, 0);
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

static void back_off(struct ut_session *s, uint64_t now)
{
	warn_of_limits(s);
	ut_go(s, UT_LOST);
	s->due = now + s->back_off;
	s->back_off = s->back_off * 2 < LAST_BACK_OFF_NS ? s->back_off * 2 : LAST_BACK_OFF_NS;
	/* A child that never had a ring and gets none now. (If there is a socket that does not answer, it may
	 * connect later.) */
	s->is_cut_off = s->parents && s->error != -ECONNREFUSED;
	if (s->is_cut_off) {
		ut_session_give_up(s, &s->local, count_cut_off, s);
		ut_held_free(s);
	} else {
		unmap_status(s);
	}
	give_up_waiting(s);
}

static void begin_enablers(struct ut_session *s)
{
	for (struct ut_enabler *enabler = s->enablers; enabler; enabler = enabler->next)
		enabler->state = UT_TO_ASK;
	ut_ask(s, UT_ABOUT_NOTIFY, NULL);
}

static void start_connection(struct ut_session *s, uint64_t now)
{
	int fd, error;

	if (!s->memory) {
		void *at = mmap(NULL, UT_MEMORY_BYTES, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (at == MAP_FAILED) {
			s->error = -ENOMEM;
			back_off(s, now);
			return;
		}
		s->memory = at;
	}
	fd = ut_connect(s->settings.directories, "user_events_data");
	if (fd == -EAGAIN && s->patience > BUSY_NS) {
		s->patience -= BUSY_NS;
		s->due = now + BUSY_NS;
		return;
	}
	error = fd < 0 ? fd : ut_take(&s->socket, fd);
	if (error) {
		s->error = error;
		back_off(s, now);
		return;
	}
	s->error = 0;
	if (s->ring && !(s->flags & UT_TOKENS))
		ut_go(s, UT_OLD_RING);
	else
		ut_go(s, s->settings.ring_bytes && !(s->flags & UT_TOKENS) ? UT_NEW_RING : UT_NO_RING);
	s->has_answered = s->is_notified = 0;
	s->in_size = 0;
	s->out = (struct ut_out){.data = s->memory + UT_IN_BYTES, .room = UT_OUT_BYTES};
	s->out_sent = 0;
	ut_ask_anew(s);
	if (s->flags & UT_TOKENS)
		begin_enablers(s);
	else
		ut_ask(s, UT_ABOUT_STATUS, NULL);
	if (s->state == UT_ANSWERS_AND_RING)
		ut_ask(s, UT_ABOUT_RING, NULL);
}

void ut_close_connection(struct ut_session *s)
{
	ut_close(&s->socket);
	ut_close(&s->status_fd);
	while (s->nr_received)
		ut_close(&s->received[--s->nr_received]);
}

static void fail_calls(struct ut_session *s)
{
	for (unsigned i = 0; i < s->nr_asked; i++) {
		struct ut_call *call = s->asked[i].what;

		if (s->asked[i].about == UT_ABOUT_CALL && call) {
			call->error = -ENOTCONN;
			call->done = 1;
		}
	}
	s->nr_asked = 0;
}

/* Before its ring is given up. */
static void lose_places(struct ut_session *s)
{
	for (struct ut_reg *reg = s->regs; reg; reg = reg->next) {
		atomic_store(&reg->place, 0);
		reg->old_index = -1;
	}
}

static void end_connection(struct ut_session *s)
{
	ut_keep_unsent(s);
	s->out.size = s->out_sent = 0;
	s->is_full = 0;
	ut_close_connection(s);
	fail_calls(s);
	if (s->flags & UT_TOKENS)
		ut_enablers_lost(s);
	if (s->ring && ut_views[s->ring].header)
		atomic_store(&ut_views[s->ring].header->wait_us, 0); /* nobody makes room */
	if (s->ring && !ut_ring_is_ours(s->ring)) {
		/* Records in it belong to that daemon; no other one may get them. */
		lose_places(s);
		ut_session_give_up(s, &s->ring, NULL, NULL);
	}
}

void ut_disconnect(struct ut_session *s)
{
	if (!s->parents) /* otherwise it is its parent's, whose state it has */
		unmap_status(s);
	end_connection(s);
}

static void lose_connection(struct ut_session *s, uint64_t now, int error)
{
	if (s->has_answered)
		s->back_off = UT_FIRST_BACK_OFF_NS;
	s->error = error;
	ut_disconnect(s);
	back_off(s, now);
}

/* ---- answers */

static int next_fd(struct ut_session *s, struct ut_descriptor *descriptor)
{
	if (!s->nr_received)
		return -EPROTO;
	*descriptor = s->received[0];
	s->nr_received--;
	memmove(&s->received[0], &s->received[1], s->nr_received * sizeof(s->received[0]));
	return 0;
}

static int status_came(struct ut_session *s, const struct ut_message *message)
{
	struct stat found;
	uint64_t size, writers;

	if (message->error) {
		ut_warn(s, "events are off: %s", message->text);
		return -ENOTCONN;
	}
	if (s->status_fd.fd >= 0 || ut_parse_size(message->result, &size, &writers) ||
	    next_fd(s, &s->status_fd))
		return -EPROTO;
	/* Beyond the file's end the mapping would cause SIGBUS in the program. */
	if (size == 0 || size > UT_STATUS_BYTES || fstat(s->status_fd.fd, &found) || (uint64_t)found.st_size < size)
		return -EPROTO;
	s->status_size = (uint32_t)size;
	s->takes_writers = writers == 1;
	s->has_answered = 1;
	return 0;
}

static int ring_came(struct ut_session *s, const struct ut_message *message)
{
	struct ut_descriptor memory, doorbell;
	uint64_t size, writers;
	int ring;

	ut_go(s, UT_RING_ANSWERED);
	if (message->error)
		return 0; /* whatever the reason, the socket serves */
	if (ut_parse_size(message->result, &size, &writers) || next_fd(s, &memory))
		return -EPROTO;
	if (next_fd(s, &doorbell)) {
		ut_close(&memory);
		return -EPROTO;
	}
	ring = ut_ring_map(memory, doorbell, size);
	if (ring > 0) {
		s->ring = (uint32_t)ring;
		s->bytes_before -= ut_ring_position(s->ring);
	} else if (ring == -EPROTONOSUPPORT) {
		ut_warn(s, "no data ring: the daemon's has another version; upgrade the older of utracefsd and "
			   "this program's utracefs. Meanwhile records go over the socket");
	} else if (ring != -EPROTO) {
		ut_warn(s, "no data ring, so records go over the socket (%s; ulimit -v, or a smaller "
			   "UTRACEFS_RING_KB)",
			ut_error_name(-ring));
	}
	return ring == -EPROTO ? ring : 0;
}

static void count_given_up(void *arg, uint32_t write_index)
{
	const struct ut_by_index *old = arg;

	if (write_index < old->size && old->regs[write_index])
		atomic_fetch_add(&old->regs[write_index]->lost, 1);
}

/* The daemon refuses the ring of the previous connection: ask for another. */
static void replace_ring(struct ut_session *s)
{
	struct ut_by_index old = ut_regs_by_old_index(s);

	lose_places(s);
	ut_session_give_up(s, &s->ring, count_given_up, &old);
	ut_unmap(old.regs, ((size_t)old.size + 1) * sizeof(*old.regs));
	ut_go(s, s->settings.ring_bytes ? UT_NEW_RING : UT_NO_RING);
	if (s->state == UT_ANSWERS_AND_RING && ut_ask(s, UT_ABOUT_RING, NULL))
		ut_go(s, UT_RING_ANSWERED);
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
	if (atomic_load(&reg->place) == 0 && !reg->nr_locs) {
		reg->size = answer.size;
		if (answer.nr_locs <= reg->room) { /* otherwise only the daemon checks them */
			reg->nr_locs = answer.nr_locs;
			memcpy(reg->locs, answer.locs, answer.nr_locs * sizeof(*reg->locs));
		}
	}
	reg->id = answer.id;
	reg->event_id = answer.event_id;
	reg->status_index = answer.status_index;
	reg->write_index = answer.write_index;
	reg->state = UT_ANSWERED;
	reg->error = 0;
	ut_reg_enter(reg);
	if (reg->session->state == UT_UP) {
		reg->next_answered = reg->session->answered;
		reg->session->answered = reg;
	}
	return 0;
}

static int response_came(struct ut_session *s, const struct ut_message *message)
{
	struct ut_asked asked;
	unsigned i = 0;

	while (i < s->nr_asked && s->asked[i].msgid != message->msgid)
		i++;
	if (i == s->nr_asked)
		return -EPROTO;
	asked = s->asked[i];
	s->nr_asked--;
	memmove(&s->asked[i], &s->asked[i + 1], (s->nr_asked - i) * sizeof(asked));
	ut_patience_for_answers = UT_ANSWER_NS;
	switch (asked.about) {
	case UT_ABOUT_STATUS:
		return status_came(s, message);
	case UT_ABOUT_RING:
		return ring_came(s, message);
	case UT_ABOUT_ADOPT:
		if (message->error) {
			ut_warn(s, "the data ring was not taken over: %s", message->text);
			replace_ring(s);
		} else {
			ut_go(s, UT_ADOPTED);
		}
		return 0;
	case UT_ABOUT_NOTIFY:
		/* This daemon has no enablers: they stay off, and only they need this answer. */
		s->has_answered = 1;
		s->is_notified = !message->error;
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
		if (reg)
			ut_reg_count_refused(reg, message->error, message->count);
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
		ssize_t got = ut_receive(s->socket.fd, s->memory + s->in_size, UT_IN_BYTES - s->in_size, &came);
		size_t done = 0;

		if (got <= 0)
			return got == -EAGAIN ? 0 : got ? (int)got : -ENOTCONN;
		for (unsigned i = 0; i < came.count; i++) {
			if (s->nr_received == sizeof(s->received) / sizeof(s->received[0]))
				close(came.fds[i]);
			else if (ut_take(&s->received[s->nr_received], came.fds[i]) == 0)
				s->nr_received++;
		}
		s->in_size += (size_t)got;
		for (;;) {
			ssize_t size = ut_object_size(s->memory + done, s->in_size - done);
			struct ut_message message;
			int error;

			if (size < 0)
				return -EPROTO;
			if (size == 0)
				break;
			error = ut_parse(s->memory + done, (size_t)size, &message);
			if (!error)
				error = message_came(s, &message);
			if (error)
				return error;
			done += (size_t)size;
		}
		s->in_size -= done;
		memmove(s->memory, s->memory + done, s->in_size);
		if (s->in_size == UT_IN_BYTES)
			return -EPROTO; /* longer than any message of the protocol */
	}
}

/* ---- the step that moves all events together */

static int place(struct ut_session *s, struct ut_reg *reg)
{
	uint32_t ring = s->local ? s->local : s->ring;

	if (reg->status_index >= s->status_size)
		return -EPROTO;
	if (s->ring)
		reg->old_index = reg->write_index;
	/* The place first: a thread that sees the byte set finds a place. */
	if (ring && (!s->local || reg->number != UT_NO_NUMBER)) {
		atomic_store(&reg->place, ut_place(ring, s->local ? reg->number : reg->write_index));
		ut_reg_point(reg, s->status_area + reg->status_index);
	} else {
		ut_reg_point(reg, &ut_off);
	}
	return 0;
}

static int move_all(struct ut_session *s)
{
	void *at;
	int error = s->ring ? 0 : ut_ring_make_local(s);

	if (error && s->parents)
		return error;
	if (error)
		ut_warn(s, "events are off: no memory for their records (%s)", ut_error_name(-error));
	if (s->local) /* each thread gives its name on each connection, under a number that no ring of the
		       * daemon has */
		dr_ask_names(&s->taker, s->takes_writers ? ((uint32_t)(ut_clock_ns() >> 10) & INT32_MAX) | 1 : 0);
	for (struct ut_reg *reg = s->regs; reg; reg = reg->next) {
		if (reg->state != UT_ANSWERED)
			continue;
		if (place(s, reg))
			return -EPROTO;
		if (atomic_load(&reg->place) == 0) {
			reg->next_answered = s->answered;
			s->answered = reg;
		}
	}
	at = mmap(s->status_area, s->status_size, PROT_READ, MAP_SHARED | MAP_FIXED, s->status_fd.fd, 0);
	if (at == MAP_FAILED)
		return -errno;
	s->is_status_mapped = 1;
	s->is_cut_off = 0;
	ut_session_give_up(s, &s->parents, NULL, NULL);
	ut_hear_all(s);
	s->last_warning = 0;
	ut_close(&s->status_fd);
	ut_go(s, UT_READY);
	return 0;
}

/* The daemon's ring has all records of the local one: later ones go there, too. */
static void move_to_ring(struct ut_session *s, uint32_t local)
{
	for (struct ut_reg *reg = s->regs; reg; reg = reg->next)
		if (atomic_load(&reg->place) >> 32 == local)
			atomic_store(&reg->place, reg->state == UT_ANSWERED ? ut_place(s->ring, reg->write_index) : 0);
}

static void move_records(struct ut_session *s)
{
	uint32_t local = s->local;

	ut_take_records(s);
	if (ut_leave_local(s))
		move_to_ring(s, local);
}

static int same_indexes(const struct ut_session *s)
{
	for (const struct ut_reg *reg = s->regs; reg; reg = reg->next)
		if (reg->old_index >= 0 && (reg->state != UT_ANSWERED || reg->write_index != reg->old_index))
			return 0;
	return 1;
}

static int advance(struct ut_session *s)
{
	if (s->flags & UT_TOKENS)
		return 0;
	if (s->state == UT_UP) {
		if (!s->nr_asked && !s->to_ask)
			s->patience = s->settings.patience_ns; /* all answers have come */
		for (struct ut_reg **at = &s->answered; *at;) {
			if (place(s, *at))
				return -EPROTO;
			ut_reg_hear(s, *at);
			if (atomic_load(&(*at)->place))
				*at = (*at)->next_answered;
			else
				at = &(*at)->next_answered; /* not numbered yet */
		}
		return 0;
	}
	if (s->status_fd.fd < 0 || s->to_ask)
		return 0;
	for (unsigned i = 0; i < s->nr_asked; i++)
		if (s->asked[i].about == UT_ABOUT_REG && s->asked[i].what)
			return 0;
	if (s->state == UT_ANSWERS_TO_OFFER) {
		if (s->nr_asked)
			return 0;
		if (same_indexes(s)) {
			int error = ut_send_offer(s);

			return error == -EAGAIN ? 0 : error;
		}
		replace_ring(s);
	}
	return s->state == UT_ANSWERS ? move_all(s) : 0;
}

static int is_taken_away(const struct ut_session *s)
{
	return !ut_is_ours(&s->socket) || (s->ring && !ut_ring_is_ours(s->ring));
}

void ut_step(struct ut_session *s, uint64_t now)
{
	int error = 0;

	if (ut_process_is_guest()) {
		ut_wake(); /* descriptors opened or received here would be missing in the parent */
		return;
	}
	if (s->state == UT_WAITING && now >= s->due) {
		s->patience = s->settings.patience_ns;
		ut_go(s, UT_WANTED);
	}
	if (s->state == UT_NEW && now >= s->due)
		start_connection(s, now);
	if (!ut_is_connected(s->state))
		return;
	if (is_taken_away(s)) {
		/* The program has closed them. The daemon is unaffected, and so is its status page. */
		end_connection(s);
		for (struct ut_reg *reg = s->regs; reg; reg = reg->next)
			atomic_store(&reg->place, 0);
		ut_go(s, UT_TAKEN_AWAY);
		start_connection(s, now);
		if (!ut_is_connected(s->state))
			return;
	}
	for (int turns = 0; turns < 2 && !error; turns++) {
		error = receive(s);
		if (!error)
			error = advance(s);
		if (!error) {
			ut_ask_registrations(s);
			if (s->state == UT_UP && (s->local || s->kept_size))
				move_records(s);
			error = ut_send_out(s);
			if (error == -EAGAIN)
				error = 0;
		}
	}
	if (error && is_taken_away(s)) { /* after it was checked */
		ut_step(s, now);
		return;
	}
	if (error == -EPROTO)
		ut_warn(s, "the daemon cannot be understood, disconnected");
	if (error)
		lose_connection(s, now, error);
}

uint64_t ut_step_due(const struct ut_session *s)
{
	return s->state == UT_NEW || s->state == UT_WAITING || s->is_full ? s->due : UINT64_MAX;
}

short ut_step_events(const struct ut_session *s)
{
	return s->out.size ? POLLIN | POLLOUT : POLLIN;
}

/* ---- fork */

void ut_connection_start_child(struct ut_session *s)
{
	const uint8_t *status;

	/* Close, no shutdown: the connection is the parent's. The rings' memory is replaced when the child
	 * makes a ring of its own: most children never do. */
	ut_close_connection(s);
	if (!s->parents && (s->parents = s->ring ? s->ring : s->local)) {
		for (struct ut_reg *reg = s->regs; reg; reg = reg->next)
			reg->parents_index = s->ring ? reg->write_index : reg->number;
		ut_close(&ut_outlets[s->parents].doorbell);
		ut_close(&ut_outlets[s->parents].memory);
	}
	if (s->local != s->parents)
		ut_session_give_up(s, &s->local, NULL, NULL);
	s->ring = s->local = 0;
	s->is_cut_off = 0;
	s->nr_asked = 0;
	s->bytes_before = s->bytes_flushed = 0;
	s->forked_at = ut_clock_ns();
	s->is_holding = s->is_full = 0;
	s->out.size = s->out_sent = s->kept_at = s->kept_size = 0; /* its parent's */
	ut_go(s, UT_FORK);
	s->due = 0;
	ut_ask_anew(s);
	for (struct ut_reg *reg = s->regs; reg; reg = reg->next) {
		atomic_store(&reg->place, 0);
		atomic_store(&reg->lost, 0);
		reg->refused = 0;
		reg->nr_refusals = 0;
		reg->old_index = -1;
		reg->is_heard = 0;
		reg->unheard = reg->unheard_until = 0;
		status = atomic_load(&reg->status);
		if (s->state == UT_FORKED && status != &ut_pending) {
			ut_reg_point(reg, &ut_pending);
			atomic_store(&reg->inherited, status);
		}
	}
	for (struct ut_enabler *enabler = s->enablers; enabler; enabler = enabler->next)
		enabler->state = UT_TO_ASK;
}
