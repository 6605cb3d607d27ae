/*
 * simulated: a process with the library in the world of tests/simulation/clients.py, which decides its time,
 * its turns and its end.
 *
 * The library is built as ever; the linker puts functions below in place of the system's (--wrap):
 *
 *     clock, cpu, process id          come from the world
 *     connect                         the world gives a socket
 *     poll, futex, nanosleep          the thread waits until the world lets it look again
 *     other calls (outside)           where a process stops, or is killed, if the world has said so
 *
 * One thread runs at a time: the main thread, which carries out commands of the world, or the native thread,
 * in a turn that the main one gives it. A command is answered when the process waits again, so a run depends
 * on nothing else.
 *
 * While the main thread waits within a command it carries out others, as a signal handler would then. So
 * commands nest, and the innermost is resumed and answered first.
 *
 * The first process of this program forks the others (START), so that they need not be loaded.
 */
#include "connection.h"
#include "events.h"
#include "utracefs.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#define CONTROL 3 /* the socket to the world; below the library's numbers */
#define CLOCK 4
#define MOST_EVENTS 8
#define FOREVER UINT64_MAX

enum {
	START,	 /* the first process: another one; a: its pid, text: its environment. With its control socket */
	DECLARE, /* a: event, text: its command */
	EMIT,	 /* a: event, b: number of the first record, c: k, bytes of text << 8, records << 32 */
	RESERVE, /* a: event: begins a record; 0 off, 1, 2 no room */
	COMMIT,	 /* b: number, c: k: ends it */
	STATUS,	 /* a: event */
	FLUSH,	 /* a: ms; whether records are left in the ring */
	CLOSE,
	EXIT,
	FORK, /* a: pid of the child, b: without fork handlers. With the child's control socket */
	COVER, /* puts a file over the connection's socket; a: whether a duplicate stays open */
	CLOSE_ALL, /* closes all descriptors that are not the world's */
	PLAN, /* a: 0 stop, 1 be killed; b: before so many calls from now on */
	TURN, /* of the native thread: 1 if it had something to do */
	RESUME, /* of the main thread, which waits: answered by the command that it is in, or by WAITS_ON */
};

enum { DONE, WAITS, WAITS_ON, STOPPED, CONNECTS };

enum { HAS_THREAD = 1, THREAD_IS_STOPPED = 2, MAIN_IS_STOPPED = 4, ALL_IS_SENT = 8 };

struct command {
	uint32_t what;
	int32_t a;
	uint64_t b, c;
	char text[512];
};

struct reply {
	uint32_t what;
	int32_t result;
	uint32_t flags, session; /* enum ut_state of the program's session and 1; 0: it has none */
	uint64_t thread_until, main_until;
	uint64_t values[8];
};

/* The wait of a thread. */
struct parked {
	enum { BEGINS, POLLS, WAITS_FOR_WORD, IS_STOPPED } kind;
	struct pollfd *polled;
	nfds_t count;
	uint32_t *word, seen;
	int is_woken;
	uint64_t until;
	struct parked *outer;
};

int __real_ppoll(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);
int __real_socket(int family, int type, int protocol);
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
void *__real_mmap(void *at, size_t size, int access, int flags, int fd, off_t offset);
int __real_close(int fd);
long __real_syscall(long number, ...);
pid_t __real_getpid(void);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg);

static const volatile uint64_t *the_clock;
static pid_t real_pid, pid, pid_of_child;
static struct utracefs_event *events[MOST_EVENTS];
static struct utracefs_reserved begun;
static int planned_end;
static uint64_t calls_left; /* until the planned stop or end; 0: none */

static struct parked *native, *waiting; /* waits of the native thread; of the main thread, innermost first */
static void *(*run_native)(void *);
static uint32_t is_natives_turn; /* futex */
static __thread int is_native;

static void serve(struct parked *wait);

static void must(int is_so, const char *what)
{
	if (!is_so) {
		dprintf(2, "simulated: %s (%s)\n", what, strerror(errno));
		__real_syscall(SYS_exit_group, 1);
	}
}

/* ---- the world */

static uint64_t now(void)
{
	return *the_clock;
}

static void send_reply(uint32_t what, int result, const uint64_t *values)
{
	const struct ut_session *s = ut_process_events.owner.session;
	struct reply reply = {.what = what, .result = result};

	if (native) {
		reply.thread_until = native->until;
		reply.flags = native->kind == IS_STOPPED ? HAS_THREAD | THREAD_IS_STOPPED : HAS_THREAD;
	}
	if (s) {
		reply.session = (uint32_t)s->state + 1;
		if (ut_is_connected(s->state) && !s->out.size && !s->to_ask)
			reply.flags |= ALL_IS_SENT;
	}
	if (waiting) {
		reply.main_until = waiting->until;
		if (waiting->kind == IS_STOPPED)
			reply.flags |= MAIN_IS_STOPPED;
	}
	if (values)
		memcpy(reply.values, values, sizeof(reply.values));
	must(send(CONTROL, &reply, sizeof(reply), MSG_NOSIGNAL) == sizeof(reply), "no world");
}

/* The descriptor that came with it, or -1. At the end of the world the process ends, too. */
static int receive(struct command *command)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {command, sizeof(*command)};
	struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
				.msg_controllen = sizeof(control)};
	struct cmsghdr *of;
	ssize_t got;
	int fd = -1;

	do
		got = __real_recvmsg(CONTROL, &header, MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	if (got <= 0)
		__real_syscall(SYS_exit_group, 0);
	must(got == sizeof(*command), "a command of another size");
	of = CMSG_FIRSTHDR(&header);
	if (of && of->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(of), sizeof(fd));
	return fd;
}

/* ---- turns */

static void give_turn(int to_native)
{
	__atomic_store_n(&is_natives_turn, (uint32_t)to_native, __ATOMIC_SEQ_CST);
	__real_syscall(SYS_futex, &is_natives_turn, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT32_MAX, NULL, NULL, 0);
}

static void await_turn(uint32_t natives)
{
	while (__atomic_load_n(&is_natives_turn, __ATOMIC_SEQ_CST) != natives)
		__real_syscall(SYS_futex, &is_natives_turn, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, !natives, NULL, NULL, 0);
}

static int is_over(const struct parked *wait)
{
	switch (wait->kind) {
	case POLLS:
		if (poll(wait->polled, wait->count, 0) > 0)
			return 1;
		break;
	case WAITS_FOR_WORD:
		if (wait->is_woken || __atomic_load_n(wait->word, __ATOMIC_SEQ_CST) != wait->seen)
			return 1;
		break;
	default:
		return 1;
	}
	return now() >= wait->until;
}

/* The thread waits; the world runs on. */
static void park(struct parked *wait)
{
	if (is_native) {
		native = wait;
		give_turn(0);
		await_turn(1);
		return;
	}
	wait->outer = waiting;
	waiting = wait;
	send_reply(wait->kind == IS_STOPPED ? STOPPED : WAITS, 0, NULL);
	serve(wait);
	waiting = wait->outer;
}

static void outside(void)
{
	struct parked stop = {.kind = IS_STOPPED};
	int error = errno;

	if (!calls_left || __real_getpid() != real_pid || --calls_left)
		return; /* (a child is the world's with its first answer) */
	if (planned_end)
		__real_syscall(SYS_kill, __real_getpid(), SIGKILL);
	park(&stop);
	errno = error;
}

static void *native_thread(void *arg)
{
	is_native = 1;
	await_turn(1);
	run_native(arg);
	native = NULL;
	give_turn(0);
	return NULL;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	static struct parked begins = {.kind = BEGINS};

	must(!native, "a second native thread");
	run_native = run;
	native = &begins;
	return __real_pthread_create(thread, attr, native_thread, arg);
}

/* ---- in place of the system's */

int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
	(void)clock;
	*time = (struct timespec){(time_t)(now() / 1000000000u), (long)(now() % 1000000000u)};
	return 0;
}

int __wrap_sched_getcpu(void)
{
	return pid % 2;
}

/* The C library then does not say where the kernel keeps the cpu. */
void *__wrap_dlsym(void *handle, const char *name)
{
	(void)handle;
	(void)name;
	return NULL;
}

/* In a child of fork(2) from its first instruction on. */
pid_t __wrap_getpid(void)
{
	return __real_getpid() == real_pid ? pid : pid_of_child;
}

pid_t __wrap_gettid(void)
{
	return is_native ? -1 : __wrap_getpid();
}

static int refused; /* what connect(2) will say of the latest socket */

/* The world's end of a connection, if it gives one. */
int __wrap_socket(int family, int type, int protocol)
{
	struct command answer;
	int given;

	outside();
	send_reply(CONNECTS, 0, NULL);
	given = receive(&answer);
	refused = given < 0 ? (int)answer.a : 0;
	return given < 0 ? __real_socket(family, type, protocol) : given;
}

int __wrap_connect(int fd, const struct sockaddr *address, socklen_t size)
{
	(void)fd;
	(void)address;
	(void)size;
	errno = refused;
	return refused ? -1 : 0;
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
	outside();
	return __real_sendmsg(fd, message, flags);
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags)
{
	outside();
	return __real_recvmsg(fd, message, flags);
}

void *__wrap_mmap(void *at, size_t size, int access, int flags, int fd, off_t offset)
{
	outside();
	return __real_mmap(at, size, access, flags, fd, offset);
}

int __wrap_close(int fd)
{
	outside();
	return __real_close(fd);
}

static uint64_t until_of(const struct timespec *time)
{
	return now() + (uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_nsec;
}

int __wrap_ppoll(struct pollfd *polled, nfds_t count, const struct timespec *time, const sigset_t *mask)
{
	struct parked wait = {.kind = POLLS, .polled = polled, .count = count, .until = FOREVER};

	if (time)
		wait.until = until_of(time);
	if (wait.until > now())
		park(&wait);
	return __real_ppoll(polled, count, &(struct timespec){0}, mask);
}

static long wait_for_word(uint32_t *word, uint32_t seen, const struct timespec *time)
{
	struct parked wait = {.kind = WAITS_FOR_WORD, .word = word, .seen = seen, .until = until_of(time)};

	errno = EAGAIN;
	if (is_over(&wait))
		return -1;
	park(&wait);
	if (wait.is_woken)
		return 0;
	errno = now() >= wait.until ? ETIMEDOUT : EINTR;
	return -1;
}

static void wake(const uint32_t *word)
{
	for (struct parked *wait = waiting; wait; wait = wait->outer)
		wait->is_woken |= wait->word == word;
	if (native)
		native->is_woken |= native->word == word;
}

long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f)
{
	static uint64_t seed;
	static uint32_t nothing;

	switch (number) {
	case SYS_futex:
		if ((b & FUTEX_CMD_MASK) == FUTEX_WAIT)
			return wait_for_word((uint32_t *)a, (uint32_t)c, (const struct timespec *)d);
		if ((b & FUTEX_CMD_MASK) == FUTEX_WAKE) {
			wake((const uint32_t *)a);
			return 0;
		}
		break;
	case SYS_nanosleep:
		return wait_for_word(&nothing, 0, (const struct timespec *)a);
	case SYS_tgkill: /* whether the native thread is there */
		errno = ESRCH;
		return native ? 0 : -1;
	case SYS_getrandom:
		seed += 0x9e3779b97f4a7c15u * (uint64_t)pid;
		memcpy((void *)a, &seed, sizeof(seed));
		return b;
	case SYS_memfd_create:
	case SYS_write:
		outside();
		break;
	}
	return __real_syscall(number, a, b, c, d, e, f);
}

/* ---- commands */

/* As UTRACEFS_EMIT does it: 0 off, 1 committed, 2 no room. */
static unsigned emit(struct utracefs_event *event, uint64_t n, uint32_t k, size_t bytes)
{
	struct utracefs_reserved reserved;
	unsigned char *at, *data;

	if (!utracefs_enabled(event))
		return 0;
	if (!utracefs_reserve(event, 16 + bytes, &reserved))
		return 2;
	at = reserved.payload;
	data = at + 16;
	utracefs_put_u64(&at, n);
	utracefs_put_u32(&at, k);
	utracefs_put_u32(&at, bytes << 16);
	memset(data, 'x', bytes - 1);
	data[bytes - 1] = 0;
	utracefs_commit(&reserved);
	return 1;
}

/* Two bits for each record. */
static uint64_t emit_all(const struct command *c)
{
	unsigned count = (unsigned)(c->c >> 32);
	uint64_t results = 0;

	for (unsigned i = 0; i < count; i++)
		results |= (uint64_t)emit(events[c->a], c->b + i, c->c & 0xff, (c->c >> 8) & 0xffffff) << 2 * i;
	return results;
}

static int reserve(const struct command *c)
{
	if (!utracefs_enabled(events[c->a]))
		return 0;
	return utracefs_reserve(events[c->a], 17, &begun) ? 1 : 2;
}

static void commit(const struct command *c)
{
	unsigned char *at = begun.payload;

	utracefs_put_u64(&at, c->b);
	utracefs_put_u32(&at, c->c);
	utracefs_put_u32(&at, 1 << 16);
	*at = 0;
	utracefs_commit(&begun);
}

static void tell_status(const struct command *c)
{
	const struct ut_reg *reg = ut_reg_of_event(events[c->a]);
	struct utracefs_event_stats stats;
	uint64_t values[8] = {0};
	int error = utracefs_event_error(events[c->a], NULL, 0);

	utracefs_event_stats(events[c->a], &stats);
	values[0] = *events[c->a]->state;
	values[1] = stats.lost;
	values[2] = stats.refused;
	if (reg) {
		values[3] = reg->unwanted;
		values[4] = reg->pending;
	}
	send_reply(DONE, error, values);
}

static void ignore(const char *text)
{
	(void)text;
}

static void be(int control, pid_t as)
{
	dup3(control, CONTROL, O_CLOEXEC);
	__real_close(control);
	real_pid = __real_getpid();
	pid = as;
	calls_left = 0;
	native = NULL;
	send_reply(DONE, real_pid, NULL);
}

static void start(const struct command *c, int control)
{
	char text[sizeof(c->text)], *at = text, *word;
	pid_t made;

	fflush(NULL);
	made = fork();
	if (made) {
		__real_close(control);
		return;
	}
	memcpy(text, c->text, sizeof(text));
	while ((word = strsep(&at, " ")) && *word)
		putenv(strdup(word));
	utracefs_on_warning(ignore);
	be(control, c->a);
}

/* In the child, which has its own control, the parent's answer is not sent. */
static void fork_now(const struct command *c, int control)
{
	pid_t made;

	pid_of_child = c->a;
	made = c->b ? _Fork() : fork();
	must(made >= 0, "fork");
	if (!made) {
		be(control, c->a);
		return;
	}
	__real_close(control);
	send_reply(DONE, made, NULL);
}

static int cover_socket(int keeps)
{
	const struct ut_session *s = ut_process_events.owner.session;
	int file, fd = s ? s->socket.fd : -1;

	if (fd < 0)
		return 0;
	if (keeps)
		fcntl(fd, F_DUPFD_CLOEXEC, 200);
	file = open("/dev/null", O_RDWR | O_CLOEXEC);
	dup3(file, fd, O_CLOEXEC);
	__real_close(file);
	return 1;
}

static void serve(struct parked *wait)
{
	for (;;) {
		struct command c;
		int fd = receive(&c);
		uint64_t values[8] = {0};
		int result = 0;

		switch (c.what) {
		case START:
			start(&c, fd);
			continue;
		case DECLARE:
			events[c.a] = utracefs_declare(c.text, 0);
			break;
		case EMIT:
			values[0] = emit_all(&c);
			break;
		case RESERVE:
			result = reserve(&c);
			break;
		case COMMIT:
			commit(&c);
			break;
		case STATUS:
			tell_status(&c);
			continue;
		case FLUSH:
			result = utracefs_flush((unsigned)c.a);
			if (ut_process_events.owner.session)
				values[0] = !ut_ring_is_taken_in(ut_process_events.owner.session->ring);
			break;
		case CLOSE:
			utracefs_close();
			break;
		case EXIT:
			exit(0);
		case FORK:
			fork_now(&c, fd);
			continue;
		case COVER:
			result = cover_socket(c.a);
			break;
		case CLOSE_ALL:
			close_range(CLOCK, ~0u, 0);
			break;
		case PLAN:
			planned_end = c.a;
			calls_left = c.b;
			break;
		case TURN:
			result = native && is_over(native);
			if (result) {
				give_turn(1);
				await_turn(0);
			}
			break;
		case RESUME:
			must(wait != NULL, "nothing to resume");
			if (is_over(wait))
				return;
			send_reply(WAITS_ON, 0, NULL);
			continue;
		}
		send_reply(DONE, result, values);
	}
}

int main(void)
{
	signal(SIGCHLD, SIG_IGN); /* ended processes are not waited for */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	the_clock = __real_mmap(NULL, 4096, PROT_READ, MAP_SHARED, CLOCK, 0);
	must(the_clock != MAP_FAILED, "no clock");
	real_pid = __real_getpid();
	serve(NULL);
}
