/*
 * The messages of the data socket (docs/protocol.md sections 2, 3 and 5) as bytes. No I/O, no allocation, no
 * state.
 *
 * Writing: a request is appended to a buffer completely or not at all; `ut_out.failed` reports that one did
 * not fit. Reading: ut_object_size gives the size of the next message, ut_parse its content. The daemon's
 * values are trusted unless they could crash the program: every length is checked against the bytes that are
 * there.
 */
#ifndef UTRACEFS_WIRE_H
#define UTRACEFS_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define UT_NO_TOKEN UINT64_MAX
#define UT_MAX_LOCS 128u    /* more location words than 511 bytes can declare */

struct ut_out {
	uint8_t *data;
	size_t size;
	size_t room;
	size_t began; /* the last message */
	int failed;
};

/* One location word of a payload: its position, and how its data is found and checked. */
struct ut_loc {
	uint32_t offset;
	uint32_t flags;
};
#define UT_LOC_REL 1u  /* counts from the byte after the word, not from the beginning of the entry */
#define UT_LOC_CHAR 2u /* the data ends in NUL */

/* The answer to a registration. `enabled` only with a token, `write_index` only without. */
struct ut_registered {
	uint32_t status_index;
	uint32_t write_index;
	uint32_t id;	   /* the trace event's */
	uint32_t event_id; /* to be sent with further registrations; 0: nothing */
	uint32_t size;	   /* bytes of the fixed fields */
	uint32_t nr_locs;
	uint32_t enabled;
	struct ut_loc locs[UT_MAX_LOCS];
};

/* Bytes of msgpack within a message. */
struct ut_in {
	const uint8_t *at;
	const uint8_t *end;
};

enum ut_kind { UT_RESPONSE, UT_ENABLERS_CHANGED, UT_WRITE_ERROR, UT_ERROR, UT_UNKNOWN };

struct ut_message {
	enum ut_kind kind;
	uint32_t msgid;		/* UT_RESPONSE */
	int error;		/* UT_RESPONSE: 0 or an errno; UT_WRITE_ERROR, UT_ERROR: the errno */
	char text[160];		/* of the error, cut to this */
	struct ut_in result;	/* UT_RESPONSE without error */
	uint64_t seq;		/* UT_ENABLERS_CHANGED */
	uint32_t nr_pairs;	/* UT_ENABLERS_CHANGED: to be read from `result` with ut_next_pair */
	int64_t write_index;	/* UT_WRITE_ERROR */
	uint64_t count;		/* UT_WRITE_ERROR */
};

/* A request without params: mmap_status, sync. */
void ut_put_plain(struct ut_out *out, uint32_t msgid, const void *method);
void ut_put_notify(struct ut_out *out, uint32_t msgid);
void ut_put_adopt_ring(struct ut_out *out, uint32_t msgid);
/* event_id: of an earlier registration; 0: none is needed. token: UT_NO_TOKEN asks for a write index. number:
 * the one wanted; UINT32_MAX: any. */
void ut_put_register(struct ut_out *out, uint32_t msgid, const char *command, uint32_t flags,
		     uint32_t event_id, uint64_t token, uint32_t number);
void ut_put_delete(struct ut_out *out, uint32_t msgid, const void *name);
/* A request whose only param is a text, or the number of something open. */
void ut_put_about(struct ut_out *out, uint32_t msgid, const char *method, const char *text);
void ut_put_handle(struct ut_out *out, uint32_t msgid, const char *method, uint64_t handle);
struct ut_stream_attr {
	const char *events; /* separated by spaces */
	const char *filter, *instance; /* NULL: none */
	uint32_t size, watermark;
};
void ut_put_stream_open(struct ut_out *out, uint32_t msgid, const struct ut_stream_attr *attr);
/* A record in pieces. */
struct ut_record {
	const struct iovec *iov;
	int n;
	size_t skip; /* bytes of the first that are not payload */
	size_t size; /* of the payload */
	uint32_t write_index;
};
/* record: a struct ut_record. */
void ut_put_write(struct ut_out *out, uint32_t msgid, const void *record);
/* token: a uint64_t. */
void ut_put_unregister(struct ut_out *out, uint32_t msgid, const void *token);
/* A notification. */
void ut_put_enablers_written(struct ut_out *out, uint64_t seq);

/* Bytes of the object that begins at `data`; 0: it is incomplete; -EPROTO: none. */
ssize_t ut_object_size(const uint8_t *data, size_t size);
/* One complete object. 0 or -EPROTO. Unknown messages are UT_UNKNOWN. */
int ut_parse(const uint8_t *data, size_t size, struct ut_message *message);
/* Each is 0, or -EPROTO if it is no such result. Unknown members are skipped. */

/* The number that is the member `name` of a map; -ENOENT: there is none. */
int ut_parse_number(struct ut_in result, const char *name, uint64_t *value);
int ut_parse_bytes(struct ut_in result, const char **data, size_t *size);
/* In the result of stream_open. `origin_size` 0: the daemon is older, and has none. `epoch`: of events that
 * are not among `nr_events`, which ut_next_missed reads. */
struct ut_missed {
	const char *origin;
	size_t origin_size;
	uint64_t epoch, nr_events;
	struct ut_in events;
};
int ut_parse_missed(struct ut_in result, struct ut_missed *missed);
int ut_next_missed(struct ut_in *in, const char **name, size_t *size, uint64_t *count, uint64_t *epoch);
int ut_parse_registered(struct ut_in result, int with_token, struct ut_registered *registered);
/* The next of `nr_pairs`: a token and the new value of its bit. 0 or -EPROTO. */
int ut_next_pair(struct ut_in *in, uint64_t *token, int *on);

#endif
