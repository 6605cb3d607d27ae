/*
 * What a producer in C needs besides the ring itself: to stamp a record, to pack a payload, to ring a
 * doorbell.
 *
 * The compiled client uses it, and any program in C may: this file, those that it includes, and
 * docs/protocol.md sections 3 and 5 are all there is to know. A record on the socket begins with the header
 * of bin.h, then comes the u32 write_index, then the payload; in a data ring it is what data_ring.h draws.
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
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bin.h"
#include "data_ring_producer.h"

/* CLOCK_MONOTONIC: what the time of a record is. */
static inline uint64_t ut_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The time of a record: the clock, or the counter that the kernel's clock is made of where the daemon
 * allows it (data_ring.h says when, and what that saves). */
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

/* The thread id without a system call per record. */
static __thread uint32_t ut_known_tid = 0;

static inline uint32_t ut_tid(void)
{
	if (!ut_known_tid)
		ut_known_tid = (uint32_t)gettid();
	return ut_known_tid;
}

/* In a forked child: the one thread that lives on there has another id than in the parent. */
static inline void ut_forget_tid(void)
{
	ut_known_tid = 0;
}

/* rseq or the vDSO: no system call either. */
static inline uint16_t ut_cpu(void)
{
	int cpu = sched_getcpu();

	return cpu < 0 ? 0 : (uint16_t)cpu;
}

/* dr_reserve, and all of the record but its payload filled in. */
static inline struct dr_record *ut_reserve(struct data_ring *r, uint32_t write_index, uint32_t payload,
					   int *half)
{
	struct dr_record *rec = dr_reserve(r, write_index, payload, half);

	if (rec) {
		ut_stamp(r, rec);
		rec->tid = ut_tid();
		rec->cpu = ut_cpu();
	}
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

/* Wake the thread that polls the eventfd `fd`; nothing when it is -1. It only fails when it was rung
 * already. */
static inline void ut_ring_bell(int fd)
{
	const uint64_t one = 1;

	if (fd >= 0 && write(fd, &one, sizeof(one)) < 0) {
	}
}

#endif
