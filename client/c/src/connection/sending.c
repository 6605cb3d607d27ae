/*
 * Records over the socket, where the daemon cannot have the ring: the reader of the ring is here.
 *
 * A batch has records as objects of the socket, from the ring's tail on. A record's place is given back when
 * the socket has taken all of its object, so at the end of a connection the tail is at the first record that
 * the daemon did not get completely: the next one gets it. The batch may begin with reports of losses, which
 * are subtracted from the ring's counters at that moment, too.
 */
#include <endian.h>
#include <limits.h>

#include "bin.h"
#include "connection.h"

/* Room for one more object. */
#define MAX_OBJECT (65536u + 64u)
/* A counter of losses begins again after so many. */
#define LAP (UINT64_C(1) << 32)

/* Whether the daemon has its registration in front of its records. */
static int is_known(const struct ut_session *s, const struct ut_reg *reg)
{
	return reg->state == UT_ANSWERED || (reg->state == UT_ASKED_FOR && ut_is_early(s));
}

static int has_room(const struct ut_session *s)
{
	return UT_OUT_BYTES - s->batch_size >= MAX_OBJECT;
}

/* Appends the record in the form of the socket, with its writer if there is room. */
static void put_record(struct ut_session *s, uint32_t write_index, const struct dr_taken *taken,
		       const uint8_t *payload)
{
	uint8_t *at = s->pages->batch + s->batch_size;
	unsigned named = taken->flags & DR_NAMED ? DR_COMM : 0, size;
	const unsigned room = BIN_MAX_OBJECT - BIN_MAX_HEADER - 4;
	int is_signed = taken->tid && taken->length + BIN_SIGNATURE <= room;

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
	s->batch_size += size + taken->length + named;
}

static void put_loss(struct ut_session *s, uint32_t write_index, uint32_t count)
{
	const struct dr_taken taken = {.length = sizeof(count)};

	count = htole32(count);
	put_record(s, write_index | BIN_LOST, &taken, (const uint8_t *)&count);
}

/* The next batch begins with a look at the counters. */
static void look_for_losses(struct ut_session *s)
{
	atomic_fetch_add(&s->taker.ring.header->lost, 1);
	ut_outlets[s->ring].losses--;
}

/* At the beginning of a batch: reports the records that found no room, by the counters that every ring has;
 * children without a connection count here, too. (With so many events the last counter belongs to
 * several.) */
static void put_losses(struct ut_session *s)
{
	const uint32_t shared = s->nr_numbers <= DR_LOST_COUNTERS ? UINT32_MAX : DR_LOST_COUNTERS - 1;
	uint64_t taken = dr_take_lost(&s->taker), not_found = ut_outlets[s->ring].losses += taken;
	int are_left = 0;

	if (!taken)
		return;
	for (uint32_t number = 0; number < s->nr_numbers && number < DR_LOST_COUNTERS; number++) {
		const struct ut_reg *reg = number == shared ? NULL : ut_reg_of(s, number);
		uint32_t count = dr_lost_of(&s->taker, number);

		not_found -= count;
		if (!count || !reg || reg->state == UT_REFUSED)
			continue;
		if (is_known(s, reg) && has_room(s))
			put_loss(s, reg->write_index, count);
		else
			are_left = 1;
	}
	/* The number of an event has passed zero. (Less is between an emit's two additions.) */
	for (not_found += LAP / 2; not_found >= LAP && has_room(s); not_found -= LAP) {
		put_loss(s, BIN_UNKNOWN, LAP / 2);
		put_loss(s, BIN_UNKNOWN, LAP / 2);
	}
	if (are_left || not_found >= LAP)
		look_for_losses(s);
}

/* Fills an empty batch. */
static void put_records(struct ut_session *s)
{
	struct dr_consumer ahead;
	struct dr_taken taken;
	uint64_t holes = 0;

	if (s->batch_size || dr_look(&s->taker)) /* (invalid: impossible, no other process has this memory) */
		return;
	put_losses(s);
	ahead = s->taker;
	while (has_room(s) && dr_next(&ahead, &taken, s->pages->payload, DR_MAX_PAYLOAD, 0, &holes) == DR_RECORD) {
		struct ut_reg *reg = ut_reg_of(s, taken.write_index & ~DR_REFUSED);
		int is_unwanted = reg && ahead.tail < reg->unwanted_until;

		if (reg && is_known(s, reg) && !is_unwanted) {
			put_record(s, reg->write_index | (taken.write_index & DR_REFUSED), &taken, s->pages->payload);
			ahead.tail += taken.bytes;
			continue;
		}
		/* It has to wait; or it is not sent, but earlier ones come first. */
		if ((reg && reg->state != UT_REFUSED && !is_unwanted) || s->batch_size)
			break;
		if (is_unwanted)
			reg->unwanted++;
		else if (reg && !(taken.write_index & DR_REFUSED))
			atomic_fetch_add(&reg->lost, 1);
		dr_advance(&s->taker, taken.bytes);
		ahead.tail = s->taker.tail;
	}
}

/* Gives back the places of what the socket has taken. */
static void forget_sent(struct ut_session *s)
{
	size_t at = 0;

	while (at < s->batch_sent) {
		uint32_t bytes = 0, count, word;
		unsigned header = bin_get_header(s->pages->batch + at, s->batch_size - at, &bytes);
		struct bin_record record = bin_take_apart(s->pages->batch + at + header, bytes);

		if (at + header + bytes > s->batch_sent)
			break;
		at += header + bytes;
		if (record.write_index & BIN_LOST) {
			const struct ut_reg *reg = ut_reg_of_daemons(s, record.write_index & ~BIN_LOST);

			memcpy(&count, record.payload, sizeof(count));
			ut_outlets[s->ring].losses -= le32toh(count);
			if (reg)
				dr_forget_lost_of(&s->taker, reg->number, le32toh(count));
		} else {
			word = atomic_load(&((struct dr_record *)(s->taker.ring.data +
								  (s->taker.tail & (s->taker.ring.size - 1))))->length_word);
			dr_advance(&s->taker, dr_need(word & DR_LENGTH_MASK));
		}
	}
	memmove(s->pages->batch, s->pages->batch + at, s->batch_size - at);
	s->batch_size -= at;
	s->batch_sent -= at;
	dr_publish(&s->taker);
}

/* The rest of the batch. */
static int send_batch(struct ut_session *s)
{
	int error = ut_send_bytes(s, s->pages->batch, s->batch_size, &s->batch_sent);

	forget_sent(s);
	return error;
}

void ut_start_sending(struct ut_session *s)
{
	if (!s->ring)
		return;
	s->taker.ring = ut_outlets[s->ring].ring;
	dr_consumer_start(&s->taker);
	dr_want_wakeup(&s->taker, 1);
	dr_ask_names(&s->taker, ((uint32_t)(ut_clock_ns() >> 10) & INT32_MAX) | 1);
	ut_outlets[s->ring].by_socket = 1;
	look_for_losses(s); /* reports of the former connection may not have been sent */
}

int ut_send_records(struct ut_session *s)
{
	int error = send_batch(s); /* nothing else is sent in the middle of an object */

	if (!error)
		error = ut_send_out(s);
	for (int batches = 0; s->ring && !error && batches < 4; batches++) {
		/* A second look after asking to be woken: point 3 of data_ring.h. */
		dr_want_wakeup(&s->taker, 1);
		put_records(s);
		if (batches < 3)
			error = send_batch(s);
	}
	return error;
}

uint64_t ut_count_pending(struct ut_session *s)
{
	uint64_t all = 0, position = 0;
	struct ut_reg *reg;
	uint32_t number;

	for (reg = s->regs; reg; reg = reg->next)
		reg->pending = 0;
	while (s->ring && s->state != UT_UP && dr_walk(&ut_outlets[s->ring].ring, &position, &number))
		if ((reg = ut_reg_of(s, number))) {
			reg->pending++;
			all++;
		}
	return all;
}

void ut_lose_rest(struct ut_session *s)
{
	int error;

	if (!s->ring)
		return;
	error = send_batch(s);
	if (error == -EAGAIN) {
		/* The kernel allows a larger queue than a socket has by default, so a full one has room once more. */
		setsockopt(s->socket.fd, SOL_SOCKET, SO_SNDBUF, &(int){INT_MAX}, sizeof(int));
		error = send_batch(s);
	}
	/* No record, and no loss, comes any more. */
	atomic_fetch_or(&s->taker.ring.header->head, DR_CLOSED);
	if (!error)
		put_losses(s);
	ut_count_pending(s);
	for (struct ut_reg *reg = s->regs; reg && !error && has_room(s); reg = reg->next)
		if (reg->pending && is_known(s, reg))
			put_loss(s, reg->write_index, (uint32_t)reg->pending);
	if (!error)
		ut_send_bytes(s, s->pages->batch, s->batch_size, &s->batch_sent);
	s->batch_size = s->batch_sent = 0;
}
