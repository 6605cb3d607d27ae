/*
 * utracefs: user_events for programs in C.
 *
 *     #include <utracefs.h>
 *
 *     UTRACEFS_EVENT(http_request, (u16, status), (u64, bytes), (string, path));
 *
 *     UTRACEFS_EMIT(http_request, 200, 1834, "/index.html");
 *
 * declares an event that tools see as `user_events:http_request`, and writes a record of it if a consumer is
 * attached. If none is attached, UTRACEFS_EMIT is a load, a compare and a branch that is not taken: its
 * arguments are not evaluated.
 *
 * No function here blocks, crashes or changes the program: without a daemon, and between two daemons, events
 * are off; until a daemon's first answer they count as on. UTRACEFS_EMIT and utracefs_emit_iov may be called
 * from any thread and from signal handlers. A forked child may emit at once; its first record is complete.
 * errno keeps its value.
 *
 * The first declared event starts the library's only thread, with all signals blocked. Environment:
 * UTRACEFS_DIR, UTRACEFS_DATA_RING, UTRACEFS_RING_KB as for the Python library.
 *
 * Link with -lutracefs, or with libutracefs.a and -pthread. Linux, GCC or Clang.
 */
#ifndef UTRACEFS_H
#define UTRACEFS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#ifdef __cplusplus
/* These warnings concern valid C; a C++ program may have them on as errors. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#pragma GCC diagnostic ignored "-Wshadow"
extern "C" {
#endif
#pragma GCC visibility push(default)

/* An event. All members are internal; UTRACEFS_EVENT and utracefs_declare set them. */
struct utracefs_event {
	const volatile unsigned char *state; /* never NULL */
	const char *command;
	void *registration;
	struct utracefs_event *next;
	unsigned flags;
	unsigned reserved[3];
};

/* flags */
#define UTRACEFS_PERSIST 1u	  /* the event stays without references; for administrators of the daemon */
#define UTRACEFS_MULTI_FORMAT 2u /* several events of one name with different fields */

/* ---- events that are declared while the program runs */

/* `command` as in the kernel: "name type field[; type field ...]", at most 511 bytes. The event lives
 * until the end of the process; the same command and flags return the same event. NULL: no memory, or too
 * long. */
struct utracefs_event *utracefs_declare(const char *command, unsigned flags);

/* Whether a consumer is attached, or the daemon has not answered yet: then it refuses the record if none is.
 * Never waits. Not zero: make a record. With utracefs_event_error() == 0: a consumer is attached. */
static inline int utracefs_enabled(const struct utracefs_event *event);

/* Emit a record. The bytes of all pieces are the payload: fields in their order without padding,
 * little-endian, then the data of location words. 0, or -EINVAL: shorter than the fixed fields, -EBADF: no
 * consumer is attached, -EFAULT: a location word points outside or its text does not end in NUL. A record
 * for which there is no space is lost and counted. */
int utracefs_emit_iov(struct utracefs_event *event, const struct iovec *iov, int n);

/* ---- all events */

/* The event's state: 0 registered, EINPROGRESS not answered yet, ENOTCONN no daemon, otherwise the
 * daemon's reason to refuse it; its text is then in `text`, if that is not NULL. */
int utracefs_event_error(const struct utracefs_event *event, char *text, size_t size);

/* `call` gets the text of each warning, once: that an event is off because the daemon refuses it, and the
 * like. It is called in the library's thread, which has 64 KiB of stack and all signals blocked. Before, and
 * for NULL, standard error gets a line. */
void utracefs_on_warning(void (*call)(const char *text));

/* Records of this event in this process. */
struct utracefs_event_stats {
	uint64_t lost;	  /* no space, or the daemon ended */
	uint64_t refused; /* longer than 65,529 bytes; in C++ a number out of its field's range; or sent over
			   * the socket, and not taken: mostly, the event was disabled meanwhile */
};
void utracefs_event_stats(const struct utracefs_event *event, struct utracefs_event_stats *stats);

/* Wait until all records emitted before have reached the consumers: 0, or -ETIMEDOUT, -ENOTCONN. Without a
 * daemon it waits for one only if there are records for it; with nothing emitted it returns at once,
 * connected or not. Not needed at the end of a process: the daemon takes in all emitted records. */
int utracefs_flush(unsigned timeout_ms);

/* Removes all registrations; events are off permanently. */
void utracefs_close(void);

/* ---- spans: UTRACEFS_SPANS, UTRACEFS_SPAN */

struct utracefs_span {
	uint64_t id;	    /* 0: off */
	uint64_t parent_id; /* of the span around it in this thread; 0: none */
	uint64_t begin_ns;
	const char *error;  /* for the record of the end; NULL: none */
	struct utracefs_event *end_event;
};
/* From here on it is the span around others of this thread. end_event: NAME_end. */
struct utracefs_span utracefs_span_begin(struct utracefs_event *end_event);
/* Does nothing if it is off, or has ended. */
void utracefs_span_end(struct utracefs_span *span);
/* A new number: random, not 0, at most 63 bits. Never waits; also in signal handlers. */
uint64_t utracefs_new_span_id(void);

/* ---- for the macros */

struct utracefs_reserved {
	unsigned char *payload;
	void *internal[4];
};
void utracefs_attach(struct utracefs_event *event);
void utracefs_detach(struct utracefs_event *event);
/* Space for `size` bytes, not zero if there is; fill all of it and commit at once. In between do nothing
 * that can fail or wait. */
/* Not bound at the first call, which takes 3 KiB of the stack. (Clang has only the linker's -z now.) */
#ifdef __clang__
#define UTRACEFS_BOUND_EARLY
#else
#define UTRACEFS_BOUND_EARLY __attribute__((noplt))
#endif
int utracefs_reserve(struct utracefs_event *event, size_t size, struct utracefs_reserved *reserved)
	UTRACEFS_BOUND_EARLY;
void utracefs_commit(struct utracefs_reserved *reserved) UTRACEFS_BOUND_EARLY;
/* In place of a record: counts a value that does not fit `field` as refused. what: "was out of range". */
void utracefs_refuse(struct utracefs_event *event, const char *field, const char *what);
int utracefs_is_wanted(const struct utracefs_event *event) __attribute__((cold)) UTRACEFS_BOUND_EARLY;
#pragma GCC visibility pop

#define UTRACEFS_IS_PENDING 0x40u

static inline int utracefs_enabled(const struct utracefs_event *event)
{
	/* Relaxed order: during a change some more or fewer records are equally correct. */
	unsigned char state = __atomic_load_n(__atomic_load_n(&event->state, __ATOMIC_RELAXED), __ATOMIC_RELAXED);

	if (__builtin_expect(state == 0, 1))
		return 0;
	return state != UTRACEFS_IS_PENDING || utracefs_is_wanted(event);
}

/* Bytes for a field of type `bytes`. */
struct utracefs_bytes {
	const void *data;
	size_t size;
};

static inline struct utracefs_bytes utracefs_bytes(const void *data, size_t size)
{
	struct utracefs_bytes bytes;

	bytes.data = data;
	bytes.size = size;
	return bytes;
}

#ifdef __cplusplus
}
#endif

/* Write a field's bytes in front of `*at`, and data of dynamic fields at `*data`; both are advanced. */
static inline void utracefs_put_u8(unsigned char **at, uint64_t value)
{
	*(*at)++ = (unsigned char)value;
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define UTRACEFS_LITTLE(bits, value) ((uint##bits##_t)(value))
#else
#define UTRACEFS_LITTLE(bits, value) __builtin_bswap##bits((uint##bits##_t)(value))
#endif

#define UTRACEFS_DEFINE_PUT(bits) \
	static inline void utracefs_put_u##bits(unsigned char **at, uint64_t value) \
	{ \
		uint##bits##_t little = UTRACEFS_LITTLE(bits, value); \
 \
		memcpy(*at, &little, sizeof(little)); \
		*at += sizeof(little); \
	}
UTRACEFS_DEFINE_PUT(16)
UTRACEFS_DEFINE_PUT(32)
UTRACEFS_DEFINE_PUT(64)

#define UTRACEFS_DEFINE_PUT_REAL(type, bits) \
	static inline void utracefs_put_##type(unsigned char **at, type value) \
	{ \
		uint##bits##_t same; \
 \
		memcpy(&same, &value, sizeof(same)); \
		utracefs_put_u##bits(at, same); \
	}
UTRACEFS_DEFINE_PUT_REAL(float, 32)
UTRACEFS_DEFINE_PUT_REAL(double, 64)

/* A fixed text: a longer one is cut, the last byte is always NUL. */
static inline void utracefs_put_chars(unsigned char **at, const char *text, size_t size)
{
	const void *end = text ? memchr(text, 0, size - 1) : NULL;
	size_t length = end ? (size_t)((const char *)end - text) : text ? size - 1 : 0;

	memcpy(*at, text ? text : "", length);
	memset(*at + length, 0, size - length);
	*at += size;
}

static inline void utracefs_put_struct(unsigned char **at, const void *from, size_t size)
{
	memcpy(*at, from, size);
	*at += size;
}

/* A `__rel_loc` word, which counts from the byte behind it, and its data. */
static inline void utracefs_put_rel(unsigned char **at, unsigned char **data, const void *from, size_t size)
{
	size_t offset = (size_t)(*data - (*at + 4));

	utracefs_put_u32(at, (uint64_t)size << 16 | offset);
	if (size)
		memcpy(*data, from, size);
	*data += size;
}

/* Another thread may change the text during the copy, so the NUL is written separately. */
static inline void utracefs_put_string(unsigned char **at, unsigned char **data, const char *text,
				       size_t size)
{
	utracefs_put_rel(at, data, text ? text : "", size);
	(*data)[-1] = 0;
}

/* Bytes of data; the limit of a location word. */
#define UTRACEFS_MAX_DYNAMIC 65535u

static inline size_t utracefs_string_size(const char *text)
{
	size_t size = text ? strlen(text) : 0;

	return (size < UTRACEFS_MAX_DYNAMIC ? size : UTRACEFS_MAX_DYNAMIC - 1) + 1;
}

#ifndef __cplusplus

/*
 * UTRACEFS_EVENT(NAME, FIELD...): an event that is registered, without waiting, when the program (or the
 * library that declares it) is loaded. It may be in a header: the same declaration in several files is one
 * event. NAME becomes a `static struct utracefs_event`. Up to 24 fields:
 *
 *     FIELD                         kernel's type               argument of UTRACEFS_EMIT
 *     (u8, name) ... (u64, name)    u8 ... u64                  unsigned integer
 *     (s8, name) ... (s64, name)    s8 ... s64                  signed integer
 *     (double, name)                struct double, 8 bytes      double
 *     (float, name)                 struct float, 4 bytes       float
 *     (bool, name)                  struct bool, 1 byte         _Bool
 *     (string, name)                __rel_loc char[]            const char *; NULL is ""
 *     (bytes, name)                 __rel_loc u8[]              utracefs_bytes(data, size)
 *     (chars, name, 16)             char[16]                    const char *; cut to 15 bytes and NUL
 *     (structure, name, tag, 8)     struct tag, 8 bytes         const struct tag *
 *     (array, name, u32, 4, 16)     struct u32_4, 16 bytes      const uint32_t[4]; also of the types above
 *
 * UTRACEFS_EMIT(NAME, ARGUMENT...): a record, if utracefs_enabled(&NAME). Arguments are evaluated only then;
 * the compiler checks them like those of a function utracefs_emit_NAME with these parameters.
 */
#define UTRACEFS_EVENT(name, ...) UTRACEFS_EVENT_FLAGS(name, 0, __VA_ARGS__)

/* The same with flags: UTRACEFS_PERSIST, UTRACEFS_MULTI_FORMAT. */
#define UTRACEFS_EVENT_FLAGS(name, event_flags, ...) \
	UTRACEFS_DEFINE_EVENT(name, event_flags, #name UTRACEFS_EACH(TEXT, __VA_ARGS__)) \
	UTRACEFS_EACH(CHECK, __VA_ARGS__) \
	static inline __attribute__((unused)) void utracefs_emit_##name( \
		struct utracefs_event *utracefs_event_ UTRACEFS_EACH(PARAMETER, __VA_ARGS__)) \
	{ \
		size_t utracefs_fixed_ = 0 UTRACEFS_EACH(FIXED, __VA_ARGS__); \
		size_t utracefs_size_ = utracefs_fixed_; \
		struct utracefs_reserved utracefs_reserved_; \
		unsigned char *utracefs_at_, *utracefs_data_; \
 \
		UTRACEFS_EACH(LENGTH, __VA_ARGS__) \
		if (!utracefs_reserve(utracefs_event_, utracefs_size_, &utracefs_reserved_)) \
			return; \
		utracefs_at_ = utracefs_reserved_.payload; \
		utracefs_data_ = utracefs_at_ + utracefs_fixed_; \
		(void)utracefs_data_; \
		UTRACEFS_EACH(PUT, __VA_ARGS__) \
		utracefs_commit(&utracefs_reserved_); \
	} \
	struct utracefs_event /* takes the semicolon */

/* An event without fields. */
#define UTRACEFS_EVENT_PLAIN(name) \
	UTRACEFS_DEFINE_EVENT(name, 0, #name) \
	static inline __attribute__((unused)) void utracefs_emit_##name(struct utracefs_event *event) \
	{ \
		utracefs_emit_iov(event, NULL, 0); \
	} \
	struct utracefs_event

/* (`&__VA_ARGS__` becomes `&NAME, ARGUMENT...`: standard C has no other way to allow no argument.) */
#define UTRACEFS_EMIT(...) \
	do { \
		if (__builtin_expect(utracefs_enabled(&UTRACEFS_FIRST(__VA_ARGS__, 0)), 0)) \
			UTRACEFS_CAT(utracefs_emit_, UTRACEFS_FIRST(__VA_ARGS__, 0))(&__VA_ARGS__); \
	} while (0)
#define UTRACEFS_FIRST(first, ...) first

/*
 * UTRACEFS_SPANS(NAME, FIELD...): two events, NAME_begin with span_id, parent_id and the fields (at most 22),
 * and NAME_end with span_id, parent_id, duration_ns and error. UTRACEFS_SPANS_PLAIN(NAME): without fields.
 *
 * UTRACEFS_SPAN(NAME, ARGUMENT...) in a block: a span to the end of the block, also by return, break or goto.
 * Off it is two loads; arguments are evaluated only while one of the events is on.
 */
#define UTRACEFS_SPANS(name, ...) \
	UTRACEFS_EVENT(name##_begin, (u64, span_id), (u64, parent_id), __VA_ARGS__); \
	UTRACEFS_DEFINE_SPANS(name, (UTRACEFS_EACH(PARAMETER, __VA_ARGS__)), (UTRACEFS_EACH(ARGUMENT, __VA_ARGS__)))

#define UTRACEFS_SPANS_PLAIN(name) \
	UTRACEFS_EVENT(name##_begin, (u64, span_id), (u64, parent_id)); \
	UTRACEFS_DEFINE_SPANS(name, (), ())

/* parameters, arguments: of its fields, each behind a comma. */
#define UTRACEFS_DEFINE_SPANS(name, parameters, arguments) \
	UTRACEFS_EVENT(name##_end, (u64, span_id), (u64, parent_id), (u64, duration_ns), (string, error)); \
	static const struct utracefs_spans name __attribute__((unused)) = {&name##_begin, &name##_end}; \
	static inline __attribute__((unused)) struct utracefs_span utracefs_begin_##name( \
		const struct utracefs_spans *utracefs_spans_ UTRACEFS_BARE parameters) \
	{ \
		struct utracefs_span utracefs_span_ = utracefs_span_begin(utracefs_spans_->end); \
 \
		if (utracefs_enabled(&name##_begin)) \
			utracefs_emit_##name##_begin(&name##_begin, utracefs_span_.id, \
						     utracefs_span_.parent_id UTRACEFS_BARE arguments); \
		return utracefs_span_; \
	} \
	struct utracefs_spans /* takes the semicolon */

struct utracefs_spans {
	struct utracefs_event *begin, *end;
};

#define UTRACEFS_SPAN(...) \
	struct utracefs_span UTRACEFS_CAT(utracefs_span_, __LINE__) \
		__attribute__((cleanup(utracefs_span_end), unused)) = \
			UTRACEFS_SPANS_ARE_ON(UTRACEFS_FIRST(__VA_ARGS__, 0)) \
				? UTRACEFS_CAT(utracefs_begin_, UTRACEFS_FIRST(__VA_ARGS__, 0))(&__VA_ARGS__) \
				: utracefs_no_span()
#define UTRACEFS_SPANS_ARE_ON(name) \
	__builtin_expect(utracefs_enabled(name.begin) || utracefs_enabled(name.end), 0)

static inline struct utracefs_span utracefs_no_span(void)
{
	struct utracefs_span none = {0, 0, 0, NULL, NULL};

	return none;
}

/* Runs before other constructors and after other destructors, because those may emit. */
#define UTRACEFS_DEFINE_EVENT(name, event_flags, text) \
	UTRACEFS_ASSERT(sizeof(text) <= 512, "the declaration of " #name " has more than 511 bytes") \
	static const unsigned char utracefs_off_##name = 0; \
	static struct utracefs_event name = {&utracefs_off_##name, text, NULL, NULL, event_flags, {0, 0, 0}}; \
	static __attribute__((constructor(101))) void utracefs_attach_##name(void) \
	{ \
		utracefs_attach(&name); \
	} \
	static __attribute__((destructor(101))) void utracefs_detach_##name(void) \
	{ \
		utracefs_detach(&name); \
	}

/* Types: kind of field, name in a declaration, C type, bytes, what writes it. Other words have no `~,`. */
#define UTRACEFS_TYPE_u8 ~, number_, "u8", uint8_t, 1, utracefs_put_u8
#define UTRACEFS_TYPE_u16 ~, number_, "u16", uint16_t, 2, utracefs_put_u16
#define UTRACEFS_TYPE_u32 ~, number_, "u32", uint32_t, 4, utracefs_put_u32
#define UTRACEFS_TYPE_u64 ~, number_, "u64", uint64_t, 8, utracefs_put_u64
#define UTRACEFS_TYPE_s8 ~, number_, "s8", int8_t, 1, utracefs_put_u8
#define UTRACEFS_TYPE_s16 ~, number_, "s16", int16_t, 2, utracefs_put_u16
#define UTRACEFS_TYPE_s32 ~, number_, "s32", int32_t, 4, utracefs_put_u32
#define UTRACEFS_TYPE_s64 ~, number_, "s64", int64_t, 8, utracefs_put_u64
#define UTRACEFS_TYPE_double ~, real_, "double", double, 8, utracefs_put_double
#define UTRACEFS_TYPE_float ~, real_, "float", float, 4, utracefs_put_float
#define UTRACEFS_TYPE_bool ~, real_, "bool", _Bool, 1, utracefs_put_u8
#define UTRACEFS_TYPE__Bool UTRACEFS_TYPE_bool /* <stdbool.h> makes _Bool of bool. */
#define UTRACEFS_TYPE_string ~, string_
#define UTRACEFS_TYPE_bytes ~, bytes_
#define UTRACEFS_TYPE_chars ~, chars_
#define UTRACEFS_TYPE_structure ~, structure_
#define UTRACEFS_TYPE_array ~, array_
#define UTRACEFS_NAME(type) UTRACEFS_COLUMNS(name_, UTRACEFS_TYPE_##type, ~)
#define UTRACEFS_C(type) UTRACEFS_COLUMNS(c_, UTRACEFS_TYPE_##type, ~)
#define UTRACEFS_SIZE(type) UTRACEFS_COLUMNS(size_, UTRACEFS_TYPE_##type, ~)
#define UTRACEFS_WRITE(type) UTRACEFS_COLUMNS(write_, UTRACEFS_TYPE_##type, ~)
#define UTRACEFS_COLUMNS(column, ...) UTRACEFS_COLUMN_##column(__VA_ARGS__)
#define UTRACEFS_COLUMN_name_(mark, kind, name, ...) name
#define UTRACEFS_COLUMN_c_(mark, kind, name, c, ...) c
#define UTRACEFS_COLUMN_size_(mark, kind, name, c, size, ...) size
#define UTRACEFS_COLUMN_write_(mark, kind, name, c, size, write, ...) write

/* Each use of a field, for each kind; bare_ is none. */
#define UTRACEFS_TEXT_number_(type, n) UTRACEFS_NAME(type) " " #n
#define UTRACEFS_TEXT_real_(type, n) \
	"struct " UTRACEFS_NAME(type) " " #n " " UTRACEFS_STRING(UTRACEFS_SIZE(type))
#define UTRACEFS_TEXT_string_(type, n) "__rel_loc char[] " #n
#define UTRACEFS_TEXT_bytes_(type, n) "__rel_loc u8[] " #n
#define UTRACEFS_TEXT_chars_(type, n, count) "char[" #count "] " #n
#define UTRACEFS_TEXT_structure_(type, n, tag, count) "struct " #tag " " #n " " #count
#define UTRACEFS_TEXT_array_(type, n, element, count, size) \
	"struct " UTRACEFS_NAME(element) "_" #count " " #n " " #size
#define UTRACEFS_TEXT_unknown_(...) ""
#define UTRACEFS_TEXT_bare_(field) ""
#define UTRACEFS_STRING(number) UTRACEFS_STRING_(number)
#define UTRACEFS_STRING_(number) #number

/* Whether the text of a number is its decimal digits: 4, not 0x4, 4u or (4), which would be another type. */
#define UTRACEFS_IS_DECIMAL(number) \
	((number) >= (sizeof(#number) == 2 ? 1 : sizeof(#number) == 3 ? 10 : sizeof(#number) == 4 ? 100 : \
		      sizeof(#number) == 5 ? 1000 : 10000))

#define UTRACEFS_ASSERT(holds, text) __extension__ _Static_assert(holds, text);
#define UTRACEFS_CHECK_number_(type, n) \
	UTRACEFS_ASSERT(sizeof(#n) > 1, "a field has a name: (" #type ", name)")
#define UTRACEFS_CHECK_real_ UTRACEFS_CHECK_number_
#define UTRACEFS_CHECK_string_ UTRACEFS_CHECK_number_
#define UTRACEFS_CHECK_bytes_ UTRACEFS_CHECK_number_
#define UTRACEFS_CHECK_chars_(type, n, count) \
	UTRACEFS_ASSERT((count) >= 1 && (count) <= 1024, "char[N]: N is 1 to 1024")
#define UTRACEFS_CHECK_structure_(type, n, tag, count) \
	UTRACEFS_ASSERT(sizeof(struct tag) == (count), "sizeof(struct " #tag ")")
#define UTRACEFS_CHECK_array_(type, n, element, count, size) \
	UTRACEFS_ASSERT((count) >= 1 && sizeof(UTRACEFS_C(element)[count]) == (size), \
			"the bytes of " #count " " #element) \
	UTRACEFS_ASSERT(UTRACEFS_IS_DECIMAL(count) && UTRACEFS_IS_DECIMAL(size), \
			#count ", " #size ": write decimal digits")
#define UTRACEFS_CHECK_unknown_(type, ...) \
	UTRACEFS_ASSERT(0, "no type of a field, or not its number of parts; see the table in utracefs.h: " \
			   UTRACEFS_STRING((type, __VA_ARGS__)))
#define UTRACEFS_CHECK_bare_(field) \
	UTRACEFS_ASSERT(0, "UTRACEFS_EVENT takes (type, name), (type, name) ..., at most 24, " \
			   "and UTRACEFS_EVENT_PLAIN none; this is no field: " #field)

#define UTRACEFS_PARAMETER_number_(type, n) , UTRACEFS_C(type) n
#define UTRACEFS_PARAMETER_real_ UTRACEFS_PARAMETER_number_
#define UTRACEFS_PARAMETER_string_(type, n) , const char *n
#define UTRACEFS_PARAMETER_bytes_(type, n) , struct utracefs_bytes n
#define UTRACEFS_PARAMETER_chars_(type, n, count) , const char *n
#define UTRACEFS_PARAMETER_structure_(type, n, tag, count) , const struct tag *n
#define UTRACEFS_PARAMETER_array_(type, n, element, count, size) , const UTRACEFS_C(element) n[count]
#define UTRACEFS_PARAMETER_unknown_(type, ...) , long UTRACEFS_FIRST(__VA_ARGS__, ~)
#define UTRACEFS_PARAMETER_bare_(field)

#define UTRACEFS_FIXED_number_(type, n) +UTRACEFS_SIZE(type)
#define UTRACEFS_FIXED_real_ UTRACEFS_FIXED_number_
#define UTRACEFS_FIXED_string_(type, n) +4
#define UTRACEFS_FIXED_bytes_(type, n) +4
#define UTRACEFS_FIXED_chars_(type, n, count) +(count)
#define UTRACEFS_FIXED_structure_(type, n, tag, count) +(count)
#define UTRACEFS_FIXED_array_(type, n, element, count, size) +(size)
#define UTRACEFS_FIXED_unknown_(...)
#define UTRACEFS_FIXED_bare_(field)

#define UTRACEFS_LENGTH_number_(...)
#define UTRACEFS_LENGTH_real_(...)
#define UTRACEFS_LENGTH_string_(type, n) \
	size_t utracefs_size_of_##n = utracefs_string_size(n); \
	utracefs_size_ += utracefs_size_of_##n;
#define UTRACEFS_LENGTH_bytes_(type, n) \
	if (n.size > UTRACEFS_MAX_DYNAMIC) \
		n.size = UTRACEFS_MAX_DYNAMIC; \
	utracefs_size_ += n.size;
#define UTRACEFS_LENGTH_chars_(...)
#define UTRACEFS_LENGTH_structure_(...)
#define UTRACEFS_LENGTH_array_(...)
#define UTRACEFS_LENGTH_unknown_(...)
#define UTRACEFS_LENGTH_bare_(field)

#define UTRACEFS_PUT_number_(type, n) UTRACEFS_WRITE(type)(&utracefs_at_, (uint64_t)n);
#define UTRACEFS_PUT_real_(type, n) UTRACEFS_WRITE(type)(&utracefs_at_, n);
#define UTRACEFS_PUT_string_(type, n) \
	utracefs_put_string(&utracefs_at_, &utracefs_data_, n, utracefs_size_of_##n);
#define UTRACEFS_PUT_bytes_(type, n) utracefs_put_rel(&utracefs_at_, &utracefs_data_, n.data, n.size);
#define UTRACEFS_PUT_chars_(type, n, count) utracefs_put_chars(&utracefs_at_, n, count);
#define UTRACEFS_PUT_structure_(type, n, tag, count) utracefs_put_struct(&utracefs_at_, n, count);
#define UTRACEFS_PUT_array_(type, n, element, count, size) utracefs_put_struct(&utracefs_at_, n, size);
#define UTRACEFS_PUT_unknown_(...)
#define UTRACEFS_PUT_bare_(field)

/* UTRACEFS_use_kind(type, name...) for each (type, name...); "; " separates the texts of two fields. */
#define UTRACEFS_CAT(a, b) UTRACEFS_CAT_(a, b)
#define UTRACEFS_CAT_(a, b) a##b
#define UTRACEFS_FIELD_TEXT(i, ...) UTRACEFS_JOIN_##i UTRACEFS_KIND(TEXT, __VA_ARGS__)
#define UTRACEFS_FIELD_CHECK(i, ...) UTRACEFS_KIND(CHECK, __VA_ARGS__)
#define UTRACEFS_FIELD_PARAMETER(i, ...) UTRACEFS_KIND(PARAMETER, __VA_ARGS__)
#define UTRACEFS_FIELD_FIXED(i, ...) UTRACEFS_KIND(FIXED, __VA_ARGS__)
#define UTRACEFS_FIELD_LENGTH(i, ...) UTRACEFS_KIND(LENGTH, __VA_ARGS__)
#define UTRACEFS_FIELD_PUT(i, ...) UTRACEFS_KIND(PUT, __VA_ARGS__)
#define UTRACEFS_FIELD_ARGUMENT(i, type, ...) , UTRACEFS_FIRST(__VA_ARGS__, 0)
#define UTRACEFS_JOIN_0 " "
#define UTRACEFS_JOIN_1 "; "
#define UTRACEFS_KIND(use, type, ...) \
	UTRACEFS_USE(use, \
		     UTRACEFS_OF(UTRACEFS_SECOND(UTRACEFS_TYPE_##type, unknown_, ~), UTRACEFS_COUNT(__VA_ARGS__)), \
		     type, __VA_ARGS__)
/* The kind, if behind the type there are as many parts as it has. */
#define UTRACEFS_OF(kind, count) UTRACEFS_OF_(kind, count)
#define UTRACEFS_OF_(kind, count) UTRACEFS_SECOND(UTRACEFS_PARTS_##kind##count, unknown_, ~)
#define UTRACEFS_PARTS_number_1 ~, number_
#define UTRACEFS_PARTS_real_1 ~, real_
#define UTRACEFS_PARTS_string_1 ~, string_
#define UTRACEFS_PARTS_bytes_1 ~, bytes_
#define UTRACEFS_PARTS_chars_2 ~, chars_
#define UTRACEFS_PARTS_structure_3 ~, structure_
#define UTRACEFS_PARTS_array_4 ~, array_
#define UTRACEFS_USE(use, kind, ...) UTRACEFS_USE_(use, kind, __VA_ARGS__)
#define UTRACEFS_USE_(use, kind, ...) UTRACEFS_##use##_##kind(__VA_ARGS__)
#define UTRACEFS_SECOND(...) UTRACEFS_SECOND_(__VA_ARGS__)
#define UTRACEFS_SECOND_(first, second, ...) second
#define UTRACEFS_BARE(...) __VA_ARGS__
#define UTRACEFS_APPLY(macro, ...) macro(__VA_ARGS__)
#define UTRACEFS_FIELD(use, i, field) \
	UTRACEFS_FORM(UTRACEFS_SECOND(UTRACEFS_LISTED field, bare_, ~), use, i, field)
#define UTRACEFS_LISTED(...) ~, listed_ /* only if the field begins with a parenthesis */
#define UTRACEFS_FORM(form, use, i, field) UTRACEFS_FORM_(form, use, i, field)
#define UTRACEFS_FORM_(form, use, i, field) UTRACEFS_FORM_##form(use, i, field)
#define UTRACEFS_FORM_listed_(use, i, field) UTRACEFS_APPLY(UTRACEFS_FIELD_##use, i, UTRACEFS_BARE field)
#define UTRACEFS_FORM_bare_(use, i, field) UTRACEFS_##use##_bare_(field)

#define UTRACEFS_COUNT(...) \
	UTRACEFS_COUNT_(__VA_ARGS__, many_, many_, many_, many_, many_, many_, many_, many_, many_, many_, many_, \
			many_, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, \
			3, 2, 1, 0)
#define UTRACEFS_COUNT_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, a1, \
			a2, a3, a4, a5, a6, a7, a8, a9, a0, count, ...) \
	count
#define UTRACEFS_EACH_many_(use, ...) UTRACEFS_##use##_bare_(more than 24)
#define UTRACEFS_EACH(use, ...) UTRACEFS_CAT(UTRACEFS_EACH_, UTRACEFS_COUNT(__VA_ARGS__))(use, 0, __VA_ARGS__)
#define UTRACEFS_EACH_1(use, i, f) UTRACEFS_FIELD(use, i, f)
#define UTRACEFS_EACH_2(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_1(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_3(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_2(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_4(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_3(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_5(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_4(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_6(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_5(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_7(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_6(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_8(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_7(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_9(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_8(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_10(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_9(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_11(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_10(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_12(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_11(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_13(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_12(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_14(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_13(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_15(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_14(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_16(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_15(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_17(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_16(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_18(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_17(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_19(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_18(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_20(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_19(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_21(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_20(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_22(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_21(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_23(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_22(use, 1, __VA_ARGS__)
#define UTRACEFS_EACH_24(use, i, f, ...) UTRACEFS_FIELD(use, i, f) UTRACEFS_EACH_23(use, 1, __VA_ARGS__)

#else
#pragma GCC diagnostic pop
#define UTRACEFS_IS_OF_C static_assert(false, "this macro is for C: in C++ include utracefs.hpp")
#define UTRACEFS_EVENT(...) UTRACEFS_IS_OF_C
#define UTRACEFS_EVENT_FLAGS(...) UTRACEFS_IS_OF_C
#define UTRACEFS_EVENT_PLAIN(...) UTRACEFS_IS_OF_C
#define UTRACEFS_EMIT(...) UTRACEFS_IS_OF_C
#define UTRACEFS_SPANS(...) UTRACEFS_IS_OF_C
#define UTRACEFS_SPANS_PLAIN(...) UTRACEFS_IS_OF_C
#define UTRACEFS_SPAN(...) UTRACEFS_IS_OF_C
#endif /* !__cplusplus */

#endif
