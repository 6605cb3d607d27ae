/*
 * Stops all threads of another process for some microseconds, unnoticed by the program.
 *
 *     every thread    PTRACE_SEIZE, PTRACE_INTERRUPT    no signal is sent; a trap is pending
 *     then until      it is in that trap, or            it is traced-stopped: `t`
 *                     sleeps in the kernel              `S`, `D`: it meets the trap before it returns
 *                                                       its new threads are traced, too (TRACECLONE)
 *     at last         PTRACE_DETACH; the end of this thread detaches the rest, as the kernel does for each
 *                     tracer that ends (exit_ptrace())
 *
 * **Why a sleeping thread counts as stopped.** A thread meets the trap on its return to the program
 * (get_signal()), whatever it waits for. So we need not wait for threads in uninterruptible sleep (on a disk;
 * on an answer of the mount itself, which may depend on this call).
 *
 * **Late ones.** A runnable thread without a cpu cannot be distinguished from a running one. It runs no
 * instruction, either: it meets the trap first when it gets a cpu. A running thread is in the kernel some
 * microseconds after PTRACE_INTERRUPT, which sends its cpu an interrupt (kick_process()). So after
 * SP_PATIENCE_NS, a thousand times as long, the remaining ones are late ones.
 *
 * **Effects on the program.** The kernel restarts sleeping calls, except for a few that return EINTR after a
 * stop as after a signal (signal(7)): epoll_wait and similar ones. If the registers show that such a call was
 * interrupted, its result is changed to -ERESTARTNOHAND: the kernel restarts it if no handler has to run, and
 * makes EINTR of it if one has. So it returns its normal result; only its timeout restarts. This is for
 * x86-64; elsewhere those few may return EINTR once. Not repaired: a sleeping call that has transferred a
 * part of its data (a large write to a pipe or socket, recv with MSG_WAITALL) returns that part, and a read
 * that waits for a FUSE server returns what that server makes of an interrupt, EINTR for most: as after any
 * stop. A debugger that attaches in these microseconds gets EPERM.
 *
 * **Cost.** A sleeping process of one thread is stopped for 30 us, some 20 us longer for each other thread. A
 * running one must get a cpu to reach its stop: microseconds, or milliseconds on a busy machine.
 *
 * The caller is a thread that ends soon afterwards, with all signals blocked.
 */
#ifndef UTRACEFS_STOPPED_PROCESS_H
#define UTRACEFS_STOPPED_PROCESS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proc_file.h"

#define SP_PATIENCE_NS 2000000
/* Time for late ones to reach their stop, where their calls are repaired: one that was about to sleep when it
 * was interrupted also has a call that ends with EINTR. The others run by then. */
#define SP_MENDING_NS 100000000
/* Limit of threads: stopping more would take tens of milliseconds. */
#define SP_MAX_THREADS 4096

struct sp_thread {
	pid_t tid;
	int interrupted;
	int stopped; /* in ptrace-stop; `status` is waitpid's */
	int status;
	int asleep;  /* in the kernel, with the trap in front of it */
};

struct sp_process {
	struct sp_thread *threads;
	int count, room;
	int64_t began_ns, stopped_ns;
};

static inline int64_t sp_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* State and flags (PF_...) of a thread, from /proc/PID/task/TID/stat. 0: there is none. */
static inline char sp_state(int tasks, pid_t tid, unsigned *flags)
{
	char path[32], text[512], *after, state = 0;

	snprintf(path, sizeof(path), "%d/stat", tid);
	pf_read(tasks, path, text, sizeof(text));
	after = strrchr(text, ')'); /* a name may have any characters */
	if (!after || sscanf(after + 1, " %c %*d %*d %*d %*d %*d %u", &state, flags) != 2)
		return 0;
	return state;
}

/* Whether this thread never runs the program's instructions: a zombie, a kernel's worker (PF_IO_WORKER,
 * PF_USER_WORKER, PF_KTHREAD). */
static inline int sp_never_runs(int tasks, pid_t tid)
{
	unsigned flags = 0;
	char state = sp_state(tasks, tid, &flags);

	return state == 0 || state == 'Z' || state == 'X' || (flags & (0x10 | 0x4000 | 0x200000));
}

static inline struct sp_thread *sp_find(struct sp_process *p, pid_t tid)
{
	int i;

	for (i = 0; i < p->count; i++)
		if (p->threads[i].tid == tid)
			return &p->threads[i];
	return NULL;
}

/* Whether our thread traces that one: it traces all threads made while their creator was traced. */
static inline int sp_is_traced_by_us(int tasks, pid_t tid)
{
	char path[32], text[1024], *found;

	snprintf(path, sizeof(path), "%d/status", tid);
	pf_read(tasks, path, text, sizeof(text));
	found = strstr(text, "\nTracerPid:");
	return found && atoi(found + 11) == (pid_t)syscall(SYS_gettid);
}

/* Seize the threads that are not seized yet; this does not affect them. Returns their number, or -errno. */
static inline int sp_seize_all(struct sp_process *p, int tasks)
{
	struct dirent *entry;
	int found = 0, error = 0, again = dup(tasks);
	DIR *dir = again < 0 ? NULL : fdopendir(again);

	if (!dir) {
		if (again >= 0)
			close(again);
		return -EMFILE;
	}
	rewinddir(dir); /* the position is shared with its descriptor */
	while (!error && (entry = readdir(dir))) {
		pid_t tid = atoi(entry->d_name);
		unsigned flags;

		if (tid <= 0 || sp_find(p, tid))
			continue;
		if (p->count == p->room) {
			int room = p->room ? 2 * p->room : 64;
			void *more = room > SP_MAX_THREADS ? NULL : realloc(p->threads, room *
			sizeof(*p->threads)); if (!more) {
				error = -ENOMEM;
				break;
			}
			p->threads = more;
			p->room = room;
		}
		if (ptrace(PTRACE_SEIZE, tid, NULL, (void *)PTRACE_O_TRACECLONE) < 0) {
			int number = errno;

			if (!sp_is_traced_by_us(tasks, tid)) {
				if (number != ESRCH && !sp_never_runs(tasks, tid))
					error = -number;
				continue;
			}
		}
		/* The number may have been another process's by then: once seized, it cannot change. */
		if (!sp_state(tasks, tid, &flags))
			continue; /* our end detaches it; it was not interrupted */
		p->threads[p->count++] = (struct sp_thread){.tid = tid};
		found++;
	}
	closedir(dir);
	return error ? error : found;
}

static inline void sp_interrupt_all(struct sp_process *p)
{
	int i;

	if (p->began_ns == 0)
		p->began_ns = sp_now_ns();
	for (i = 0; i < p->count; i++)
		if (!p->threads[i].interrupted) {
			p->threads[i].interrupted = 1;
			ptrace(PTRACE_INTERRUPT, p->threads[i].tid, NULL, NULL);
		}
}

/* Number of threads that may still run. */
static inline int sp_running(struct sp_process *p, int tasks)
{
	int i, running = 0;

	for (i = 0; i < p->count; i++) {
		struct sp_thread *t = &p->threads[i];
		unsigned flags;
		pid_t got;
		char state;

		if (t->stopped || t->asleep)
			continue;
		got = waitpid(t->tid, &t->status, __WALL | WNOHANG);
		if (got == t->tid && WIFSTOPPED(t->status)) {
			t->stopped = 1;
			continue;
		}
		if (got != 0) {
			t->asleep = 1; /* it has ended */
			continue;
		}
		state = sp_state(tasks, t->tid, &flags);
		if (state == 'R' || state == 't' || state == 'T')
			running++;
		else
			t->asleep = 1;
	}
	return running;
}

static inline void sp_pause(void)
{
	struct timespec some = {0, 10000};

	nanosleep(&some, NULL);
}

/* 0: no thread of it runs an instruction until sp_go. Else -errno, and some may: -EPERM, it is being traced
 * or we may not trace it. sp_go is called in any case. */
static inline int sp_stop(struct sp_process *p, pid_t pid)
{
	char path[32];
	int64_t began;
	int tasks, found;

	memset(p, 0, sizeof(*p));
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (tasks < 0)
		return -errno;
	/* Repeat until the list has no new threads: running ones may have made some. */
	do {
		found = sp_seize_all(p, tasks);
		if (found > 0)
			sp_interrupt_all(p);
		began = sp_now_ns();
		while (found > 0 && sp_running(p, tasks)) {
			if (sp_now_ns() - began > SP_PATIENCE_NS)
				break;
			sp_pause();
		}
	} while (found > 0);
	close(tasks);
	return found;
}

#ifdef __x86_64__
/* Calls that return EINTR after a stop though no handler ran, and had no effect then. */
static inline int sp_is_not_restarted(long number)
{
	static const short numbers[] = {
		SYS_epoll_wait, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_semop,	     SYS_semtimedop,
		SYS_recvfrom,	SYS_recvmsg,	 SYS_recvmmsg,	   SYS_accept,	     SYS_accept4,
		SYS_sendto,	SYS_sendmsg,	 SYS_io_getevents, SYS_io_pgetevents, SYS_rt_sigtimedwait,
		SYS_io_uring_enter,
		/* Calls of sockets with a timeout. */
		SYS_read,	SYS_readv,	 SYS_preadv2,	   SYS_write,	     SYS_writev,
		SYS_pwritev2,	SYS_sendmmsg,	 SYS_sendfile,	   SYS_splice,	     SYS_connect,
	};
	unsigned i;

	for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (numbers[i] == number)
			return 1;
	return 0;
}

static inline void sp_mend(pid_t tid)
{
	struct user_regs_struct registers;

	if (ptrace(PTRACE_GETREGS, tid, NULL, &registers) == 0 && (long)registers.rax == -EINTR &&
	    registers.cs == 0x33 && sp_is_not_restarted((long)registers.orig_rax)) {
		registers.rax = -514; /* ERESTARTNOHAND, which programs never see */
		ptrace(PTRACE_SETREGS, tid, NULL, &registers);
	}
}
#else
static inline void sp_mend(pid_t tid)
{
	(void)tid;
}
#endif

/* Let them run. */
static inline void sp_go(struct sp_process *p)
{
	int64_t until = sp_now_ns() + SP_MENDING_NS;
	int i, left, proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	do {
		left = 0;
		for (i = 0; i < p->count; i++) {
			struct sp_thread *t = &p->threads[i];
			unsigned flags;
			char state;

			if (t->tid == 0)
				continue;
			if (!t->stopped && waitpid(t->tid, &t->status, __WALL | WNOHANG) == t->tid &&
			    WIFSTOPPED(t->status))
				t->stopped = 1;
			if (!t->stopped) {
				/* `S` with a trap pending is also a moment on the way to it. */
				state = t->interrupted ? sp_state(proc, t->tid, &flags) : 0;
				left += state && strchr("RSTt", state);
				continue;
			}
			sp_mend(t->tid);
			/* It may have stopped for a signal on its way, which is then delivered. */
			ptrace(PTRACE_DETACH, t->tid, NULL,
			       (void *)(long)(t->status >> 16 ? 0 : WSTOPSIG(t->status)));
			t->tid = 0;
		}
		if (p->stopped_ns == 0 && p->began_ns)
			p->stopped_ns = sp_now_ns() - p->began_ns;
		if (left)
			sp_pause();
	} while (left && sp_now_ns() < until);
	if (proc >= 0)
		close(proc);
	free(p->threads);
}

#endif
