/*
 * A stream (utracefs_stream.h): a connection to the tracefs socket, and the ring that the daemon writes.
 *
 *     CLOSED ── open ──> AWAY ── connected ──> ASKED ── ring, doorbell, counts ──> OPEN
 *        ^                 ^ ^                   │                                  │
 *        └── error         │ └─── no daemon ─────┘                                  │
 *                          └── end of the doorbell, and the rest of the ring is read
 *
 * `step` does what can be done without waiting. The answer to stream_open (docs/protocol.md, section 6.1)
 * says how many of an event's records the daemon had when this stream was attached. The same number of the
 * next stream tells what was emitted while there was none. A daemon that was killed leaves no numbers: what
 * its successor had taken in by then is lost to this stream.
 */
#include "utracefs_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "connecting.h"
#include "stream_events.h"
#include "stream_reader.h"
#include "wire.h"

/* A daemon that has just started answers after 2.2 s. */
#define ANSWER_NS 30000000000ull
#define FIRST_BACK_OFF_NS 20000000ull
#define LAST_BACK_OFF_NS 1000000000ull
#define DEFAULT_RING (4u << 20)
#define REQUEST_BYTES 1024u /* beside texts */
#define FIRST_ANSWER 16384u
#define MAX_ANSWER (256u << 20)
#define MAX_OTHERS 1000u
#define NR_TIDS (1u << 22) /* the kernel's PID_MAX_LIMIT; memory only where threads have names */

enum state { CLOSED, AWAY, ASKED, OPEN };

/* A connection with at most one request that matters. */
struct call {
	int fd; /* -1: none */
	uint32_t msgid;
	uint8_t *in;
	size_t in_size, in_room, done; /* done: bytes of messages that are processed */
	unsigned others; /* messages that are no answer to it */
	int received[2];
	unsigned nr_received;
};

struct utracefs_stream {
	enum state state;
	int is_again; /* there was a ring before */
	int has_restarted; /* to be reported */
	char directories[2][UT_DIRECTORY];
	struct ut_out request; /* stream_open */
	int has_filter, ends;
	struct call call;
	uint64_t due, back_off; /* AWAY; ASKED: when to give up */
	struct ut_stream_ring ring;
	int bell;
	uint64_t handle;
	uint64_t told; /* of the ring's losses */
	uint64_t asked_at; /* the ring's losses when the daemon was last asked to report them */
	uint64_t lost;
	uint64_t unnamed; /* losses of a daemon that has ended without saying of which events */
	char origin[64]; /* of `missed` of all events; "": no counts yet */
	uint64_t epoch;
	int has_untold;
	struct ut_stream_events events;
	char (*comms)[SS_COMM_SIZE]; /* by thread; NULL: never opened */
	char error[256];
};

__attribute__((format(printf, 3, 4)))
static int fail(struct utracefs_stream *s, int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(s->error, sizeof(s->error), format, args);
	va_end(args);
	return error;
}

/* ---- requests and answers */

static void call_end(struct call *call)
{
	while (call->nr_received)
		close(call->received[--call->nr_received]);
	if (call->fd >= 0)
		close(call->fd);
	free(call->in);
	*call = (struct call){.fd = -1};
}

/* 0, or -errno. The request is short, and the socket was empty. */
static int call_send(struct call *call, const struct ut_out *out)
{
	ssize_t sent;

	if (out->failed)
		return -E2BIG;
	sent = send(call->fd, out->data, out->size, MSG_NOSIGNAL);
	return sent < 0 ? -errno : (size_t)sent == out->size ? 0 : -EAGAIN;
}

/* Receives without waiting. 0, -EAGAIN, -ECONNRESET, or another -errno. */
static int call_receive(struct call *call)
{
	struct ut_fds came;
	ssize_t got;

	if (call->in_size == call->in_room) {
		size_t room = 2 * call->in_room;
		uint8_t *in = room > MAX_ANSWER ? NULL : realloc(call->in, room);

		if (!in)
			return -ENOMEM;
		call->in = in;
		call->in_room = room;
	}
	got = ut_receive(call->fd, call->in + call->in_size, call->in_room - call->in_size, &came);
	if (got <= 0)
		return got ? (int)got : -ECONNRESET;
	for (unsigned i = 0; i < came.count; i++) {
		if (call->nr_received < 2)
			call->received[call->nr_received++] = came.fds[i];
		else
			close(came.fds[i]);
	}
	call->in_size += (size_t)got;
	return 0;
}

/* The answer to the request, whose bytes are valid until the next call: 0; -EAGAIN: not yet, before `due`; or
 * the daemon's errno, with its text. */
static int call_answer(struct utracefs_stream *s, struct call *call, struct ut_message *message, uint64_t due)
{
	for (;;) {
		ssize_t size = ut_object_size(call->in + call->done, call->in_size - call->done);
		int error = size < 0 ? -EPROTO : 0;

		if (size > 0) {
			error = ut_parse(call->in + call->done, (size_t)size, message);
			call->done += (size_t)size;
			if (!error && message->kind != UT_ERROR &&
			    (message->kind != UT_RESPONSE || message->msgid != call->msgid)) {
				if (++call->others < MAX_OTHERS)
					continue;
				error = -EPROTO;
			}
			if (!error && message->error)
				return fail(s, -message->error, "%s", message->text);
		} else if (!error) {
			memmove(call->in, call->in + call->done, call->in_size - call->done);
			call->in_size -= call->done;
			call->done = 0;
			error = call_receive(call);
			if (!error)
				continue;
		}
		if (error == -EAGAIN && ut_clock_ns() >= due)
			return fail(s, -ETIMEDOUT, "the daemon does not answer");
		if (error == -EPROTO)
			fail(s, error, "the daemon's answer is no message");
		else if (error == -ECONNRESET)
			fail(s, error, "the daemon closed the connection");
		else if (error && error != -EAGAIN)
			fail(s, error, "receiving the daemon's answer: %s", strerror(-error));
		return error;
	}
}

static int call_begin(struct utracefs_stream *s, struct call *call)
{
	struct ut_descriptor made;
	int error = ut_connect(&made, (const char(*)[UT_DIRECTORY])s->directories, "tracefs");

	if (error)
		return fail(s, error, "no daemon in %s%s%s: %s", s->directories[0],
			    s->directories[1][0] ? " or " : "", s->directories[1], strerror(-error));
	*call = (struct call){.fd = made.fd, .in = malloc(FIRST_ANSWER), .in_room = FIRST_ANSWER};
	return call->in ? 0 : fail(s, -ENOMEM, "no memory");
}

/* ---- the machine */

static void forget_connection(struct utracefs_stream *s)
{
	call_end(&s->call);
	ut_stream_ring_unmap(&s->ring);
	if (s->bell >= 0)
		close(s->bell);
	s->bell = -1;
}

static int give_up(struct utracefs_stream *s, int error)
{
	forget_connection(s);
	s->state = CLOSED;
	return error;
}

/* It could not be opened: again later, unless it will never be. */
static int not_now(struct utracefs_stream *s, int error)
{
	forget_connection(s);
	if (!s->is_again || !(error == -ENOENT || error == -ECONNREFUSED || error == -ECONNRESET ||
			      error == -EPIPE || error == -ETIMEDOUT || error == -EAGAIN))
		return give_up(s, error);
	s->state = AWAY;
	s->due = ut_clock_ns() + s->back_off;
	s->back_off = 2 * s->back_off < LAST_BACK_OFF_NS ? 2 * s->back_off : LAST_BACK_OFF_NS;
	return 0;
}

static int ask(struct utracefs_stream *s)
{
	int error = call_begin(s, &s->call);

	if (!error && (error = call_send(&s->call, &s->request)))
		fail(s, error, "asking for a stream: %s", strerror(-error));
	s->call.msgid = 1;
	s->state = ASKED;
	s->due = ut_clock_ns() + ANSWER_NS;
	return error;
}

static int ask_about_handle(struct utracefs_stream *s, const char *method)
{
	uint8_t request[REQUEST_BYTES];
	struct ut_out out = {.data = request, .room = sizeof(request)};

	ut_put_handle(&out, ++s->call.msgid, method, s->handle);
	return call_send(&s->call, &out);
}

static int take_ring(struct utracefs_stream *s, const struct ut_message *message)
{
	int error = -EPROTO;

	if (!ut_parse_number(message->result, "handle", &s->handle) && s->call.nr_received == 2)
		error = ut_stream_ring_map(&s->ring, s->call.received[0]);
	if (error)
		return fail(s, error, "the daemon sent no stream ring");
	close(s->call.received[0]);
	s->bell = s->call.received[1];
	s->call.nr_received = 0;
	fcntl(s->bell, F_SETFL, O_NONBLOCK); /* it should be; a read must not wait */
	s->told = s->asked_at = 0;
	memset(s->events.by_id, 0, UT_NR_IDS * sizeof(*s->events.by_id));
	return 0;
}

/* The count of one event, with that of the previous connection and the records since. An event that
 * had several formats is one, as in the daemon. Whether it is the same count, which has gone on. */
static int take_count(struct utracefs_stream *s, const char *full, size_t size, uint64_t count,
		       uint64_t epoch, int is_same)
{
	uint64_t got = 0, before = 0, before_epoch = s->epoch;
	struct ut_known_event *known;
	char name[1024], *colon;

	snprintf(name, sizeof(name), "%.*s", (int)size, full);
	colon = strchr(name, ':');
	if (!colon)
		return is_same;
	*colon = 0;
	known = ut_stream_events_named(&s->events, name, colon + 1);
	for (struct ut_known_event *one = known; one; one = ut_stream_events_older(one)) {
		got += one->got;
		if (one->has_missed) {
			before = one->missed;
			before_epoch = one->epoch;
		}
		one->missed = count;
		one->epoch = epoch;
		one->has_missed = 1;
	}
	is_same &= epoch == before_epoch;
	if (!is_same || before + got > count)
		before = got = 0;
	if (known && s->origin[0] && !s->has_filter && count > before + got) {
		known->untold = count - before - got;
		s->lost += known->untold;
		s->has_untold = 1;
	}
	return is_same;
}

/* Compares with the counts of the previous connection, and keeps these for the next. */
static int take_missed(struct utracefs_stream *s, const struct ut_message *message)
{
	struct ut_missed missed;
	int is_same, has_unnamed;

	if (ut_parse_missed(message->result, &missed))
		return fail(s, -EPROTO, "the daemon's counts of missed records are broken");
	is_same = missed.origin_size && strlen(s->origin) == missed.origin_size &&
		  !memcmp(s->origin, missed.origin, missed.origin_size);
	has_unnamed = is_same && !s->has_filter;
	while (missed.nr_events--) {
		uint64_t count, epoch;
		const char *name;
		size_t size;

		if (ut_next_missed(&missed.events, &name, &size, &count, &epoch))
			return fail(s, -EPROTO, "the daemon's counts of missed records are broken");
		has_unnamed &= take_count(s, name, size, count, epoch, is_same);
	}
	if (has_unnamed) { /* no event's count has begun again, after a kill */
		s->lost -= s->unnamed;
		s->unnamed = 0;
	}
	for (struct ut_known_event *known = s->events.all; known; known = known->next)
		known->got = 0;
	snprintf(s->origin, sizeof(s->origin), "%.*s", (int)missed.origin_size, missed.origin);
	s->epoch = missed.epoch;
	s->has_restarted = s->is_again;
	s->is_again = 1;
	s->back_off = FIRST_BACK_OFF_NS;
	s->state = OPEN;
	return 0;
}

/* One step of AWAY and ASKED. -EAGAIN: it has to wait. */
static int step(struct utracefs_stream *s)
{
	struct ut_message message;
	int error;

	if (s->state == AWAY) {
		if (ut_clock_ns() < s->due)
			return -EAGAIN;
		error = ask(s);
	} else {
		error = call_answer(s, &s->call, &message, s->due);
		if (error == -EAGAIN)
			return error;
		if (!error)
			error = take_ring(s, &message);
		if (!error)
			error = take_missed(s, &message);
	}
	return error ? not_now(s, error) : 0;
}

/* The doorbell's bytes are read. Whether the daemon has ended. */
static int is_over(const struct utracefs_stream *s)
{
	char rung[4096];
	ssize_t got;

	do
		got = read(s->bell, rung, sizeof(rung)); /* the rest, if there is one, wakes again */
	while (got < 0 && errno == EINTR);
	return got == 0;
}

/* Losses behind the last record are reported with the daemon's next step: asks for one. */
static void ask_for_lost(struct utracefs_stream *s)
{
	uint64_t lost = ss_load(&s->ring.header->lost);
	char answer[4096];

	if (lost == s->told || lost == s->asked_at)
		return;
	while (recv(s->call.fd, answer, sizeof(answer), MSG_DONTWAIT) > 0) {
	}
	s->asked_at = lost;
	ask_about_handle(s, "ready"); /* a daemon that has ended: the doorbell shows it */
}

/* ---- records */

static int take_lost(struct utracefs_stream *s, const struct ut_stream_entry *entry,
		     struct utracefs_stream_record *record)
{
	struct ut_known_event *known = s->events.by_id[entry->id];

	if (entry->length < SS_COMMON + 8)
		return 0;
	memcpy(&record->lost, entry->data + SS_COMMON, 8);
	s->told += record->lost;
	s->lost += record->lost;
	record->kind = UTRACEFS_STREAM_LOST;
	record->time_ns = entry->time_ns;
	if (known) {
		known->got += record->lost;
		known->event.lost += record->lost;
		record->event = &known->event;
	}
	return record->lost != 0;
}

/* Losses between two daemons, which are in no ring. Whether there are some. */
static int take_untold(struct utracefs_stream *s, struct utracefs_stream_record *record)
{
	memset(record, 0, sizeof(*record));
	record->comm = "";
	if (s->has_restarted) {
		s->has_restarted = 0;
		record->kind = UTRACEFS_STREAM_RESTART;
		return 1;
	}
	record->kind = UTRACEFS_STREAM_LOST;
	record->lost = s->unnamed;
	if (record->lost) {
		s->unnamed = 0;
		return 1;
	}
	for (struct ut_known_event *known = s->has_untold ? s->events.all : NULL; known; known = known->next)
		if (known->untold) {
			record->lost = known->untold;
			record->event = &known->event;
			known->event.lost += known->untold;
			known->untold = 0;
			return 1;
		}
	s->has_untold = 0;
	return 0;
}

/* 1, 0, or -errno. */
static int take_entry(struct utracefs_stream *s, struct utracefs_stream_record *record)
{
	struct ut_stream_entry entry;
	struct ut_known_event *known;
	char *comm;
	int got;

	while ((got = ut_stream_ring_next(&s->ring, &entry)) > 0) {
		if (__builtin_expect(entry.kind == SS_RECORD, 1)) {
			known = s->events.by_id[entry.id];
			if (!known)
				return fail(s, -EPROTO, "a record of an event that the daemon has not described");
			comm = s->comms[(uint32_t)entry.tid % NR_TIDS];
			known->got++;
			*record = (struct utracefs_stream_record){
				.kind = UTRACEFS_STREAM_RECORD, .cpu = entry.cpu, .time_ns = entry.time_ns,
				.pid = entry.pid, .tid = entry.tid, .comm = comm[0] ? comm : "<...>", .event = &known->event,
				.data = entry.data, .size = entry.length};
			return 1;
		}
		memset(record, 0, sizeof(*record));
		record->comm = "";
		if (entry.kind == SS_LOST) {
			if (take_lost(s, &entry, record))
				return 1;
		} else if (entry.kind == SS_COMM && entry.length >= SS_COMMON + SS_COMM_SIZE) {
			memcpy(s->comms[(uint32_t)entry.tid % NR_TIDS], entry.data + SS_COMMON, SS_COMM_SIZE - 1);
		} else if (entry.kind == SS_FORMAT) {
			got = ut_stream_events_describe(&s->events, entry.id, entry.data + SS_COMMON,
							entry.length - SS_COMMON);
			if (got)
				return fail(s, got, "the daemon's description of an event: %s", strerror(-got));
		}
	}
	return got < 0 ? fail(s, got, "the stream's ring is broken") : 0;
}

/* The ring of an ended daemon is empty. */
static int end_ring(struct utracefs_stream *s)
{
	uint64_t lost = ss_load(&s->ring.header->lost);

	if (lost > s->told) {
		s->unnamed += lost - s->told;
		s->lost += lost - s->told;
		s->told = lost;
		if (s->ends)
			return 0; /* once more, for these */
	}
	forget_connection(s);
	s->state = AWAY;
	s->due = ut_clock_ns();
	return s->ends ? give_up(s, fail(s, -ECONNRESET, "the daemon has ended")) : 0;
}

/* ---- the library */

struct utracefs_stream *utracefs_stream_new(const char *directory)
{
	struct utracefs_stream *s = calloc(1, sizeof(*s));

	if (s && ut_stream_events_init(&s->events)) {
		free(s);
		s = NULL;
	}
	if (!s)
		return NULL;
	ut_choose_directories(s->directories, directory);
	s->call.fd = s->bell = -1;
	return s;
}

void utracefs_stream_close(struct utracefs_stream *s)
{
	if (!s)
		return;
	forget_connection(s);
	ut_stream_events_free(&s->events);
	free(s->comms);
	free(s->request.data);
	free(s);
}

int utracefs_stream_open(struct utracefs_stream *s, const char *events, const char *filter,
			 const struct utracefs_stream_options *options)
{
	static const struct utracefs_stream_options plain;
	struct ut_stream_attr attr = {.events = events, .filter = filter};
	int error;

	s->error[0] = 0;
	options = options ? options : &plain;
	give_up(s, 0);
	attr.instance = options->instance;
	attr.size = options->ring_bytes ? options->ring_bytes : DEFAULT_RING;
	attr.watermark = options->watermark ? options->watermark : 1;
	free(s->request.data);
	s->request = (struct ut_out){.room = REQUEST_BYTES + 2 * strlen(events) + (filter ? strlen(filter) : 0) +
					     (attr.instance ? strlen(attr.instance) : 0)};
	s->request.data = malloc(s->request.room);
	if (!s->comms)
		s->comms = calloc(NR_TIDS, sizeof(*s->comms));
	if (!s->request.data || !s->comms)
		return fail(s, -ENOMEM, "no memory");
	ut_put_stream_open(&s->request, 1, &attr);
	s->has_filter = filter != NULL;
	s->ends = options->ends;
	s->is_again = s->has_restarted = s->has_untold = 0;
	s->unnamed = s->origin[0] = 0;
	s->back_off = FIRST_BACK_OFF_NS;
	s->due = 0;
	s->state = AWAY;
	while (s->state != OPEN) {
		error = step(s);
		if (error == -EAGAIN)
			poll(&(struct pollfd){s->call.fd, POLLIN, 0}, 1, 1000);
		else if (error)
			return error;
	}
	return 0;
}

int utracefs_stream_next(struct utracefs_stream *s, struct utracefs_stream_record *record)
{
	int got;

	for (;;) {
		switch (s->state) {
		case CLOSED:
			return fail(s, -EBADF, "the stream is not open");
		case AWAY:
		case ASKED:
			got = step(s);
			if (got)
				return got == -EAGAIN ? 0 : got;
			break;
		case OPEN:
			if ((s->has_restarted || s->unnamed || s->has_untold) && take_untold(s, record))
				return 1;
			got = take_entry(s, record);
			if (got)
				return got < 0 ? give_up(s, got) : 1;
			if (s->ring.is_over) {
				got = end_ring(s);
				if (got)
					return got;
			} else if (is_over(s)) {
				s->ring.is_over = 1;
			} else if (!ut_stream_ring_has(&s->ring)) {
				ask_for_lost(s);
				return 0;
			}
			break;
		}
	}
}

int utracefs_stream_fd(const struct utracefs_stream *s)
{
	return s->state == OPEN ? s->bell : s->call.fd;
}

int utracefs_stream_wait(struct utracefs_stream *s, int timeout_ms)
{
	struct pollfd polled = {utracefs_stream_fd(s), POLLIN, 0};
	uint64_t now = ut_clock_ns();
	int due_ms = timeout_ms, got;

	if (s->state == CLOSED)
		return fail(s, -EBADF, "the stream is not open");
	if (s->ring.is_over || ut_stream_ring_has(&s->ring))
		return 1;
	if (s->state == AWAY && s->due <= now)
		return 1;
	if (s->state == AWAY)
		due_ms = (int)((s->due - now) / 1000000) + 1;
	else if (s->state != OPEN)
		due_ms = 1000; /* there is an end of waiting for an answer */
	if (timeout_ms >= 0 && timeout_ms < due_ms)
		due_ms = timeout_ms;
	got = poll(&polled, 1, due_ms);
	if (got < 0)
		return fail(s, -errno, "poll: %s", strerror(errno));
	return got > 0 || due_ms != timeout_ms;
}

uint64_t utracefs_stream_lost(const struct utracefs_stream *s)
{
	uint64_t lost = s->ring.header ? ss_load(&s->ring.header->lost) : 0;

	return s->lost + (lost > s->told ? lost - s->told : 0);
}

int ut_stream_read_file(struct utracefs_stream *s, const char *path, uint64_t wait_ns, char **data,
			size_t *size)
{
	uint8_t request[REQUEST_BYTES + PATH_MAX];
	struct ut_out out = {.data = request, .room = sizeof(request)};
	const uint64_t until = ut_clock_ns() + wait_ns;
	struct call call = {.fd = -1};
	struct ut_message message;
	const char *content;
	size_t length;
	int error;

	s->error[0] = 0;
	error = call_begin(s, &call);
	if (!error) {
		ut_put_about(&out, 0, "read_file", path);
		error = call_send(&call, &out);
		while (!error && (error = call_answer(s, &call, &message, until)) == -EAGAIN)
			error = poll(&(struct pollfd){call.fd, POLLIN, 0}, 1, 1000) < 0 && errno != EINTR ? -errno : 0;
	}
	if (!error && ut_parse_bytes(message.result, &content, &length))
		error = fail(s, -EPROTO, "the daemon's answer has no content");
	if (!error && !(*data = malloc(length + 1)))
		error = fail(s, -ENOMEM, "no memory");
	if (!error) {
		memcpy(*data, content, length);
		(*data)[length] = 0;
		if (size)
			*size = length;
	}
	call_end(&call);
	return error;
}

int utracefs_stream_read_file(struct utracefs_stream *s, const char *path, char **data, size_t *size)
{
	return ut_stream_read_file(s, path, ANSWER_NS, data, size);
}

const char *utracefs_stream_error(const struct utracefs_stream *s)
{
	return s->error;
}
