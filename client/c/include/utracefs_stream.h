/*
 * utracefs_stream: the records of a running daemon, live, for programs in C.
 *
 *     struct utracefs_stream *stream = utracefs_stream_new(NULL);
 *     struct utracefs_stream_record record;
 *     int got = utracefs_stream_open(stream, "http_*", "status >= 500", NULL);
 *
 *     while (got >= 0 && (got = utracefs_stream_wait(stream, -1)) >= 0)
 *             while ((got = utracefs_stream_next(stream, &record)) > 0)
 *                     handle(&record);
 *     fprintf(stderr, "%s\n", utracefs_stream_error(stream));
 *     utracefs_stream_close(stream);
 *
 * The daemon copies each record that fits into memory which this process maps; reading one is no system call.
 * A reader that is too slow loses records, which are counted, and delays neither programs nor the daemon.
 *
 * No thread, no signal, no global state. A stream is used by one thread at a time; different streams are
 * independent. A forked child must not use its parent's. Functions return 0 or more, or a negative errno;
 * utracefs_stream_error has its text. All data of the daemon are checked, also while it changes them.
 *
 * Link with -lutracefs, or with libutracefs.a and -pthread.
 */
#ifndef UTRACEFS_STREAM_H
#define UTRACEFS_STREAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct utracefs_stream;

/* An event of a stream. It and its texts are valid until the stream is closed. After a restart of the daemon
 * an event of the same name and fields is the same one, with another id, perhaps. */
struct utracefs_stream_event {
	const char *system; /* "user_events" */
	const char *name;
	const char *format; /* the text of the event's file `format` */
	uint64_t lost;	    /* records, as far as utracefs_stream_next reported them */
	uint32_t id;
	void *user; /* the caller's; at first NULL */
};

enum utracefs_stream_kind {
	UTRACEFS_STREAM_RECORD,
	UTRACEFS_STREAM_LOST,	 /* `lost` records of this event are lost in this place */
	UTRACEFS_STREAM_RESTART, /* the daemon has ended, and the stream continues with the next one */
};

struct utracefs_stream_record {
	enum utracefs_stream_kind kind;
	uint16_t cpu;
	uint64_t time_ns; /* CLOCK_MONOTONIC */
	int32_t pid;	  /* of the process */
	int32_t tid;
	const char *comm; /* the thread's name, at most 15 bytes; "<...>" if it is not known */
	/* NULL for UTRACEFS_STREAM_RESTART. */
	struct utracefs_stream_event *event;
	/* Of UTRACEFS_STREAM_RECORD: the fields, at the offsets in `format`. The first 8 bytes are u16 id, two
	 * zeros, i32 tid; the data of location words is behind the fixed fields. Any alignment. It is memory of
	 * the daemon's: a value that is checked must be read once. */
	const uint8_t *data;
	uint32_t size;
	uint64_t lost; /* of UTRACEFS_STREAM_LOST */
};

/* All members may be 0. */
struct utracefs_stream_options {
	const char *instance; /* only events that are enabled in this instance; "": in the top one */
	uint32_t ring_bytes;  /* a power of two from 256 KiB to 128 MiB; 0: 4 MiB */
	uint32_t watermark;   /* unread bytes at which utracefs_stream_fd becomes readable; 0: 1 */
	int ends;	      /* not 0: with the daemon. Else the stream waits for the next one. */
};

/* directory: of the daemon's sockets; NULL: UTRACEFS_DIR, else the user's, else the system's. No connection
 * yet. NULL: no memory. */
struct utracefs_stream *utracefs_stream_new(const char *directory);
/* NULL is allowed. */
void utracefs_stream_close(struct utracefs_stream *stream);

/* Connects, at most 30 s, and asks for the records of events from now on. If a stream is open it ends first;
 * records between the two are not counted.
 *
 * events: names or patterns, as "user_events:http_*" or "http_request", separated by spaces, also of events
 * that are registered later. filter: as in an event's file `filter`; events for which it is invalid are left
 * out; NULL: none. options: NULL: all 0.
 *
 * -ENOENT or -ECONNREFUSED: no daemon. -EACCES: not this user's. -EINVAL: the filter; and others. */
int utracefs_stream_open(struct utracefs_stream *stream, const char *events, const char *filter,
			 const struct utracefs_stream_options *options);

/* The next record: 1, or 0 if there is none now. It is valid until the next call for this stream. While the
 * daemon is away, this looks for the next one, at most once in 20 ms, then seldomer, up to once in a second.
 *
 * -ECONNRESET: the daemon has ended, all its records are read, and options.ends. -EPROTO: its data are
 * invalid. After an error the stream is not open. */
int utracefs_stream_next(struct utracefs_stream *stream, struct utracefs_stream_record *record);

/* Waits, at most timeout_ms (-1: forever), until utracefs_stream_next has something to do: 1, or 0 after this
 * time. -EINTR: a signal. */
int utracefs_stream_wait(struct utracefs_stream *stream, int timeout_ms);
/* For programs that poll by themselves, once utracefs_stream_next has returned 0: readable when there are
 * records. It may be another one after each utracefs_stream_next; -1 while the daemon is away. */
int utracefs_stream_fd(const struct utracefs_stream *stream);

/* Records that the stream has lost, reported or not yet. */
uint64_t utracefs_stream_lost(const struct utracefs_stream *stream);

/* The whole content of a file of the daemon's tracefs, as "events/user_events/http_request/format"; connects
 * if need be, also without utracefs_stream_open. *data gets a block for free(3), with a NUL behind its `size`
 * bytes. size: may be NULL. */
int utracefs_stream_read_file(struct utracefs_stream *stream, const char *path, char **data, size_t *size);

/* Why the last call failed: "no such instance"; "" if none did. Valid until the next call. */
const char *utracefs_stream_error(const struct utracefs_stream *stream);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
