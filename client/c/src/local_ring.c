/* The ring of our own, where the daemon gives none: from there into the socket. */
#include <endian.h>

#include "bin.h"
#include "core.h"

int ut_ring_make_local(struct ut_session *s)
{
	int made;

	if (s->local && ut_views[s->local].header)
		return 0;
	ut_session_give_up(s, &s->local, NULL); /* its parent's */
	made = ut_ring_make(s->settings.local_bytes);
	s->local = made > 0 ? (uint32_t)made : 0;
	if (!s->local)
		return made;
	s->taker.ring = ut_outlets[s->local].ring;
	dr_consumer_start(&s->taker);
	return 0;
}

int ut_ring_has_records(const struct ut_session *s)
{
	return s->local && atomic_load(&s->taker.ring.header->head) != s->taker.tail;
}

/* Calls `count` for each record that was taken from the ring and is not wholly sent. */
static void for_unsent(struct ut_session *s, void (*count)(struct ut_reg *, uint64_t *), uint64_t *all)
{
	ssize_t size;

	for (size_t at = 0; s->out_sent < s->out.size && at < s->out.size; at += (size_t)size) {
		const uint8_t *object = s->out.data + at;
		uint32_t data, write_index;
		unsigned header = bin_get_header(object, s->out.size - at, &data);

		size = ut_object_size(object, s->out.size - at);
		if (size <= 0)
			return;
		if (!header || at + (size_t)size <= s->out_sent)
			continue;
		write_index = bin_take_apart(object + header, data).write_index;
		if (!(write_index & DR_REFUSED))
			count(ut_reg_of_daemons(s, write_index), all);
	}
}

static void count_pending(struct ut_reg *reg, uint64_t *all)
{
	if (reg) {
		reg->pending++;
		++*all;
	}
}

uint64_t ut_count_pending(struct ut_session *s)
{
	uint64_t all = 0, position;
	uint32_t index;

	for (struct ut_reg *reg = s->regs; reg; reg = reg->next)
		reg->pending = 0;
	/* (dr_walk begins at the told tail for a position of 0: then nothing was taken yet.) */
	position = s->taker.tail;
	while (s->local && ut_views[s->local].header && dr_walk(&s->taker.ring, &position, &index))
		if (!(index & DR_REFUSED))
			count_pending(ut_reg_of(s, index), &all);
	for_unsent(s, count_pending, &all);
	return all;
}

/* In the form of the socket, signed where that has room; its bytes. */
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

void ut_take_records(struct ut_session *s)
{
	uint8_t *payload = s->memory + UT_IN_BYTES + UT_OUT_BYTES;
	struct dr_taken taken;
	uint64_t holes = 0;

	for (int looks = 0; looks < 2; looks++) {
		if (dr_look(&s->taker))
			return; /* cannot be: nobody else has this memory */
		while (UT_OUT_BYTES - s->out.size > 65536 + 64 &&
		       dr_next(&s->taker, &taken, payload, DR_MAX_PAYLOAD, 0, &holes) == DR_RECORD) {
			struct ut_reg *reg = ut_reg_of(s, taken.write_index & ~DR_REFUSED);
			uint8_t *at = s->out.data + s->out.size;

			if (s->ring && reg && *(const volatile uint8_t *)atomic_load(&reg->status) == 0) {
				; /* written before the answer, which says that no consumer is attached */
			} else if (reg && reg->state == UT_ANSWERED) {
				uint32_t flag = taken.write_index & DR_REFUSED;

				s->out.size +=
					put_record(at, reg->write_index | flag, &taken, payload, s->takes_writers);
			} else if (reg && !(taken.write_index & DR_REFUSED)) {
				atomic_fetch_add(&reg->lost, 1);
			}
			dr_advance(&s->taker, taken.bytes);
		}
		dr_publish(&s->taker);
		/* A second look after asking to be woken: point 3 of data_ring.h. */
		dr_want_wakeup(&s->taker, 1);
	}
}

static void count_lost(struct ut_reg *reg, uint64_t *all)
{
	(void)all;
	if (reg)
		atomic_fetch_add(&reg->lost, 1);
}

void ut_count_unsent(struct ut_session *s)
{
	for_unsent(s, count_lost, NULL);
}
