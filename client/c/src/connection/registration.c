/*
 * All sessions; the registrations of one, found by number or in their order.
 *
 * The order is that in which the program registered (but see ut_reg_number_last), and each new connection
 * repeats it, so that events that the daemon numbers get the same numbers. The number is what a record has in
 * the ring, and a write(2) in front of its payload; chunks of numbers are never moved, since a write reads
 * them without the lock.
 *
 * For the same reason a registration that has ended is not freed at once: an emit may be stopped between its
 * look at the pointer and its use, for any time. It waits for NR_LATER later ones (ut_free_later). That is no
 * proof; but who holds a pointer for so long would use an event after the end of its session.
 */
#include <stdlib.h>

#include "connection.h"
#include "utracefs.h"

struct ut_session *ut_sessions;

const uint8_t ut_off = 0, ut_pending = UT_PENDING;

#define NR_LATER 4096u /* blocks that wait before they are freed */

void ut_free_later(void *block)
{
	static void *later[NR_LATER];
	static unsigned at;

	if (ut_phase != UT_EXITS)
		free(later[at]);
	later[at] = block;
	at = (at + 1) % NR_LATER;
}

void ut_free_all_later(void)
{
	for (unsigned i = 0; i < NR_LATER; i++)
		ut_free_later(NULL);
}

void ut_reg_point(struct ut_reg *reg, const uint8_t *status)
{
	atomic_store_explicit(&reg->status, status, memory_order_release);
	atomic_store(&reg->inherited, NULL);
	for (struct utracefs_event *event = reg->events; event; event = event->next)
		__atomic_store_n(&event->state, status, __ATOMIC_RELEASE);
}

void ut_ask_anew(struct ut_session *s)
{
	for (struct ut_reg *reg = s->regs; reg; reg = reg->next)
		/* (Not one that was refused after its call had given up: others may have the number that it would
		 * get.) */
		if (reg->state != UT_REFUSED || reg->number != UT_NO_NUMBER)
			reg->state = UT_TO_ASK;
	s->to_ask = s->regs;
	for (struct ut_enabler *enabler = s->enablers; enabler; enabler = enabler->next)
		enabler->state = UT_TO_ASK;
}

struct ut_reg *ut_reg_of_daemons(const struct ut_session *s, int64_t write_index)
{
	struct ut_reg *reg = write_index < 0 ? NULL : ut_reg_of(s, (uint32_t)write_index);

	if (reg && reg->write_index == write_index && (reg->state == UT_ANSWERED || ut_is_early(s)))
		return reg;
	for (reg = s->state == UT_UP ? NULL : s->regs; reg; reg = reg->next)
		if (reg->number != UT_NO_NUMBER && reg->state == UT_ANSWERED && reg->write_index == write_index)
			return reg;
	return NULL;
}

void ut_reg_count_refused(struct ut_reg *reg, int error, uint64_t count)
{
	unsigned i = 0;

	while (i < reg->nr_refusals && reg->refusals[i].error != error)
		i++;
	if (i == UT_REFUSALS)
		i--;
	else if (i == reg->nr_refusals)
		reg->refusals[reg->nr_refusals++] = (struct ut_refusal){0, error};
	reg->refusals[i].count += count;
	reg->refused += count;
}

static void append(struct ut_reg *reg)
{
	struct ut_session *s = reg->session;

	reg->next = NULL;
	*s->end_of_regs = reg;
	s->end_of_regs = &reg->next;
	if (!s->to_ask && reg->state == UT_TO_ASK)
		s->to_ask = reg;
}

static void take_out(struct ut_reg *reg)
{
	struct ut_session *s = reg->session;
	struct ut_reg **at = &s->regs;

	while (*at != reg)
		at = &(*at)->next;
	*at = reg->next;
	if (!*at)
		s->end_of_regs = at;
	if (s->to_ask == reg)
		s->to_ask = reg->next;
}

void ut_reg_remove(struct ut_reg *reg)
{
	take_out(reg);
	ut_free_later(reg);
}

struct ut_reg *ut_reg_new(struct ut_session *s, const char *command, uint32_t flags)
{
	struct ut_reg *reg;
	uint32_t room = 0; /* fields of dynamic length have a type __data_loc or __rel_loc */

	for (const char *at = command; (at = strstr(at, "_loc")); at++)
		room++;
	reg = calloc(1, sizeof(*reg) + room * sizeof(*reg->locs) + strlen(command) + 1);
	if (!reg)
		return NULL;
	reg->command = strcpy((char *)&reg->locs[room], command);
	reg->session = s;
	reg->flags = flags;
	reg->room = room;
	reg->number = UT_NO_NUMBER;
	atomic_store(&reg->status, &ut_off);
	append(reg);
	return reg;
}

int ut_reg_number(struct ut_reg *reg, uint32_t number)
{
	struct ut_session *s = reg->session;
	uint32_t chunk = number / UT_CHUNK;

	if (chunk >= UT_NR_CHUNKS)
		return -EMFILE;
	if (!s->chunks[chunk]) {
		_Atomic(struct ut_reg *) *made = calloc(UT_CHUNK, sizeof(*made));

		if (!made)
			return -ENOMEM;
		s->chunks[chunk] = made;
	}
	reg->number = number;
	s->chunks[chunk][number % UT_CHUNK] = reg;
	if (number >= s->nr_numbers)
		s->nr_numbers = number + 1;
	return 0;
}

/* A daemon takes numbers that ascend, and gives the next one where none is asked for. So the list has to be
 * in the order of the numbers; that of an event whose answer came late is above those of later events, if a
 * daemon without the ring answered. */
int ut_reg_number_last(struct ut_reg *reg)
{
	struct ut_session *s = reg->session;
	int error = ut_reg_number(reg, s->nr_numbers);

	take_out(reg);
	append(reg);
	for (struct ut_reg *one = s->regs, *next; one != reg; one = next) {
		next = one->next;
		if (one->number == UT_NO_NUMBER) {
			take_out(one);
			append(one);
		}
	}
	return error;
}

int ut_reg_is_too_new(const struct ut_reg *reg)
{
	const struct ut_session *s = reg->session;

	return reg->state == UT_TO_ASK && !ut_is_connected(s->state) && ut_outlets[s->ring].was_read;
}

void ut_reg_place(struct ut_reg *reg)
{
	const struct ut_session *s = reg->session;

	/* (A child of an older daemon counts records before the answer in its parent's ring.) */
	if (s->ring && reg->number != UT_NO_NUMBER && reg->state != UT_REFUSED && !ut_reg_is_too_new(reg) &&
	    (reg->state == UT_ANSWERED || !s->parents || ut_has_numbers(s)))
		atomic_store(&reg->place, ut_place(s->ring, reg->number));
}
