/*
 * Records that a forked child holds in its local ring until the daemon answers.
 *
 * A child that ends before has lost them, and no other process has seen its ring. So it counts them in memory
 * that it shares with its relatives, and subtracts them as they are sent. A relative that looks afterwards
 * counts the rest as lost in its own ring: in a step of the native thread, a flush, and at the end of a
 * session. There is no timer.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "connection.h"

#define NR_ENTRIES 1024u /* pairs of child and event; what finds none is not counted */
#define TAKEN (-1)	 /* being filled or emptied */

struct entry {
	_Atomic pid_t child; /* 0: free */
	_Atomic uint32_t count;
	/* The copies of a session in all relatives have one address. */
	const struct ut_session *session;
	uint32_t number;
};

static struct held {
	_Atomic uint32_t nr_used;
	struct entry entries[NR_ENTRIES];
} *held;

void ut_held_init(void)
{
	void *at;

	if (held)
		return;
	at = mmap(NULL, sizeof(*held), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	held = at == MAP_FAILED ? NULL : at;
}

void ut_held_end(void)
{
	if (held)
		munmap(held, sizeof(*held));
	held = NULL;
}

static struct entry *entry_of(const struct ut_session *s, uint32_t number)
{
	pid_t own = getpid();

	for (struct entry *e = held->entries; e < held->entries + NR_ENTRIES; e++)
		if (atomic_load(&e->child) == own && e->session == s && e->number == number)
			return e;
	return NULL;
}

static struct entry *new_entry(struct ut_session *s, uint32_t number)
{
	for (struct entry *e = held->entries; e < held->entries + NR_ENTRIES; e++) {
		pid_t none = 0;

		if (!atomic_compare_exchange_strong(&e->child, &none, TAKEN))
			continue;
		e->session = s;
		e->number = number;
		atomic_store(&e->count, 0);
		atomic_fetch_add(&held->nr_used, 1);
		atomic_store(&e->child, getpid());
		s->is_holding = 1;
		return e;
	}
	return NULL;
}

static void free_entry(struct entry *e)
{
	atomic_fetch_sub(&held->nr_used, 1);
	atomic_store(&e->child, 0);
}

void ut_held_count(uint32_t ring)
{
	struct ut_session *s;
	uint32_t number;

	if (!held || ut_process_is_guest())
		return;
	ut_lock();
	for (s = ut_sessions; s && s->local != ring; s = s->next)
		;
	if (s && s->forked_at && s->state != UT_UP && ut_views[ring].header) {
		while (dr_walk(&s->taker.ring, &s->held_to, &number)) {
			struct entry *e = ut_reg_of(s, number) ? entry_of(s, number) : NULL;

			if (!e && ut_reg_of(s, number))
				e = new_entry(s, number);
			if (e)
				atomic_fetch_add(&e->count, 1);
		}
		dr_want_wakeup(&s->taker, 1);
	}
	ut_unlock();
}

void ut_held_sent(struct ut_session *s, uint32_t number)
{
	struct entry *e = s->is_holding ? entry_of(s, number) : NULL;

	if (e && atomic_load(&e->count))
		atomic_fetch_sub(&e->count, 1);
}

void ut_held_free(struct ut_session *s)
{
	pid_t own = getpid();

	if (!s->is_holding)
		return;
	s->is_holding = 0;
	for (struct entry *e = held->entries; e < held->entries + NR_ENTRIES; e++)
		if (atomic_load(&e->child) == own && e->session == s)
			free_entry(e);
}

static int has_ended(pid_t child)
{
	siginfo_t info = {0};

	/* A zombie has; nothing is taken from the program's wait(2). */
	if (waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0)
		return info.si_pid == child;
	return kill(child, 0) < 0 && errno == ESRCH;
}

static void collect(struct entry *e, pid_t child)
{
	const struct ut_session *s = ut_sessions;
	struct ut_reg *reg;
	uint32_t ring;

	while (s && s != e->session)
		s = s->next;
	if (!s || s->state != UT_UP || !(reg = ut_reg_of(s, e->number)) || !has_ended(child))
		return;
	ring = s->ring ? s->ring : s->local;
	if (!ut_views[ring].header || !atomic_compare_exchange_strong(&e->child, &child, TAKEN))
		return;
	if (reg->state == UT_ANSWERED)
		dr_count_lost_of(&ut_outlets[ring].ring, s->ring ? reg->write_index : reg->number,
				 atomic_load(&e->count));
	free_entry(e);
}

void ut_held_collect(void)
{
	if (!held || !atomic_load(&held->nr_used) || ut_process_is_guest())
		return;
	for (struct entry *e = held->entries; e < held->entries + NR_ENTRIES; e++) {
		pid_t child = atomic_load(&e->child);

		if (child > 0 && child != getpid())
			collect(e, child);
	}
}
