/*
 * Records that a forked child holds in its local ring: until the daemon answers, or without a data ring until
 * its thread has sent them.
 *
 * A child that ends before has lost them, and no other process has seen its ring. So it counts them in memory
 * that it shares with its relatives, and subtracts them as they are sent. A relative that looks afterwards
 * counts the rest as lost in its own ring: in a step of the native thread, a flush, and at the end of a
 * session. There is no timer.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "connection.h"

/* Which pid namespace `child` is of. Each child forked into another one begins one here; 0 is that of the
 * first process, and `outer` this one's pid there, 0 if unknown. */
static uint32_t namespace;
static pid_t outer;

#define NR_ENTRIES 1024u /* pairs of child and event; what finds none is not counted */
#define TAKEN (-1)	 /* being filled or emptied */

struct entry {
	_Atomic pid_t child; /* 0: free */
	_Atomic uint32_t count;
	/* The copies of a session in all relatives have one address. */
	const struct ut_session *session;
	uint32_t number, namespace;
	pid_t outer;
};

static struct held {
	_Atomic uint32_t nr_used, nr_namespaces;
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

void ut_held_start_child(void)
{
	char pid[16] = "";

	if (held && getppid() == 0) /* its parent is in another namespace */
		namespace = atomic_fetch_add(&held->nr_namespaces, 1) + 1;
	if (!namespace)
		return;
	/* The first process's /proc is still here, if this is not the pid of another. */
	outer = readlink("/proc/self", pid, sizeof(pid) - 1) > 0 ? (pid_t)strtol(pid, NULL, 10) : 0;
	if (outer == getpid())
		outer = 0;
}

static struct entry *entry_of(const struct ut_session *s, uint32_t number)
{
	pid_t own = getpid();

	for (struct entry *e = held->entries; e < held->entries + NR_ENTRIES; e++)
		if (atomic_load(&e->child) == own && e->namespace == namespace && e->session == s && e->number == number)
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
		e->namespace = namespace;
		e->outer = outer;
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
	if (s && s->forked_at && !(s->state == UT_UP && s->ring) && ut_views[ring].header) {
		dr_want_wakeup(&s->taker, 1); /* first: each later record is found now, or calls this again */
		if (s->held_to < s->taker.tail)
			s->held_to = s->taker.tail;
		while (dr_walk(&s->taker.ring, &s->held_to, &number)) {
			struct entry *e = ut_reg_of(s, number) ? entry_of(s, number) : NULL;

			if (!e && ut_reg_of(s, number))
				e = new_entry(s, number);
			if (e)
				atomic_fetch_add(&e->count, 1);
		}
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
		if (atomic_load(&e->child) == own && e->namespace == namespace && e->session == s)
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
	pid_t known = e->namespace == namespace ? child : namespace ? 0 : e->outer;

	while (s && s != e->session)
		s = s->next;
	if (!s || s->state != UT_UP || !(reg = ut_reg_of(s, e->number)) || !known ||
	    !has_ended(known))
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
