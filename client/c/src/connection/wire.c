#include "wire.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

/* ---- writing */

/* If there is no room, the whole message is removed. */
static void put(struct ut_out *out, const void *bytes, size_t size)
{
	if (out->failed || out->room - out->size < size) {
		out->failed = 1;
		out->size = out->began;
		return;
	}
	memcpy(out->data + out->size, bytes, size);
	out->size += size;
}

static void put_byte(struct ut_out *out, unsigned byte)
{
	uint8_t one = (uint8_t)byte;

	put(out, &one, 1);
}

/* `size` bytes of the number, big-endian, after `type`. */
static void put_number(struct ut_out *out, unsigned type, uint64_t value, unsigned size)
{
	put_byte(out, type);
	while (size--)
		put_byte(out, (unsigned)(value >> (8 * size)) & 0xff);
}

/* In the fewest bytes. type: of a number of one byte; those of two, four and eight are the next. */
static void put_sized(struct ut_out *out, unsigned type, uint64_t value)
{
	const unsigned more = value <= 0xff ? 0 : value <= 0xffff ? 1 : value <= 0xffffffff ? 2 : 3;

	put_number(out, type + more, value, 1u << more);
}

static void put_uint(struct ut_out *out, uint64_t value)
{
	if (value < 0x80)
		put_byte(out, (unsigned)value);
	else
		put_sized(out, 0xcc, value);
}

static void put_text(struct ut_out *out, const char *text, size_t size)
{
	if (size < 32)
		put_byte(out, 0xa0 | (unsigned)size);
	else
		put_sized(out, 0xd9, size);
	put(out, text, size);
}

static void put_str(struct ut_out *out, const char *text)
{
	put_text(out, text, strlen(text));
}

static void put_array(struct ut_out *out, unsigned count)
{
	if (count < 16)
		put_byte(out, 0x90 | count);
	else
		put_number(out, 0xdc, count, 2);
}

/* A map may have at most 15 members. */
static void put_map(struct ut_out *out, unsigned count)
{
	put_byte(out, 0x80 | count);
}

static void put_member(struct ut_out *out, const char *name, uint64_t value)
{
	put_str(out, name);
	put_uint(out, value);
}

static void begin_request(struct ut_out *out, uint32_t msgid, const char *method, unsigned nr_params)
{
	out->began = out->size;
	put_array(out, 4);
	put_uint(out, 0);
	put_uint(out, msgid);
	put_str(out, method);
	put_array(out, nr_params);
}

void ut_put_plain(struct ut_out *out, uint32_t msgid, const void *method)
{
	begin_request(out, msgid, method, 0);
}

void ut_put_notify(struct ut_out *out, uint32_t msgid)
{
	begin_request(out, msgid, "notify_enablers", 1);
	put_map(out, 0);
}

void ut_put_adopt_ring(struct ut_out *out, uint32_t msgid)
{
	begin_request(out, msgid, "adopt_ring", 1);
	put_map(out, 1);
	put_member(out, "early", 1);
}

void ut_put_register(struct ut_out *out, uint32_t msgid, const char *command, uint32_t flags,
		     uint32_t event_id, uint64_t token, uint32_t number)
{
	const int has_number = number != UINT32_MAX;

	begin_request(out, msgid, "DIAG_IOCSREG", 1);
	put_map(out, 1 + (flags != 0) + (event_id != 0) + (token != UT_NO_TOKEN) + has_number);
	put_str(out, "name_args");
	put_str(out, command);
	if (flags)
		put_member(out, "flags", flags);
	if (event_id)
		put_member(out, "event_id", event_id);
	if (token != UT_NO_TOKEN)
		put_member(out, "enable_token", token);
	if (has_number)
		put_member(out, "write_index", number);
}

void ut_put_about(struct ut_out *out, uint32_t msgid, const char *method, const char *text)
{
	begin_request(out, msgid, method, 1);
	put_str(out, text);
}

void ut_put_delete(struct ut_out *out, uint32_t msgid, const void *name)
{
	ut_put_about(out, msgid, "DIAG_IOCSDEL", name);
}

void ut_put_handle(struct ut_out *out, uint32_t msgid, const char *method, uint64_t handle)
{
	begin_request(out, msgid, method, 1);
	put_uint(out, handle);
}

/* The next of words separated by spaces; NULL: there is none. */
static const char *next_word(const char *at, size_t *size)
{
	at += strspn(at, " ");
	*size = strcspn(at, " ");
	return *size ? at : NULL;
}

void ut_put_stream_open(struct ut_out *out, uint32_t msgid, const struct ut_stream_attr *attr)
{
	unsigned words = 0;
	const char *word;
	size_t size;

	for (word = attr->events; (word = next_word(word, &size)); word += size)
		words++;
	begin_request(out, msgid, "stream_open", 1);
	put_map(out, 3 + (attr->filter != NULL) + (attr->instance != NULL));
	put_str(out, "events");
	put_array(out, words);
	for (word = attr->events; (word = next_word(word, &size)); word += size)
		put_text(out, word, size);
	put_member(out, "size", attr->size);
	put_member(out, "watermark", attr->watermark);
	if (attr->filter) {
		put_str(out, "filter");
		put_str(out, attr->filter);
	}
	if (attr->instance) {
		put_str(out, "instances");
		put_array(out, 1);
		put_str(out, attr->instance);
	}
}

void ut_put_write(struct ut_out *out, uint32_t msgid, const void *record)
{
	const struct ut_record *r = record;
	const uint32_t index = htole32(r->write_index);
	size_t skip = r->skip;

	begin_request(out, msgid, "write", 1);
	put_number(out, 0xc6, sizeof(index) + r->size, 4);
	put(out, &index, sizeof(index));
	for (int i = 0; i < r->n; i++, skip = 0)
		put(out, (const uint8_t *)r->iov[i].iov_base + skip, r->iov[i].iov_len - skip);
}

void ut_put_unregister(struct ut_out *out, uint32_t msgid, const void *token)
{
	begin_request(out, msgid, "DIAG_IOCSUNREG", 1);
	put_map(out, 1);
	put_member(out, "disable_token", *(const uint64_t *)token);
}

void ut_put_enablers_written(struct ut_out *out, uint64_t seq)
{
	out->began = out->size;
	put_array(out, 3);
	put_uint(out, 2);
	put_str(out, "enablers_written");
	put_array(out, 1);
	put_uint(out, seq);
}

/* ---- reading */

enum type { T_NIL, T_BOOL, T_UINT, T_NEGATIVE, T_BYTES, T_ARRAY, T_MAP, T_OTHER };

/* The head of an object. T_BYTES: `value` bytes follow, str or bin. T_ARRAY, T_MAP: `value` elements or
 * pairs follow. T_OTHER: `value` bytes follow, which are ignored. */
struct head {
	enum type type;
	uint64_t value;
};

static uint64_t big_endian(const uint8_t *at, unsigned size)
{
	uint64_t value = 0;

	while (size--)
		value = value << 8 | *at++;
	return value;
}

/* 1: read. 0: incomplete. -EPROTO. */
static int take_head(struct ut_in *in, struct head *head)
{
	/* From 0xc4 on: type, bytes of the number after the first, and additional bytes. */
	static const struct {
		uint8_t type, size, more;
	} forms[] = {
		{T_BYTES, 1, 0}, {T_BYTES, 2, 0}, {T_BYTES, 4, 0},		     /* bin */
		{T_OTHER, 1, 1}, {T_OTHER, 2, 1}, {T_OTHER, 4, 1},		     /* ext */
		{T_OTHER, 0, 4}, {T_OTHER, 0, 8},				     /* float */
		{T_UINT, 1, 0},	 {T_UINT, 2, 0},  {T_UINT, 4, 0}, {T_UINT, 8, 0},
		{T_NEGATIVE, 1, 0}, {T_NEGATIVE, 2, 0}, {T_NEGATIVE, 4, 0}, {T_NEGATIVE, 8, 0}, /* int */
		{T_OTHER, 0, 2}, {T_OTHER, 0, 3}, {T_OTHER, 0, 5}, {T_OTHER, 0, 9}, {T_OTHER, 0, 17}, /* fixext */
		{T_BYTES, 1, 0}, {T_BYTES, 2, 0}, {T_BYTES, 4, 0},		     /* str */
		{T_ARRAY, 2, 0}, {T_ARRAY, 4, 0}, {T_MAP, 2, 0},  {T_MAP, 4, 0},
	};
	unsigned first, size;

	if (in->at == in->end)
		return 0;
	first = *in->at++;
	if (first < 0x80) {
		*head = (struct head){T_UINT, first};
	} else if (first < 0x90) {
		*head = (struct head){T_MAP, first & 15};
	} else if (first < 0xa0) {
		*head = (struct head){T_ARRAY, first & 15};
	} else if (first < 0xc0) {
		*head = (struct head){T_BYTES, first & 31};
	} else if (first >= 0xe0) {
		*head = (struct head){T_NEGATIVE, (uint64_t)(int64_t)(int8_t)first};
	} else if (first == 0xc0) {
		*head = (struct head){T_NIL, 0};
	} else if (first == 0xc1) {
		return -EPROTO;
	} else if (first < 0xc4) {
		*head = (struct head){T_BOOL, first & 1};
	} else {
		first -= 0xc4;
		size = forms[first].size;
		if ((size_t)(in->end - in->at) < size)
			return 0;
		*head = (struct head){forms[first].type, big_endian(in->at, size) + forms[first].more};
		if (head->type == T_NEGATIVE) {
			unsigned shift = 64 - 8 * size;

			head->value = (uint64_t)((int64_t)(head->value << shift) >> shift);
			if ((int64_t)head->value >= 0)
				head->type = T_UINT;
		}
		in->at += size;
	}
	return 1;
}

/* Skips `left` objects, without recursion. 1, 0: incomplete, -EPROTO. */
static int skip(struct ut_in *in, uint64_t left)
{
	while (left) {
		struct head head;
		int got = take_head(in, &head);

		if (got <= 0)
			return got;
		left--;
		if (head.type == T_BYTES || head.type == T_OTHER) {
			if ((size_t)(in->end - in->at) < head.value)
				return 0;
			in->at += head.value;
		} else if (head.type == T_ARRAY) {
			left += head.value;
		} else if (head.type == T_MAP) {
			left += 2 * head.value;
		}
	}
	return 1;
}

ssize_t ut_object_size(const uint8_t *data, size_t size)
{
	struct ut_in in = {data, data + size};
	int got = skip(&in, 1);

	return got <= 0 ? got : in.at - data;
}

static int take(struct ut_in *in, enum type type, uint64_t *value)
{
	struct head head;

	if (take_head(in, &head) != 1 || head.type != type)
		return -EPROTO;
	*value = head.value;
	return 0;
}

static int take_bytes(struct ut_in *in, const char **text, size_t *size)
{
	uint64_t length;

	if (take(in, T_BYTES, &length) || (size_t)(in->end - in->at) < length)
		return -EPROTO;
	*text = (const char *)in->at;
	*size = length;
	in->at += length;
	return 0;
}

static int is_text(const char *text, size_t size, const char *wanted)
{
	return size == strlen(wanted) && memcmp(text, wanted, size) == 0;
}

/* [errno, text] */
static int take_error(struct ut_in *in, struct ut_message *message)
{
	const char *text;
	uint64_t count, number;
	size_t size;

	if (take(in, T_ARRAY, &count) || count != 2 || take(in, T_UINT, &number) || take_bytes(in, &text, &size))
		return -EPROTO;
	message->error = number > 0 && number < 4096 ? (int)number : EPROTO;
	if (size > sizeof(message->text) - 1)
		size = sizeof(message->text) - 1;
	memcpy(message->text, text, size);
	message->text[size] = 0;
	return 0;
}

static int parse_response(struct ut_in in, struct ut_message *message)
{
	uint64_t msgid;

	if (take(&in, T_UINT, &msgid) || in.at == in.end)
		return -EPROTO;
	message->kind = UT_RESPONSE;
	message->msgid = (uint32_t)msgid;
	if (*in.at != 0xc0)
		return take_error(&in, message);
	in.at++;
	message->result = in;
	return 0;
}

static int parse_notification(struct ut_in in, struct ut_message *message)
{
	const char *method;
	struct head head;
	uint64_t count;
	size_t size;

	if (take_bytes(&in, &method, &size))
		return -EPROTO;
	if (is_text(method, size, "error")) {
		message->kind = UT_ERROR;
		return take_error(&in, message);
	}
	if (is_text(method, size, "write_error")) {
		message->kind = UT_WRITE_ERROR;
		if (take(&in, T_ARRAY, &count) || count != 3 || take(&in, T_UINT, &count) || take_head(&in, &head) != 1)
			return -EPROTO;
		message->error = (int)count;
		message->write_index = (int64_t)head.value;
		return take(&in, T_UINT, &message->count);
	}
	if (is_text(method, size, "enablers_changed")) {
		message->kind = UT_ENABLERS_CHANGED;
		if (take(&in, T_ARRAY, &count) || count != 2 || take(&in, T_UINT, &message->seq) ||
		    take(&in, T_ARRAY, &count) || count > UINT32_MAX)
			return -EPROTO;
		message->nr_pairs = (uint32_t)count;
		message->result = in;
	}
	return 0;
}

int ut_parse(const uint8_t *data, size_t size, struct ut_message *message)
{
	struct ut_in in = {data, data + size};
	uint64_t count, type;

	memset(message, 0, sizeof(*message));
	message->kind = UT_UNKNOWN;
	if (take(&in, T_ARRAY, &count) || take(&in, T_UINT, &type))
		return -EPROTO;
	if (type == 1 && count == 4)
		return parse_response(in, message);
	if (type == 2 && count == 3)
		return parse_notification(in, message);
	return -EPROTO;
}

/* Points *in at the value of a map's member. 0; -ENOENT: there is none; -EPROTO: it is no map. */
static int find_member(struct ut_in *in, const char *name)
{
	const char *member;
	uint64_t count;
	size_t length;

	if (take(in, T_MAP, &count))
		return -EPROTO;
	while (count--) {
		if (take_bytes(in, &member, &length))
			return -EPROTO;
		if (is_text(member, length, name))
			return 0;
		if (skip(in, 1) != 1)
			return -EPROTO;
	}
	return -ENOENT;
}

int ut_parse_number(struct ut_in in, const char *name, uint64_t *value)
{
	int error = find_member(&in, name);

	return error ? error : take(&in, T_UINT, value);
}

int ut_parse_bytes(struct ut_in in, const char **data, size_t *size)
{
	return take_bytes(&in, data, size);
}

int ut_parse_missed(struct ut_in in, struct ut_missed *missed)
{
	int error;

	missed->epoch = missed->nr_events = 0;
	missed->events = in;
	error = find_member(&missed->events, "events");
	if (error != -ENOENT && (error || take(&missed->events, T_ARRAY, &missed->nr_events)))
		return -EPROTO;
	if (ut_parse_number(in, "epoch", &missed->epoch) == -EPROTO)
		return -EPROTO;
	missed->origin_size = 0;
	return find_member(&in, "origin") ? 0 : take_bytes(&in, &missed->origin, &missed->origin_size);
}

int ut_next_missed(struct ut_in *in, const char **name, size_t *size, uint64_t *count, uint64_t *epoch)
{
	uint64_t three;

	return take(in, T_ARRAY, &three) || three != 3 || take_bytes(in, name, size) || take(in, T_UINT, count) ?
		       -EPROTO :
		       take(in, T_UINT, epoch);
}

static int take_locs(struct ut_in *in, struct ut_registered *registered)
{
	uint64_t count, two, offset, flags;

	if (take(in, T_ARRAY, &count) || count > UT_MAX_LOCS)
		return -EPROTO;
	for (uint64_t i = 0; i < count; i++) {
		if (take(in, T_ARRAY, &two) || two < 2 || take(in, T_UINT, &offset) || take(in, T_UINT, &flags) ||
		    skip(in, two - 2) != 1 || offset > UINT32_MAX - 4)
			return -EPROTO;
		registered->locs[i] = (struct ut_loc){(uint32_t)offset, (uint32_t)flags};
	}
	registered->nr_locs = (uint32_t)count;
	return 0;
}

int ut_parse_registered(struct ut_in in, int with_token, struct ut_registered *registered)
{
	static const struct {
		const char *name;
		uint64_t most;
		size_t at;
	} numbers[] = {
		{"status_index", INT32_MAX, offsetof(struct ut_registered, status_index)},
		{"write_index", INT32_MAX, offsetof(struct ut_registered, write_index)},
		{"id", UINT16_MAX, offsetof(struct ut_registered, id)},
		{"event_id", UINT16_MAX, offsetof(struct ut_registered, event_id)},
		{"size", UINT32_MAX, offsetof(struct ut_registered, size)},
		{"enabled", 1, offsetof(struct ut_registered, enabled)},
	};
	const unsigned nr_numbers = sizeof(numbers) / sizeof(numbers[0]);
	const char *member;
	uint64_t count, value = 0;
	size_t length;
	int error = 0;

	*registered = (struct ut_registered){.write_index = UINT32_MAX, .enabled = UINT32_MAX};
	if (take(&in, T_MAP, &count))
		return -EPROTO;
	while (count-- && !error) {
		unsigned i = 0;

		if (take_bytes(&in, &member, &length))
			return -EPROTO;
		while (i < nr_numbers && !is_text(member, length, numbers[i].name))
			i++;
		if (i < nr_numbers) {
			error = take(&in, T_UINT, &value) || value > numbers[i].most;
			memcpy((char *)registered + numbers[i].at, &(uint32_t){(uint32_t)value}, sizeof(uint32_t));
		} else {
			error = is_text(member, length, "locs") ? take_locs(&in, registered) : skip(&in, 1) != 1;
		}
	}
	for (uint32_t i = 0; i < registered->nr_locs; i++)
		error |= (uint64_t)registered->locs[i].offset + 4 > registered->size;
	if ((with_token ? registered->enabled : registered->write_index) == UINT32_MAX)
		return -EPROTO;
	return error || !registered->status_index ? -EPROTO : 0;
}

int ut_next_pair(struct ut_in *in, uint64_t *token, int *on)
{
	uint64_t count, value;

	if (take(in, T_ARRAY, &count) || count != 2 || take(in, T_UINT, token) ||
	    take(in, T_UINT, &value) || value > 1)
		return -EPROTO;
	*on = (int)value;
	return 0;
}
