/*
 * The local ring, used if the daemon gives none, or has not answered yet: moves its records into the socket,
 * or into the daemon's ring when there is one.
 *
 * Records of one thread keep their order. A record on the socket gets its time from the daemon, when it
 * arrives; one in the daemon's ring has the time of its emit. So a record that is held here must not go over
 * the socket while its followers are written into the daemon's ring: it would come behind them. Therefore:
 *
 * 1. While the local ring has records, all events that get a place get it there (`place`), even if there is
 *    a ring of the daemon.
 * 2. Held records are written into the daemon's ring in their order, with the present time and not the time
 *    of their emit: the daemon moves a time that is before that of another record of its cpu, and so could
 *    change the order of records of several cpus.
 * 3. The local ring is closed in the step that finds it empty, with one compare-and-swap of its head. So no
 *    thread has a record there that is reserved and not committed, and none can reserve one afterwards: its
 *    emit finds the ring closed, and then its place in the daemon's ring. The same step, under the lock, has
 *    given that to all events of the local one.
 */
#include <endian.h>
#include <limits.h>
#include <stdlib.h>

#include "bin.h"
#include "connection.h"

#define FULL_NS 5000000ull /* until the next look if the daemon's ring is full */

void ut_session_give_up(struct ut_session *s, uint32_t *ring, void (*lost)(void *, uint32_t), void *arg)
{
	if (!*ring)
		return;
	s->bytes_before += ut_ring_position(*ring);
	ut_ring_give_up(*ring, lost, arg);
	*ring = 0;
}

int ut_ring_make_local(struct ut_session *s)
{
	int made;

	if (s->local)
		return 0;
	made = ut_ring_make(s->settings.local_bytes);
	s->local = made > 0 ? (uint32_t)made : 0;
	if (!s->local)
		return made;
	s->taker.ring = ut_outlets[s->local].ring;
	dr_consumer_start(&s->taker);
	dr_want_wakeup(&s->taker, 1);
	s->held_to = 0;
	return 0;
}

int ut_ring_has_records(const struct ut_session *s)
{
	const struct dr_header *header = s->local ? s->taker.ring.header : NULL;

	return s->kept_size ||
	       (header && (atomic_load(&header->head) != s->taker.tail || atomic_load(&header->lost)));
}

/* Bits of an index beside the number: a refusal, or losses. */
#define KINDS (DR_REFUSED | BIN_LOST)

/* A record as an object on the socket. */
struct object {
	uint8_t *at, *index; /* all of it, and its write_index */
	uint32_t size;
	struct bin_record record;
};

/* The next one from *at on, which moves to its end. */
static int next_object(uint8_t *data, size_t size, size_t *at, struct object *found)
{
	while (*at < size) {
		uint8_t *object = data + *at;
		ssize_t length = ut_object_size(object, size - *at);
		uint32_t bytes;
		unsigned header = bin_get_header(object, size - *at, &bytes);

		if (length <= 0)
			return 0;
		*at += (size_t)length;
		if (!header)
			continue; /* a request */
		*found = (struct object){object, object + header + bin_index_at(object + header, bytes),
					 (uint32_t)length, bin_take_apart(object + header, bytes)};
		return 1;
	}
	return 0;
}

static int next_unsent(struct ut_session *s, size_t *at, struct object *found)
{
	while (s->out_sent < s->out.size && next_object(s->out.data, s->out.size, at, found))
		if (*at > s->out_sent)
			return 1;
	return 0;
}

static uint8_t *kept_of(const struct ut_session *s)
{
	return s->memory + UT_IN_BYTES + UT_OUT_BYTES + DR_MAX_PAYLOAD + 1;
}

/* Records kept before and not put into `out` again come after it: they are younger. */
void ut_keep_unsent(struct ut_session *s)
{
	size_t at = 0, size = 0, left = s->kept_size - s->kept_at;
	struct object object;

	if (s->flags & UT_TOKENS)
		return;
	while (next_unsent(s, &at, &object))
		size += object.size;
	if (size + left > UT_OUT_BYTES)
		left = UT_OUT_BYTES - size; /* impossible: the content of `out` was kept, or there was none */
	if (!s->memory || (!size && !s->kept_at))
		return;
	memmove(kept_of(s) + size, kept_of(s) + s->kept_at, left);
	s->kept_size = s->kept_at = 0;
	for (at = 0; next_unsent(s, &at, &object); s->kept_size += object.size) {
		uint32_t kind = object.record.write_index & KINDS;
		struct ut_reg *reg = ut_reg_of_daemons(s, object.record.write_index & ~KINDS);
		uint32_t number = htole32(reg ? reg->number | kind : UT_NO_NUMBER);

		memcpy(object.index, &number, 4);
		memcpy(kept_of(s) + s->kept_size, object.at, object.size);
	}
	s->kept_size += left;
}

/* Calls `count` for all records among these. */
static void for_kept(struct ut_session *s, void (*count)(struct ut_reg *))
{
	size_t at = s->kept_at;
	struct object object;

	while (s->memory && next_object(kept_of(s), s->kept_size, &at, &object)) {
		struct ut_reg *reg = ut_reg_of(s, object.record.write_index);

		if (reg)
			count(reg);
	}
}

static void count_lost(struct ut_reg *reg)
{
	atomic_fetch_add(&reg->lost, 1);
}

void ut_lose_kept(struct ut_session *s)
{
	for_kept(s, count_lost);
	s->kept_at = s->kept_size = 0;
}

static void count_pending(struct ut_reg *reg)
{
	reg->pending++;
}

uint64_t ut_count_pending(struct ut_session *s, int with_ring)
{
	uint64_t all = 0, position = s->taker.tail;
	struct object object;
	struct ut_reg *reg;
	uint32_t index;

	for (reg = s->regs; reg; reg = reg->next)
		reg->pending = 0;
	/* (For a position of 0 dr_walk begins at the published tail: then nothing was taken yet.) */
	while (s->local && dr_walk(&s->taker.ring, &position, &index))
		if ((reg = ut_reg_of(s, index)))
			count_pending(reg);
	for (size_t at = 0; next_unsent(s, &at, &object);)
		if ((reg = ut_reg_of_daemons(s, object.record.write_index)))
			count_pending(reg);
	for_kept(s, count_pending);
	if (with_ring && ut_views[s->ring].header) {
		struct ut_by_index old = ut_regs_by_old_index(s);

		for (position = 0; dr_walk(&ut_outlets[s->ring].ring, &position, &index);)
			if (index < old.size && old.regs[index])
				count_pending(old.regs[index]);
		ut_unmap(old.regs, ((size_t)old.size + 1) * sizeof(*old.regs));
	}
	for (reg = s->regs; reg; reg = reg->next)
		all += reg->pending;
	return all;
}

/* In the form of the socket, signed if that has room; returns its bytes. */
static unsigned put_record(uint8_t *at, uint32_t write_index, const struct dr_taken *taken,
			   const uint8_t *payload, int is_signed)
{
	unsigned named = taken->flags & DR_NAMED ? DR_COMM : 0, size;
	const unsigned room = BIN_MAX_OBJECT - BIN_MAX_HEADER - 4;

	if (taken->length + BIN_SIGNATURE > room)
		is_signed = 0;
	if (!is_signed || taken->length + BIN_SIGNATURE + named > room)
		named = 0;
	size = bin_put_header(at, taken->length + 4 + (is_signed ? BIN_SIGNATURE : 0) + named);
	if (is_signed) {
		size += bin_put_signature(at + size, write_index, taken->tid, taken->cpu, named ? DR_NAMED : 0);
	} else {
		const uint32_t word = htole32(write_index);

		memcpy(at + size, &word, 4);
		size += 4;
	}
	memcpy(at + size, payload, taken->length);
	memcpy(at + size + taken->length, taken->comm, named);
	return size + taken->length + named;
}

/* Room in `out` for one more record. */
static int has_room(const struct ut_session *s)
{
	return UT_OUT_BYTES - s->out.size > 65536 + 64;
}

void ut_reg_hear(struct ut_session *s, struct ut_reg *reg)
{
	if (!reg->is_heard && s->local && *(const volatile uint8_t *)atomic_load(&reg->status) == 0)
		reg->unheard_until = atomic_load(&s->taker.ring.header->head);
	reg->is_heard = 1;
}

void ut_hear_all(struct ut_session *s)
{
	for (struct ut_reg *reg = s->regs; reg; reg = reg->next)
		if (reg->state == UT_ANSWERED)
			ut_reg_hear(s, reg);
}

uint32_t ut_open_ring(const struct ut_session *s)
{
	return s->ring && !dr_is_closed(&ut_outlets[s->ring].ring) ? s->ring : 0;
}

/* Into the daemon's ring, or without one into `out`. 0: there is no room. */
static int move_record(struct ut_session *s, uint32_t write_index, const struct dr_taken *taken,
		       const uint8_t *payload)
{
	uint32_t ring = ut_open_ring(s), count;

	if (!ring) {
		s->out.size += put_record(s->out.data + s->out.size, write_index, taken, payload,
					  s->takes_writers && taken->tid);
	} else if (write_index & BIN_LOST) {
		memcpy(&count, payload, sizeof(count));
		dr_count_lost_of(&ut_outlets[ring].ring, write_index & ~BIN_LOST, le32toh(count));
	} else if (!ut_ring_put(ring, write_index, taken, payload)) {
		s->is_full = 1;
		s->due = ut_clock_ns() + FULL_NS;
		return 0;
	}
	return 1;
}

/* Whether this record, and so all later ones, must wait for the answer, or for room. Otherwise moves it, or
 * counts it. */
static int is_held(struct ut_session *s, uint32_t number, const struct dr_taken *taken,
		   const uint8_t *payload, int is_new)
{
	const uint32_t kind = number & KINDS;
	struct ut_reg *reg = ut_reg_of(s, number & ~KINDS);

	if (!reg)
		return 0;
	if (reg->state == UT_TO_ASK || reg->state == UT_ASKED_FOR)
		return 1;
	if (is_new && s->taker.tail < reg->unheard_until)
		reg->unheard += !kind;
	else if (reg->state == UT_ANSWERED && !move_record(s, reg->write_index | kind, taken, payload))
		return 1;
	else if (reg->state != UT_ANSWERED && !kind)
		atomic_fetch_add(&reg->lost, 1);
	if (is_new && !kind)
		ut_held_sent(s, number);
	return 0;
}

/* Whether all records kept from the previous connection are in `out`. */
static int take_kept(struct ut_session *s)
{
	struct object object;

	for (size_t at = s->kept_at; next_object(kept_of(s), s->kept_size, &at, &object); s->kept_at = at) {
		const struct bin_record *record = &object.record;
		struct dr_taken taken = {.length = record->size, .tid = record->tid, .cpu = record->cpu};

		if (record->comm) {
			taken.flags = DR_NAMED;
			memcpy(taken.comm, record->comm, DR_COMM);
		}
		if (!has_room(s) || is_held(s, record->write_index, &taken, record->payload, 0))
			return 0;
	}
	s->kept_at = s->kept_size = 0;
	return 1;
}

/* Reports the records that found no room, by the counters that every ring has; children without a connection
 * count here, too. (With so many events the last counter belongs to several.) */
static void take_lost(struct ut_session *s)
{
	const struct dr_taken taken = {.length = sizeof(uint32_t)};
	uint32_t end = s->nr_numbers <= DR_LOST_COUNTERS ? s->nr_numbers : DR_LOST_COUNTERS - 1;
	int are_held = 0;

	if (!has_room(s) || !dr_take_lost(&s->taker))
		return;
	for (uint32_t number = 0; number < end; number++) {
		struct ut_reg *reg = ut_reg_of(s, number);
		uint32_t count = reg->state == UT_REFUSED ? 0 : atomic_load(&s->taker.ring.lost[number]);

		if (count && is_held(s, number | BIN_LOST, &taken, (uint8_t *)&(uint32_t){htole32(count)}, 0))
			are_held = 1;
		else if (count)
			atomic_fetch_sub(&s->taker.ring.lost[number], count);
	}
	if (are_held)
		atomic_fetch_add(&s->taker.ring.header->lost, 1);
}

void ut_take_records(struct ut_session *s)
{
	uint8_t *payload = s->memory + UT_IN_BYTES + UT_OUT_BYTES;
	struct dr_taken taken;
	uint64_t holes = 0;

	s->is_full = 0;
	if (!take_kept(s) || !s->local)
		return;
	for (int looks = 0; looks < 2; looks++) {
		if (dr_look(&s->taker))
			return; /* impossible: no other process has this memory */
		while (has_room(s) &&
		       dr_next(&s->taker, &taken, payload, DR_MAX_PAYLOAD, 0, &holes) == DR_RECORD) {
			if (is_held(s, taken.write_index, &taken, payload, 1)) {
				dr_publish(&s->taker);
				return;
			}
			dr_advance(&s->taker, taken.bytes);
		}
		dr_publish(&s->taker);
		/* A second look after asking to be woken: point 3 of data_ring.h. */
		dr_want_wakeup(&s->taker, 1);
	}
	if (!ut_ring_has_records(s))
		ut_held_free(s);
	take_lost(s);
}

int ut_leave_local(struct ut_session *s)
{
	uint64_t head = s->taker.tail;

	if (!s->local || s->kept_size || !ut_open_ring(s) || atomic_load(&s->taker.ring.header->lost) ||
	    !atomic_compare_exchange_strong(&s->taker.ring.header->head, &head, head | DR_CLOSED))
		return 0;
	ut_session_give_up(s, &s->local, NULL, NULL);
	return 1;
}

/* ---- the end of a session */

static void count_rest(struct ut_reg *reg)
{
	count_lost(reg);
	count_pending(reg);
}

static void count_rest_of(void *session, uint32_t number)
{
	struct ut_reg *reg = number & DR_REFUSED ? NULL : ut_reg_of(session, number);

	if (reg)
		count_rest(reg);
}

/* The kernel allows a larger queue than a socket has by default, so a full one has room once more. */
static int send_at_last(struct ut_session *s)
{
	int error = ut_send_out(s);

	if (error != -EAGAIN)
		return error;
	setsockopt(s->socket.fd, SOL_SOCKET, SO_SNDBUF, &(int){INT_MAX}, sizeof(int));
	return ut_send_out(s);
}

void ut_lose_rest(struct ut_session *s)
{
	const struct dr_taken taken = {.length = sizeof(uint32_t)};
	int is_up = s->state == UT_UP && s->local;

	for (struct ut_reg *reg = s->regs; reg; reg = reg->next)
		reg->pending = 0;
	if (is_up) {
		send_at_last(s);
		atomic_fetch_or(&s->taker.ring.header->head, DR_CLOSED); /* no loss is counted there any more */
		take_lost(s);
	}
	ut_session_give_up(s, &s->local, count_rest_of, s);
	for_kept(s, count_rest);
	s->kept_at = s->kept_size = 0;
	if (!is_up)
		return;
	for (struct ut_reg *reg = s->regs; reg && has_room(s); reg = reg->next) {
		const uint32_t count = htole32((uint32_t)reg->pending);

		if (count && reg->state == UT_ANSWERED)
			s->out.size += put_record(s->out.data + s->out.size, reg->write_index | BIN_LOST, &taken,
						  (const uint8_t *)&count, 0);
	}
	if (send_at_last(s) == 0)
		ut_held_free(s); /* otherwise a relative counts them */
}
