/* The ring of our own, where the daemon gives none: from there into the socket. */
#include <endian.h>

#include "bin.h"
#include "core.h"

int ut_ring_has_records(const struct ut_session *s)
{
	return s->local && atomic_load(&s->taker.ring.header->head) != s->taker.tail;
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
			struct ut_reg *reg = ut_reg_of(s, taken.write_index);
			uint8_t *at = s->out.data + s->out.size;

			if (reg && reg->state == UT_ANSWERED) {
				uint32_t write_index = htole32(reg->write_index);
				unsigned header = bin_put_header(at, taken.length + 4);

				memcpy(at + header, &write_index, 4);
				memcpy(at + header + 4, payload, taken.length);
				s->out.size += header + 4 + taken.length;
			} else if (reg) {
				atomic_fetch_add(&reg->lost, 1);
			}
			dr_advance(&s->taker, taken.bytes);
		}
		dr_publish(&s->taker);
		/* A second look after asking to be woken: point 3 of data_ring.h. */
		dr_want_wakeup(&s->taker, 1);
	}
}
