/*
 * An access to another process's memory, on a thread of its own, with a time limit.
 *
 * An access may hang as long as that process likes: on a page of a file whose server does not answer, or a
 * lock of the address space held by another such access. A call that hangs in the kernel cannot be cancelled.
 * So a deed and its resources have two owners: the waiting caller, and the thread. The last one to release it
 * frees it. Descriptors used by a deed stay open until it has ended; else their numbers could be reused for
 * other files.
 *
 * A late thread that waits for a cpu does not hang. A busy machine may keep it waiting for seconds; some such
 * threads, if abandoned, would keep us away from all the memory of that user for a minute.
 */
#ifndef UTRACEFS_DEED_H
#define UTRACEFS_DEED_H

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "remote_memory.h"

/* The largest frames are rm_find_in_text's 16 KiB and those of the C library's opendir. */
#define DEED_STACK_BYTES (96u << 10)
/* Between two looks at a late thread that does not sleep. */
#define DEED_LATE_NS 10000000

struct deed;
typedef void (*deed_work)(struct deed *);

struct deed {
	uint32_t done;
	uint32_t owners;
	uint32_t given_up; /* the caller no longer waits */
	deed_work work;
	int result;   /* 0 or -errno; of read_string the length */
	pid_t tid;    /* opening: any thread of the process */
	pid_t thread; /* that runs it */
	int mem, maps;
	int closes;   /* the thread closes mem and maps at its end */
	uint64_t address;
	uint64_t stack_address; /* opening: address of the 16 bytes made by exec */
	struct rm_bit bit;
	uint32_t count; /* looking: number; `data` has their descriptors, and then the answers */
	uint32_t at;	/* looking: index of the present one */
	size_t size;
	char data[];
};

static inline struct deed *deed_new(deed_work work, size_t size)
{
	struct deed *d = calloc(1, sizeof(*d) + size);

	if (d) {
		d->owners = 1;
		d->work = work;
		d->mem = d->maps = -1;
		d->size = size;
	}
	return d;
}

static inline void deed_let_go(struct deed *d)
{
	if (__atomic_sub_fetch(&d->owners, 1, __ATOMIC_ACQ_REL))
		return;
	if (d->closes) {
		if (d->mem >= 0)
			close(d->mem);
		if (d->maps >= 0)
			close(d->maps);
	}
	free(d);
}

static inline int deed_is_done(const struct deed *d)
{
	return __atomic_load_n(&d->done, __ATOMIC_ACQUIRE);
}

/* A thread for deeds. It runs one after the other, and ends when another one is idle, too, or when it has
 * traced. */
struct deed_worker {
	uint32_t has_work;
	pid_t process; /* it does not exist in a forked child */
	struct deed *work;
};

/* The idle thread, or NULL. Taken and returned by exchange, so it has one user at a time. */
static struct deed_worker *deed_idle;

static void *deed_main(void *arg)
{
	struct deed_worker *w = arg, *none;
	int stays;

	do {
		struct deed *d;

		while (!__atomic_load_n(&w->has_work, __ATOMIC_ACQUIRE))
			syscall(SYS_futex, &w->has_work, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
		w->has_work = 0;
		d = w->work;
		__atomic_store_n(&d->thread, (pid_t)syscall(SYS_gettid), __ATOMIC_RELAXED);
		d->work(d);
		/* Before it sets `done`: the caller then finds it idle. Its next deed may be put into `w` from now on, and
		 * is taken from there when this one is released. */
		none = NULL;
		stays = __atomic_compare_exchange_n(&deed_idle, &none, w, 0,
									     __ATOMIC_ACQ_REL,
									     __ATOMIC_ACQUIRE);
		__atomic_store_n(&d->done, 1, __ATOMIC_RELEASE);
		syscall(SYS_futex, &d->done, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
		deed_let_go(d);
	} while (stays);
	free(w);
	return NULL;
}

/* Pass it to a thread. 0 or an errno. */
static inline int deed_begin(struct deed *d)
{
	struct deed_worker *w = __atomic_exchange_n(&deed_idle, NULL, __ATOMIC_ACQ_REL);
	sigset_t all, before;
	pthread_attr_t attr;
	pthread_t made;
	int error;

	d->owners++;
	if (w && w->process == getpid()) {
		w->work = d;
		__atomic_store_n(&w->has_work, 1, __ATOMIC_RELEASE);
		syscall(SYS_futex, &w->has_work, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
		return 0;
	}
	w = malloc(sizeof(*w));
	error = w ? pthread_attr_init(&attr) : ENOMEM;
	if (!error) {
		*w = (struct deed_worker){1, getpid(), d};
		pthread_attr_setstacksize(&attr, DEED_STACK_BYTES);
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		error = pthread_create(&made, &attr, deed_main, w);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		pthread_attr_destroy(&attr);
	}
	if (error) {
		free(w);
		d->owners--;
	}
	return error;
}

/* Whether its thread sleeps in the kernel. */
static inline int deed_sleeps(const struct deed *d)
{
	pid_t thread = __atomic_load_n(&d->thread, __ATOMIC_RELAXED);
	int proc = thread ? open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	char state = 0;

	if (proc >= 0) {
		state = pf_state(proc, thread);
		close(proc);
	}
	return thread && state != 'R';
}

static inline int64_t deed_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* 1: done. 0: it sleeps still; only the thread and the holder of `d` own it. -errno: no thread. */
static inline int deed_run(struct deed *d, int64_t timeout_ns)
{
	int64_t until = deed_now_ns() + timeout_ns, left;
	struct timespec wait;
	int error = deed_begin(d);

	if (error)
		return -error;
	while (!deed_is_done(d)) {
		left = until - deed_now_ns();
		if (left <= 0 && !deed_sleeps(d)) {
			left = DEED_LATE_NS;
		} else if (left <= 0) {
			__atomic_store_n(&d->given_up, 1, __ATOMIC_SEQ_CST);
			return deed_is_done(d);
		}
		wait.tv_sec = left / 1000000000;
		wait.tv_nsec = left % 1000000000;
		syscall(SYS_futex, &d->done, FUTEX_WAIT_PRIVATE, 0, &wait, NULL, 0);
	}
	return 1;
}

/* The kinds. */

static void deed_read(struct deed *d)
{
	d->result = rm_read(d->mem, d->maps, d->address, d->data, d->size);
}

static void deed_read_string(struct deed *d)
{
	d->result = rm_read_string(d->mem, d->maps, d->address, d->data, d->size - 1);
}

static void deed_write(struct deed *d)
{
	d->result = rm_write(d->mem, d->maps, d->address, d->data, d->size);
}

static void deed_set_bit(struct deed *d)
{
	d->result = rm_set_bit(&d->bit);
}

/* Opens both files of thread `tid` and reads the 16 bytes that exec put on the stack (AT_RANDOM). They are
 * read through `mem`, so they belong to the opened address space, whichever one auxv was of. */
static void deed_open(struct deed *d)
{
	union {
		uint64_t of_64[128];
		uint32_t of_32[256];
	} pairs;
	char path[48];
	ssize_t got;
	int fd, i;

	snprintf(path, sizeof(path), "/proc/%d/mem", d->tid);
	d->mem = open(path, O_RDWR | O_CLOEXEC);
	if (d->mem < 0) {
		d->result = -errno;
		return;
	}
	snprintf(path, sizeof(path), "/proc/%d/maps", d->tid);
	d->maps = open(path, O_RDONLY | O_CLOEXEC);
	snprintf(path, sizeof(path), "/proc/%d/auxv", d->tid);
	fd = d->maps < 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		d->result = -errno;
		return;
	}
	got = read(fd, &pairs, sizeof(pairs));
	close(fd);
	for (i = 0; i + 1 < (int)(got / 8) && !d->stack_address; i += 2)
		if (pairs.of_64[i] == 25) /* AT_RANDOM */
			d->stack_address = pairs.of_64[i + 1];
	/* A 32-bit program. */
	for (i = 0; i + 1 < (int)(got / 4) && !d->stack_address; i += 2)
		if (pairs.of_32[i] == 25)
			d->stack_address = pairs.of_32[i + 1];
	got = pread(d->mem, d->data, 16, (off_t)d->stack_address);
	d->result = got == 16 ? 0 : -ESRCH;
}

/* Which of these address spaces still exist: `mem` of an ended one reads as end of file. */
static void deed_look(struct deed *d)
{
	int *mem = (int *)d->data;
	char byte;

	/* Sequentially consistent: a caller that has given up and then reads `at` knows which one stays in use. */
	for (; d->at < d->count && !__atomic_load_n(&d->given_up, __ATOMIC_SEQ_CST);
	     __atomic_store_n(&d->at, d->at + 1, __ATOMIC_SEQ_CST))
		mem[d->at] = pread(mem[d->at], &byte, 1, 4096) != 0;
}

#endif
