/*
 * limits STEPS: a program that does its steps, one letter each, whatever its limits are.
 *
 *     e   emits 100 records            t   the same in a thread with the smallest stack
 *     f   in a forked child            F   in a child of _Fork, which calls no handlers of fork
 *     c   in a child of clone(2)       v   in a child of vfork(2)
 *     k   in a forked child that tests an event of its own, and then finds no daemon any more
 *     h   emits one in a handler on the smallest alternate stack
 *     s   flushes                      w   waits for a line      L   emits until a line
 *     p   makes the id of a span
 *     l   locks all memory, now and in future
 *     C   closes all descriptors       D   puts /dev/null over each of them
 *     R   chroot to an empty place     i   becomes another user
 *     P, M, U   unshares its pid, mount or user namespace
 *     r   gets an errno from system calls, or with 0 is killed by them: REFUSED is "ERRNO NUMBER... -1"; with
 *         EARLY from the beginning on, before the library's; with TRAP a handler of SIGSYS gives the errno
 *
 * Prints what became of each step, which tracing must not change, and a line on its emits: their number, how
 * many of them gave the cpu away, the longest of these in us, the time of the first ones of processes, which
 * connect, and the most address space that was used. Ends with status 3.
 */
#define _GNU_SOURCE
#ifdef WITHOUT_TRACING
#define UTRACEFS_EVENT(...)
#define UTRACEFS_EMIT(name, who, i) ((void)(who), (void)(i))
#define utracefs_flush(ms) 0
#define utracefs_declare(command, flags) 0
#define utracefs_enabled(event) (event)
#define utracefs_new_span_id() 1
#else
#include <utracefs.h>
#endif

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

UTRACEFS_EVENT(c_count, (u32, who), (u64, i));

static struct {
	_Atomic unsigned long emits, waits, longest_us, first_us;
} *all; /* of this process and its children */
static _Atomic int is_first = 1;

static void emit(uint32_t who, uint64_t i)
{
	struct timespec began, ended;
	struct rusage before, after;
	unsigned long us, seen = all->longest_us;

	getrusage(RUSAGE_THREAD, &before);
	clock_gettime(CLOCK_MONOTONIC, &began);
	errno = EDOM;
	UTRACEFS_EMIT(c_count, who, i);
	if (errno != EDOM)
		abort();
	clock_gettime(CLOCK_MONOTONIC, &ended);
	getrusage(RUSAGE_THREAD, &after);
	us = (unsigned long)((ended.tv_sec - began.tv_sec) * 1000000 + (ended.tv_nsec - began.tv_nsec) / 1000);
	all->emits++;
	if (atomic_exchange(&is_first, 0)) {
		all->first_us += us;
	} else if (after.ru_nvcsw > before.ru_nvcsw) {
		all->waits++;
		while (us > seen && !atomic_compare_exchange_weak(&all->longest_us, &seen, us))
			;
	}
}

static void *emit_all(void *who)
{
	for (uint64_t i = 0; i < 100; i++)
		emit((uint32_t)(uintptr_t)who, i);
	return who;
}

static int in_thread(void)
{
	pthread_attr_t attr;
	pthread_t made;
	void *result = NULL;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, (size_t)sysconf(_SC_THREAD_STACK_MIN));
	if (pthread_create(&made, &attr, emit_all, (void *)'t'))
		return 0;
	return !pthread_join(made, &result) && result == (void *)'t';
}

static int in_child(char how)
{
	pid_t child = how == 'f' || how == 'k' ? fork() :
		      how == 'F'		? _Fork() :
						  (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	int status;

	if (child == 0) {
		is_first = 1;
		if (how == 'k' && utracefs_enabled(utracefs_declare("worker_began u32 pid", 0)) >= 0 &&
		    chroot("/proc/self/fdinfo"))
			_exit(6);
		emit_all((void *)(uintptr_t)how);
		_exit(5);
	}
	return child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 5;
}

static int in_vfork(void)
{
	int status;
	pid_t child = vfork();

	if (child == 0) {
		emit_all((void *)'v');
		_exit(5);
	}
	return child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 5;
}

static volatile int handled;

static void handle(int number)
{
	int before = is_first;

	emit('h', 0);
	is_first = before;
	handled = number;
}

/* Below the stack is a page that cannot be touched. The library has 1 KiB beside the frame of the signal. */
static int on_small_stack(void)
{
	struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
	static char pages[5 * 4096] __attribute__((aligned(4096)));
	stack_t stack = {.ss_sp = pages + 4096, .ss_size = getauxval(AT_MINSIGSTKSZ) + 1024};

	mprotect(pages, 4096, PROT_NONE);
	sigaction(SIGUSR1, &action, NULL);
	if (sigaltstack(&stack, NULL))
		return 0;
	raise(SIGUSR1);
	stack.ss_flags = SS_DISABLE;
	return !sigaltstack(&stack, NULL) && handled;
}

/* Until there is a line. */
static int emit_for_long(void)
{
	while (poll(&(struct pollfd){0, POLLIN, 0}, 1, 1) == 0)
		emit_all((void *)'L');
	return getchar() != EOF;
}

static int for_descriptors(void (*call)(int))
{
	for (int fd = 3; fd < 200; fd++)
		call(fd);
	return 1;
}

static void close_one(int fd)
{
	close(fd);
}

static void cover(int fd)
{
	int null;

	if (fcntl(fd, F_GETFD) < 0 || (null = open("/dev/null", O_RDWR)) < 0)
		return;
	dup2(null, fd);
	close(null);
}

#ifdef __x86_64__
static void trapped(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)info;
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -EPERM;
}
#else
#define trapped NULL
#endif

static int refuse(void)
{
	const struct sigaction on_trap = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
	const unsigned refusal = getenv("TRAP") ? SECCOMP_RET_TRAP : SECCOMP_RET_ERRNO;
	char *at = getenv("REFUSED");
	unsigned error = (unsigned)strtoul(at, &at, 10), call;

	if (getenv("TRAP") && sigaction(SIGSYS, &on_trap, NULL))
		return 0;
	while ((call = (unsigned)strtoul(at, &at, 10)) != ~0u) {
		struct sock_filter rules[] = {
			BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
			BPF_STMT(BPF_RET | BPF_K, error ? refusal | error : SECCOMP_RET_KILL_PROCESS),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		};
		struct sock_fprog filter = {sizeof(rules) / sizeof(rules[0]), rules};

		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
		    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter))
			exit(9);
	}
	return 1;
}

/* Before the library's own start. */
__attribute__((constructor(101))) static void begin(void)
{
	all = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (getenv("EARLY"))
		refuse();
}

static unsigned long peak_kb(void)
{
	FILE *status = fopen("/proc/self/status", "r");
	unsigned long kb = 0;
	char line[256];

	while (status && fgets(line, sizeof(line), status))
		sscanf(line, "VmPeak: %lu", &kb);
	if (status)
		fclose(status);
	return kb;
}

int main(int argc, char **argv)
{
	for (const char *step = argv[1]; *step; step++) {
		int is_done = *step == 'R' ? chroot("/proc/self/fdinfo") <= 0 :
			      *step == 'i' ? setresuid(65534, 65534, 65534) == 0 :
			      *step == 'P' ? unshare(CLONE_NEWPID) == 0 :
			      *step == 'M' ? unshare(CLONE_NEWNS) == 0 :
			      *step == 'U' ? unshare(CLONE_NEWUSER) == 0 :
			      *step == 'e' ? emit_all((void *)'e') != NULL :
			      *step == 't' ? in_thread() :
			      *step == 'v' ? in_vfork() :
			      *step == 'h' ? on_small_stack() :
			      *step == 's' ? utracefs_flush(300) <= 0 :
			      *step == 'w' ? (puts("\nwaits"), fflush(stdout), getchar() != EOF) :
			      *step == 'L' ? emit_for_long() :
			      *step == 'p' ? utracefs_new_span_id() != 0 :
			      *step == 'l' ? mlockall(MCL_CURRENT | MCL_FUTURE) <= 0 :
			      *step == 'C' ? for_descriptors(close_one) :
			      *step == 'D' ? for_descriptors(cover) :
			      *step == 'r' ? refuse() : in_child(*step);

		printf("%c%d ", *step, is_done);
	}
	(void)argc;
	printf("\nemits %lu waits %lu longest_us %lu first_us %lu peak_kb %lu\n", all->emits, all->waits,
	       all->longest_us, all->first_us, peak_kb());
	return fflush(stdout) ? 1 : 3;
}
