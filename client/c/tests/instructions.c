/*
 * instructions PATH INJECTION PHASE COUNT: interrupts PATH at one of its instructions, in a process for each.
 *
 *     1. A walk: a process runs the path in single steps, and notes the first two times that it is at each
 *        instruction of the library or of its inline functions.
 *     2. Of these places COUNT are tried, from PHASE on (0: all of them): a new process runs the path at full
 *        speed up to a breakpoint there. KILL happens in that place. The others happen in the handler of a
 *        signal that is sent there; where the library blocks signals that is behind it.
 *
 * A line for the walk, and one for each process of a place:
 *
 *     PLACE OFFSET TIME HANDLED STATUS FLIGHT; PID LOST RECORD...[; PID LOST RECORD...]
 *
 * TIME: the first or second one there. HANDLED: how often the injection happened. FLIGHT: how many records
 * the process had begun by then. RECORD: one that was begun while its event was on, a letter of EVENTS and
 * its number; of the process, and of its child. LOST: what the library says at its end. Records have the
 * PLACE as `who`; of the second process of a place (`fork` runs `kill` first) that is larger by SECOND.
 */
#include "binding.h"

#include <link.h>
#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

/* Each process attaches them itself: the one that forks it has not begun to use the library. */
#undef UTRACEFS_DEFINE_EVENT
#define UTRACEFS_DEFINE_EVENT(name, event_flags, text) \
	static const unsigned char utracefs_off_##name = 0; \
	static struct utracefs_event name = {&utracefs_off_##name, text, NULL, NULL, event_flags, {0, 0, 0}};

UTRACEFS_EVENT(c_step, (u32, who), (u32, i));
UTRACEFS_EVENT(c_other, (u32, who), (u32, i));
UTRACEFS_EVENT(c_text, (u32, who), (u32, i), (string, text));
UTRACEFS_SPANS(c_span, (u32, who), (u32, i));
static struct utracefs_event c_bound;

#define MOST_PLACES 20000
#define MOST_RECORDS 40
#define SECOND 1000000u

struct process {
	pid_t pid;
	uint64_t lost;
	unsigned nr;
	struct {
		char event;
		unsigned char i;
	} begun[MOST_RECORDS];
};

/* Shared by all processes. */
static struct {
	unsigned nr_places;
	struct {
		uintptr_t address;
		int time;
	} places[MOST_PLACES];
	struct process processes[2];
	unsigned handled, flight;
} *shared;

static struct process *self;
static uint32_t who;
static int is_walk, breakpoint = -1;
static volatile int is_on_path;
static sigjmp_buf out;
static sem_t asked, done, over;
static int late[2] = {-1, -1};
static pid_t child;

/* ---- records */

static struct utracefs_event *const events[] = {&c_step,       &c_other,    &c_text,
						&c_span_begin, &c_span_end, &c_bound};
#define EVENTS "sotBEb"
#define NR_EVENTS (sizeof(events) / sizeof(events[0]))

/* Whether the event is on, so that its next record has a number. (Nothing happens in here.) */
static __attribute__((noinline)) int begin(char letter, unsigned i)
{
	int was_on_path = is_on_path, is_on;

	is_on_path = 0;
	is_on = *events[strchr(EVENTS, letter) - EVENTS]->state != 0;
	if (is_on) {
		self->begun[self->nr].event = letter;
		self->begun[self->nr++].i = (unsigned char)i;
	}
	is_on_path = was_on_path;
	return is_on;
}

static void by_macro(unsigned i)
{
	if (begin('s', i))
		UTRACEFS_EMIT(c_step, who, i);
}

static void another(unsigned i)
{
	if (begin('o', i))
		UTRACEFS_EMIT(c_other, who, i);
}

static void by_pieces(unsigned i)
{
	uint32_t fixed[3] = {who, i, 3u << 16};
	struct iovec pieces[] = {{fixed, sizeof(fixed)}, {(void *)"ab", 3}};

	if (begin('t', i))
		utracefs_emit_iov(&c_text, pieces, 2);
}

static void by_binding(unsigned i)
{
	struct utb_reserved r;
	uint64_t until = 0;
	unsigned char *payload;

	if (!begin('b', i) || !utracefs_enabled(&c_bound))
		return;
	payload = utb_reserve(&c_bound, 0, 8, &r);
	while (!payload && r.needs_place) {
		int is_full = r.half, has_place = utb_find_place(&c_bound, 8, &until, NULL, NULL) > 0;

		payload = utb_reserve(&c_bound, 0, 8, &r);
		if (!is_full && !has_place)
			break;
	}
	if (!payload)
		return;
	ut_put(payload, who, 4);
	ut_put(payload + 4, i, 4);
	utb_commit(&r);
}

static void by_spans(unsigned i)
{
	char name[24]; /* of its end, as its error */

	snprintf(name, sizeof(name), "%u:%u", who, i);
	begin('B', i);
	{
		UTRACEFS_SPAN(c_span, who, i); UTRACEFS_CAT(utracefs_span_, __LINE__).error = name;
		if (i % 2 == 0)
			by_spans(i + 1);
		begin('E', i);
	}
}

static void attach(void)
{
	for (unsigned i = 0; i < NR_EVENTS; i++)
		if (events[i] != &c_bound)
			utracefs_attach(events[i]);
	utb_attach(utb_process_session(), &c_bound);
}

/* All events are answered, and the daemon sleeps. */
static void begin_all(void)
{
	attach();
	for (unsigned i = 0; i < NR_EVENTS; i++)
		utracefs_enabled(events[i]);
	by_macro(0);
	another(1);
	if (utracefs_flush(20000))
		_exit(10);
}

/* ---- paths */

static void macro(void)
{
	by_macro(10);
	by_macro(11);
}

static void pieces(void)
{
	by_pieces(10);
	by_pieces(11);
}

static void binding(void)
{
	by_binding(10);
	by_binding(11);
}

static void spans(void)
{
	by_spans(10);
}

static void first(void)
{
	utracefs_attach(&c_step);
	by_macro(10);
	utb_attach(utb_process_session(), &c_bound);
	by_binding(11);
}

static void enabled(void)
{
	utracefs_attach(&c_step);
	utracefs_enabled(&c_step);
	by_macro(10);
}

static void flush(void)
{
	by_macro(10);
	utracefs_flush(20000);
	by_macro(11);
}

static void again(void)
{
	another(10);
	utracefs_detach(&c_other);
	another(11);
	utracefs_attach(&c_other);
	another(12);
}

static void closes(void)
{
	by_macro(10);
	utracefs_close();
	by_macro(11);
}

static const struct path {
	const char *name;
	void (*run)(void);
	enum { WARM, FRESH, FORKED } from; /* FORKED: of a parent that emits */
} paths[] = {
	{"macro", macro, WARM},	   {"pieces", pieces, WARM}, {"binding", binding, WARM},
	{"spans", spans, WARM},	   {"flush", flush, WARM},   {"again", again, WARM},
	{"close", closes, WARM},   {"first", first, FRESH},  {"enabled", enabled, FRESH},
	{"child", macro, FORKED},  {"child-binding", binding, FORKED},
}, *path;

/* ---- injections */

static void emit_here(unsigned i)
{
	by_macro(i);
	another(i + 1);
	by_spans(i + 3); /* an odd number: one span */
	by_binding(i + 4);
}

static void note_losses(void)
{
	uint64_t lost = 0;

	for (unsigned i = 0; i < NR_EVENTS; i++) {
		struct utracefs_event_stats stats;

		utracefs_event_stats(events[i], &stats);
		lost += stats.lost;
	}
	self->lost = lost;
}

static void start_child(void)
{
	self = &shared->processes[1];
	self->pid = getpid();
	alarm(20);
}

static void end_child(void)
{
	note_losses();
	_exit(0);
}

static void wait_for_child(void)
{
	int status = 0;

	if (child > 0 && (waitpid(child, &status, 0) != child || status))
		_exit(WIFSIGNALED(status) ? 100 + WTERMSIG(status) : 50 + WEXITSTATUS(status));
	child = 0;
}

static void kills(void)
{
	kill(getpid(), SIGKILL);
}

/* Another thread's records are behind the one in flight. */
static void kills_with_others(void)
{
	sem_post(&asked);
	sem_wait(&done);
	kills();
}

static void emits(void)
{
	emit_here(20);
}

/* The child comes back from here, and ends. Then this process continues. */
static void forks(void)
{
	child = fork();
	if (!child) {
		start_child();
		emit_here(30);
		return;
	}
	wait_for_child();
	by_macro(29);
}

/* The same, but it waits here until the daemon has this process's records. */
static void forks_late(void)
{
	char byte;

	child = fork();
	if (!child) {
		start_child();
		close(late[1]);
		if (read(late[0], &byte, 1) != 1)
			_exit(12);
		return;
	}
	by_macro(29);
}

static void forks_and_ends(void)
{
	child = fork();
	if (!child) {
		start_child();
		emit_here(30);
		end_child();
	}
	wait_for_child();
}

static void forks_and_exits(void)
{
	child = fork();
	if (!child) {
		start_child();
		emit_here(30);
		exit(0);
	}
	wait_for_child();
}

static void vforks(void)
{
	pid_t made = vfork();

	if (!made) {
		emit_here(20);
		_exit(0);
	}
	child = made;
	wait_for_child();
}

static void clones(void)
{
	child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (!child) {
		start_child();
		emit_here(30);
		end_child();
	}
	wait_for_child();
}

static void leaves(void)
{
	siglongjmp(out, 1);
}

static void cancels(void)
{
	pthread_cancel(pthread_self());
}

static void exits(void)
{
	exit(0);
}

/* By another thread. */
static void asks(void)
{
	sem_post(&asked);
	sem_wait(&done);
}

static void exit_there(void)
{
	exit(0);
}

static void end_there(void)
{
	utb_end();
}

static void detach_there(void)
{
	utracefs_detach(&c_step);
	utracefs_detach(&c_bound);
}

static void emit_there(void)
{
	emit_here(20);
}

static const struct injection {
	const char *name;
	void (*run)(void);
	void (*there)(void); /* in another thread */
} injections[] = {
	{"kill", kills, NULL},		  {"kill-others", kills_with_others, emit_there},
	{"emit", emits, NULL},		  {"emit-there", asks, emit_there},
	{"fork", forks, NULL},		  {"fork-late", forks_late, NULL},
	{"fork-end", forks_and_ends, NULL}, {"fork-exit", forks_and_exits, NULL},
	{"vfork", vforks, NULL},	  {"clone", clones, NULL},
	{"longjmp", leaves, NULL},	  {"cancel", cancels, NULL},
	{"exit", exits, NULL},		  {"exit-there", asks, exit_there},
	{"close-there", asks, utracefs_close}, {"end-there", asks, end_there},
	{"detach-there", asks, detach_there},
}, *injection;

static int happens_at_once(void)
{
	return injection->run == kills || injection->run == kills_with_others;
}

static void happen(void)
{
	shared->handled++;
	shared->flight = self->nr;
	injection->run();
}

static void on_signal(int number)
{
	int error = errno;

	(void)number;
	happen();
	errno = error;
}

static void *other_thread(void *unused)
{
	sem_wait(&asked);
	injection->there();
	sem_post(&done);
	pause();
	return unused;
}

/* Behind the library's own destructors: threads still run. */
__attribute__((destructor(101))) static void last(void)
{
	if (self && self->pid == getpid() && injection->there == exit_there && shared->handled) {
		sem_post(&done);
		sem_wait(&over);
	}
}

/* ---- steps and breakpoints */

static uintptr_t begin_of_text, end_of_text;

static int find_text(struct dl_phdr_info *object, size_t size, void *unused)
{
	(void)size, (void)unused;
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];
		uintptr_t at = object->dlpi_addr + part->p_vaddr, address = (uintptr_t)utracefs_flush;

		if (part->p_type == PT_LOAD && address >= at && address < at + part->p_memsz) {
			begin_of_text = at;
			end_of_text = at + part->p_memsz;
			return 1;
		}
	}
	return 0;
}

static int is_ours(uintptr_t address)
{
	return address >= begin_of_text && address < end_of_text;
}

/* A trap of this thread when it is at `address` for the `time`th time from now on. */
static int make_breakpoint(uintptr_t address, int time)
{
	struct perf_event_attr wanted = {
		.type = PERF_TYPE_BREAKPOINT,
		.size = sizeof(wanted),
		.bp_type = HW_BREAKPOINT_X,
		.bp_addr = address,
		.bp_len = sizeof(long),
		.sample_period = (uint64_t)time,
		.sigtrap = 1,
		.remove_on_exec = 1,
		.exclude_kernel = 1,
		.exclude_hv = 1,
	};

	return (int)syscall(SYS_perf_event_open, &wanted, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

static void note_place(uintptr_t address)
{
	int time = 1;

	for (unsigned i = 0; i < shared->nr_places; i++)
		time += shared->places[i].address == address;
	if (time > 2 || shared->nr_places == MOST_PLACES)
		return;
	shared->places[shared->nr_places].address = address;
	shared->places[shared->nr_places++].time = time;
}

#ifdef __x86_64__
/* Calls of other libraries run at full speed: their ends are breakpoints. */
static void walk(ucontext_t *here, int is_mark)
{
	static int walks, was_ours;
	uintptr_t at = (uintptr_t)here->uc_mcontext.gregs[REG_RIP];
	uintptr_t back = *(uintptr_t *)here->uc_mcontext.gregs[REG_RSP];
	int is_call = was_ours && !is_ours(at) && is_ours(back);

	if (breakpoint >= 0)
		close(breakpoint);
	breakpoint = -1;
	walks ^= is_mark;
	was_ours = is_ours(at);
	here->uc_mcontext.gregs[REG_EFL] &= ~0x100l;
	if (was_ours && is_on_path)
		note_place(at);
	if (walks && (!is_call || (breakpoint = make_breakpoint(back, 1)) < 0))
		here->uc_mcontext.gregs[REG_EFL] |= 0x100;
}
#else
static void walk(ucontext_t *here, int is_mark)
{
	(void)here, (void)is_mark;
}
#endif

static void on_trap(int number, siginfo_t *info, void *context)
{
	int error = errno;

	if (is_walk) {
		walk(context, info->si_code <= 0);
	} else {
		close(breakpoint);
		if (happens_at_once())
			happen();
		else
			raise(SIGUSR1); /* this handler blocks it */
	}
	errno = error;
	(void)number;
}

/* ---- a process */

static __attribute__((noinline)) void do_path(void)
{
	is_on_path = 1;
	path->run();
	is_on_path = 0;
}

static void *interrupt_path(void *unused)
{
	unsigned place = who % SECOND;

	breakpoint = make_breakpoint(shared->places[place].address, shared->places[place].time);
	if (breakpoint < 0)
		_exit(13);
	if (!sigsetjmp(out, 1))
		do_path();
	ioctl(breakpoint, PERF_EVENT_IOC_DISABLE, 0);
	pthread_testcancel();
	return unused;
}

static void walk_path(void)
{
	raise(SIGTRAP); /* begins or ends it */
	do_path();
	raise(SIGTRAP);
}

static void run(void)
{
	struct sigaction on_trace = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_RESTART};
	struct sigaction on_usr1 = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	pthread_t made;
	void *result;

	alarm(20);
	self = &shared->processes[0];
	self->pid = getpid();
	atexit(note_losses);
	sigfillset(&on_trace.sa_mask);
	sigaction(SIGTRAP, &on_trace, NULL);
	sigaction(SIGUSR1, &on_usr1, NULL);
	if (path->from == WARM)
		begin_all();
	if (injection->there)
		pthread_create(&made, NULL, other_thread, NULL);
	if (injection->run == forks_late && pipe(late))
		_exit(14);
	if (is_walk) {
		walk_path();
	} else if (injection->run == cancels) {
		pthread_create(&made, NULL, interrupt_path, NULL);
		pthread_join(made, &result);
	} else {
		interrupt_path(NULL);
	}
	by_macro(90);
	another(91);
	if (self == &shared->processes[0] && child > 0) { /* forks_late */
		if (utracefs_flush(20000) || write(late[1], "", 1) != 1)
			_exit(15);
		wait_for_child();
		by_macro(92);
		if (utracefs_flush(20000))
			_exit(16);
	}
	sem_post(&over);
	if (injection->there == exit_there && shared->handled)
		pause();
	exit(0);
}

static void print_process(const struct process *one)
{
	if (!one->pid)
		return;
	printf("; %d %lu", one->pid, (unsigned long)one->lost);
	for (unsigned i = 0; i < one->nr; i++)
		printf(" %c%d", one->begun[i].event, one->begun[i].i);
}

static void play(unsigned place, const struct injection *wanted)
{
	unsigned long offset = 0;
	int status = 0, time = 0;
	pid_t pid;

	memset(shared->processes, 0, sizeof(shared->processes));
	shared->handled = shared->flight = 0;
	injection = wanted;
	who = place;
	pid = fork();
	if (!pid)
		run();
	waitpid(pid, &status, 0);
	if (!is_walk) {
		offset = (unsigned long)(shared->places[place % SECOND].address - begin_of_text);
		time = shared->places[place % SECOND].time;
	}
	printf("%u %lx %d %u %d %u", who, offset, time, shared->handled, status, shared->flight);
	print_process(&shared->processes[0]);
	print_process(&shared->processes[1]);
	printf("\n");
	fflush(stdout);
}

/* So early that at the exit destructors of the library run before its function of atexit(3). */
__attribute__((constructor)) static void begin_early(int argc, char **argv)
{
	if (argc > 1 && strncmp(argv[1], "child", 5) == 0)
		utracefs_attach(&c_step);
}

/* The program is main() alone: so the library is in one that the program is linked with. */
int instructions(int argc, char **argv) __attribute__((visibility("default")));

int instructions(int argc, char **argv)
{
	unsigned phase, count, stride;
	const struct injection *wanted = NULL;
	int keep;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (unsigned i = 0; argc == 5 && i < sizeof(paths) / sizeof(paths[0]); i++)
		if (strcmp(paths[i].name, argv[1]) == 0)
			path = &paths[i];
	for (unsigned i = 0; path && i < sizeof(injections) / sizeof(injections[0]); i++)
		if (strcmp(injections[i].name, argv[2]) == 0)
			wanted = &injections[i];
	if (!wanted)
		return 2;
	phase = (unsigned)atoi(argv[3]);
	count = (unsigned)atoi(argv[4]);
	dl_iterate_phdr(find_text, NULL);
	/* While there is one, the next one takes the kernel 4 us in place of 7 ms. */
	keep = make_breakpoint((uintptr_t)instructions, 1);
#ifdef __x86_64__
	if (keep < 0)
#endif
	{
		printf("no breakpoints here: %s\n", strerror(errno));
		return 0;
	}
	utb_event_init(&c_bound, "c_bound u32 who; u32 i", 0);
	sem_init(&asked, 0, 0), sem_init(&done, 0, 0), sem_init(&over, 0, 0);
	if (path->from == FORKED) {
		self = &shared->processes[0];
		who = 3 * SECOND;
		begin_all();
	}
	is_walk = 1;
	play(2 * SECOND, &injections[0]);
	is_walk = 0;
	stride = count && shared->nr_places > count ? shared->nr_places / count : 1;
	for (unsigned place = phase % stride; place < shared->nr_places; place += stride) {
		if (wanted->run == forks || wanted->run == forks_late) {
			play(place, &injections[0]);
			play(place + SECOND, wanted);
		} else {
			play(place, wanted);
		}
	}
	close(keep);
	return 0;
}
