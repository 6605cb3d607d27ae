/*
 * For a producer in C, besides the ring itself: time stamps, packing a payload, ringing the doorbell.
 *
 * The compiled client uses it, and any C program may: this file, its includes, and docs/protocol.md sections
 * 3 and 5 are complete. A record on the socket begins with the header of bin.h, then comes the u32
 * write_index, then the payload; in a data ring it is what data_ring.h draws.
 *
 *     if (status[status_index]) {
 *         struct dr_record *rec = ut_reserve(&ring, write_index, 16, &half);
 *         if (rec) {
 *             ut_put(rec->payload, a, 8);
 *             ut_put(rec->payload + 8, b, 8);
 *             if (dr_commit(&ring, rec, 16) || half)
 *                 ut_ring_bell(doorbell);
 *         }
 *     }
 *
 * A forked child calls ut_forget_tid before it writes, and writes into a ring of its own.
 */
#ifndef UTRACEFS_PRODUCER_H
#define UTRACEFS_PRODUCER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <endian.h>
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "bin.h"
#include "data_ring_producer.h"

#ifdef __has_builtin
#if __has_builtin(__builtin_thread_pointer)
#define UT_HAS_THREAD_POINTER
#endif
#endif

/* CLOCK_MONOTONIC, the time of a record. */
static inline uint64_t ut_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The time of a record: the clock, or the TSC if the daemon allows it (see data_ring.h). */
static inline void ut_stamp(struct data_ring *r, struct dr_record *rec)
{
#if defined(__x86_64__)
	if (atomic_load_explicit(&r->header->clock, memory_order_relaxed) == DR_CLOCK_TSC) {
		rec->time = __builtin_ia32_rdtsc();
		rec->flags = DR_TSC;
		return;
	}
#else
	(void)r;
#endif
	rec->time = ut_now_ns();
	rec->flags = 0;
}

/* The time of a record, for a duration that begins there. */
struct ut_moment {
	uint64_t time;
	uint64_t rate; /* dr_header.tsc_rate for a count of the TSC; 0: CLOCK_MONOTONIC */
};

static inline struct ut_moment ut_moment_of(const struct dr_header *header, const struct dr_record *rec)
{
	struct ut_moment m = {rec->time, 0};

	if (rec->flags & DR_TSC) {
		m.rate = atomic_load_explicit(&header->tsc_rate, memory_order_relaxed);
		if (!m.rate)
			m.time = ut_now_ns();
	} else if (!m.time) { /* a child of a fork since then has memory of its own there */
		m.time = ut_now_ns();
	}
	return m;
}

/* Nanoseconds from `m` to the time of a record; NULL: until now. */
static inline uint64_t ut_duration_ns(struct ut_moment m, const struct dr_record *rec)
{
	int has_count = rec && rec->flags & DR_TSC;
	uint64_t end;

#if defined(__x86_64__)
	if (m.rate) {
		end = has_count ? rec->time : __builtin_ia32_rdtsc();
		return end < m.time ? 0 : (uint64_t)((unsigned __int128)(end - m.time) * m.rate >> 32);
	}
#endif
	end = rec && !has_count ? rec->time : ut_now_ns();
	return end < m.time ? 0 : end - m.time;
}

/* How many other rings a thread remembers that it writes into alternately. */
#define UT_REMEMBERED 15u

/* Cached facts of a thread, so that a record needs no system call. Before `tid` is known `named` is
 * DR_NO_NAMES. */
struct ut_own_thread {
	uint32_t tid;
	uint32_t named; /* dr_header.names of the ring of its last record, which has its name */
	uint32_t others[UT_REMEMBERED], next;
	uint32_t waits; /* for room: a signal handler then does not */
};

/* One for each file that includes this; or the one that a library has under the name UT_THREAD. */
#ifdef UT_THREAD
#define ut_thread UT_THREAD
extern __thread struct ut_own_thread ut_thread __attribute__((tls_model("initial-exec")));
#else
static __thread struct ut_own_thread ut_thread = {.named = DR_NO_NAMES};
#endif

/* Where the kernel keeps the cpu number of each thread, counted from its thread pointer: cpu_id of struct
 * rseq, which glibc has from 2.35 on. 0: not known. */
#ifdef UT_CPU_OFFSET
#define ut_cpu_offset UT_CPU_OFFSET
extern ptrdiff_t ut_cpu_offset;
#else
static ptrdiff_t ut_cpu_offset __attribute__((unused));
#endif

static inline uint32_t ut_tid(void)
{
	if (!ut_thread.tid)
		ut_thread.tid = (uint32_t)gettid();
	return ut_thread.tid;
}

/* In a forked child, whose one thread has another id than in the parent. */
static inline void ut_forget_tid(void)
{
	memset(&ut_thread, 0, sizeof(ut_thread));
	ut_thread.named = DR_NO_NAMES;
}

/* Whether the thread has given its name for `names`, which is not `named`. */
static __attribute__((noinline, unused)) int ut_has_said(uint32_t names)
{
	for (uint32_t i = 0; i < UT_REMEMBERED; i++)
		if (ut_thread.others[i] == names) {
			ut_thread.others[i] = ut_thread.named;
			ut_thread.named = names;
			return 1;
		}
	return 0;
}

/* Note that it gives the name now. */
static inline void ut_remember(uint32_t names)
{
	if (ut_thread.named != DR_NO_NAMES)
		ut_thread.others[ut_thread.next++ % UT_REMEMBERED] = ut_thread.named;
	ut_thread.named = names;
}

/* Copy the name of the calling thread, DR_COMM bytes, to zeroed memory, as `names` requests. */
static inline void ut_say_name(unsigned char *at, uint32_t names)
{
	int error = errno;

	prctl(PR_GET_NAME, at, 0, 0, 0);
	errno = error;
	ut_remember(names);
}

/* By rseq or the vDSO: no system call. */
static inline uint16_t ut_cpu(void)
{
	int cpu;

#ifdef UT_HAS_THREAD_POINTER
	if (ut_cpu_offset) {
		cpu = __atomic_load_n((const int *)((char *)__builtin_thread_pointer() + ut_cpu_offset), __ATOMIC_RELAXED);
		if (__builtin_expect(cpu >= 0, 1))
			return (uint16_t)cpu;
	}
#endif
	cpu = sched_getcpu();
	return cpu < 0 ? 0 : (uint16_t)cpu;
}

/* Fill in a record's header. */
static inline void ut_sign(struct data_ring *r, struct dr_record *rec, uint32_t tid)
{
	ut_stamp(r, rec);
	rec->tid = tid;
	rec->cpu = ut_cpu();
}

/* ut_reserve for a thread whose name is requested. The name is left out if there is no room for it. */
static __attribute__((noinline, unused)) struct dr_record *
ut_reserve_named(struct data_ring *r, uint32_t write_index, uint32_t payload, int *half, uint32_t names)
{
	struct dr_record *rec = NULL;
	uint32_t tid = ut_tid();
	int has_said = ut_has_said(names);

	if (names && !has_said && payload <= DR_MAX_PAYLOAD - DR_COMM)
		rec = dr_try_reserve(r, write_index, payload + DR_COMM, half);
	if (rec) {
		ut_sign(r, rec, tid);
		rec->flags |= DR_NAMED;
		ut_say_name(rec->payload + payload, names);
		return rec;
	}
	rec = dr_reserve(r, write_index, payload, half);
	if (rec) {
		ut_sign(r, rec, tid);
		if (!names && !has_said)
			ut_remember(0);
	}
	return rec;
}

/* dr_reserve, with the record's header filled in. */
static inline struct dr_record *ut_reserve(struct data_ring *r, uint32_t write_index, uint32_t payload,
					   int *half)
{
	uint32_t names = atomic_load_explicit(&r->header->names, memory_order_relaxed);
	uint32_t tid = ut_thread.tid; /* once: each access to thread-local memory may be a call */
	struct dr_record *rec;

	if (__builtin_expect(ut_thread.named != names, 0)) {
		/* Copies: what a function gets the address of is in memory for the rest of us, too. */
		struct data_ring its = *r;
		int its_half = 0;

		rec = ut_reserve_named(&its, write_index, payload, &its_half, names);
		*half = its_half;
		return rec;
	}
	rec = dr_reserve(r, write_index, payload, half);
	if (rec)
		ut_sign(r, rec, tid);
	return rec;
}

/* Little-endian, 1, 2, 4 or 8 bytes, at any address: a field of a payload. */
static inline void ut_put(unsigned char *at, uint64_t value, unsigned size)
{
	switch (size) {
	case 1:
		at[0] = (unsigned char)value;
		break;
	case 2: {
		uint16_t v = htole16((uint16_t)value);
		memcpy(at, &v, 2);
		break;
	}
	case 4: {
		uint32_t v = htole32((uint32_t)value);
		memcpy(at, &v, 4);
		break;
	}
	default: {
		uint64_t v = htole64(value);
		memcpy(at, &v, 8);
		break;
	}
	}
}

static inline uint32_t ut_get_le32(const unsigned char *at)
{
	uint32_t v;

	memcpy(&v, at, 4);
	return le32toh(v);
}

/* Wake the thread that polls the eventfd `fd`; nothing when it is -1. It fails only if it was rung
 * already. */
static inline void ut_ring_bell(int fd)
{
	const uint64_t one = 1;

	if (fd >= 0 && write(fd, &one, sizeof(one)) < 0) {
	}
}

#endif
