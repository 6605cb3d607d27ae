/* All sessions; the registrations of one, found by number, by the daemon's write_index, or in their order. */
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
		reg->state = UT_TO_ASK;
	s->to_ask = s->regs;
	s->answered = NULL;
	if (s->buckets)
		memset(s->buckets, 0, s->nr_buckets * sizeof(struct ut_reg *));
}

void ut_reg_enter(struct ut_reg *reg)
{
	struct ut_session *s = reg->session;
	struct ut_reg **at = &s->buckets[reg->write_index & (s->nr_buckets - 1)];

	while (*at)
		at = &(*at)->next_of_index;
	reg->next_of_index = NULL;
	*at = reg;
}

struct ut_reg *ut_reg_of_daemons(const struct ut_session *s, int64_t write_index)
{
	struct ut_reg *reg = s->buckets ? s->buckets[write_index & (s->nr_buckets - 1)] : NULL;

	while (reg && reg->write_index != write_index)
		reg = reg->next_of_index;
	return reg;
}

struct ut_by_index ut_regs_by_old_index(const struct ut_session *s)
{
	struct ut_by_index old = {NULL, 0};
	struct ut_reg *reg;

	for (reg = s->regs; reg; reg = reg->next)
		if (reg->old_index >= old.size)
			old.size = reg->old_index + 1;
	if (old.size <= UT_NR_CHUNKS * UT_CHUNK) /* more events than a daemon has */
		old.regs = ut_map(((size_t)old.size + 1) * sizeof(*old.regs));
	if (!old.regs)
		old.size = 0;
	for (reg = s->regs; reg && old.regs; reg = reg->next)
		if (reg->old_index >= 0)
			old.regs[reg->old_index] = reg;
	return old;
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

/* Makes buckets for one more. 0 or -ENOMEM. */
static int make_buckets(struct ut_session *s)
{
	uint32_t wanted = s->nr_buckets ? 2 * s->nr_buckets : 16;
	struct ut_reg **made, **old = s->buckets;

	if (s->nr_regs < s->nr_buckets)
		return 0;
	made = calloc(wanted, sizeof(struct ut_reg *));
	if (!made)
		return -ENOMEM;
	s->buckets = made;
	s->nr_buckets = wanted;
	for (struct ut_reg *reg = s->regs; reg; reg = reg->next)
		if (reg->state == UT_ANSWERED)
			ut_reg_enter(reg);
	free(old);
	return 0;
}

struct ut_reg *ut_reg_new(struct ut_session *s, const char *command, uint32_t flags)
{
	struct ut_reg *reg = NULL;
	uint32_t room = 0; /* fields of dynamic length have a type __data_loc or __rel_loc */

	for (const char *at = command; (at = strstr(at, "_loc")); at++)
		room++;
	if (!make_buckets(s))
		reg = calloc(1, sizeof(*reg) + room * sizeof(*reg->locs));
	if (reg)
		reg->command = strdup(command);
	if (!reg || !reg->command) {
		free(reg);
		return NULL;
	}
	reg->session = s;
	reg->flags = flags;
	reg->room = room;
	reg->number = reg->parents_index = UT_NO_NUMBER;
	reg->old_index = -1;
	atomic_store(&reg->status, &ut_off);
	*s->end_of_regs = reg;
	s->end_of_regs = &reg->next;
	s->nr_regs++;
	if (!s->to_ask)
		s->to_ask = reg;
	return reg;
}

int ut_reg_number(struct ut_reg *reg)
{
	struct ut_session *s = reg->session;
	uint32_t number = s->nr_numbers, chunk = number / UT_CHUNK;

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
	s->nr_numbers++;
	return 0;
}

void ut_reg_free(struct ut_reg *reg)
{
	ut_free_later(reg->command);
	ut_free_later(reg);
}

void ut_reg_remove(struct ut_reg *reg)
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
	for (at = &s->answered; *at; at = &(*at)->next_answered)
		if (*at == reg) {
			*at = reg->next_answered;
			break;
		}
	for (at = &s->buckets[reg->write_index & (s->nr_buckets - 1)]; *at; at = &(*at)->next_of_index)
		if (*at == reg) {
			*at = reg->next_of_index;
			break;
		}
	s->nr_regs--;
	ut_reg_free(reg);
}
