/*
 * The data ring: one process's records on their way to the daemon, in memory that both map. (The ring buffer
 * is a consumer's, inside the daemon, and keeps records until they are read.)
 *
 * The memory (a memfd made by the program, sealed against shrinking, growing and further seals):
 *
 *     0                     65536                       65536 + size             65536 + size + 16384
 *     +---------------------+---------------------------+------------------------+
 *     | header              | data area                 | lost[4096], u32 each   |
 *     +---------------------+---------------------------+------------------------+
 *
 * The header takes 64 KiB because a mapping begins at a multiple of the page size, which is 4, 16 or 64 KiB.
 * Untouched pages take no memory.
 *
 * Both sides map the data area twice, back to back, so that a record which begins near its end is written and
 * read in one piece (dr_map below):
 *
 *     header | data | data again | lost
 *
 * Positions (head, tail) count bytes since the beginning and never wrap in practice (2^64). The place in the
 * data area is `position & (size - 1)`. A record starts on a multiple of 8.
 *
 * A record:
 *
 *     0             4             8                     16         20     22     24
 *     +-------------+-------------+---------------------+----------+------+------+-------- - -+-----+
 *     | length word | write_index | time                | tid      | cpu  |flags | payload    | pad |
 *     +-------------+-------------+---------------------+----------+------+------+-------- - -+-----+
 *           |                       see below                                      to a multiple of 8
 *           |     31        30        24 23                                            0
 *           |    +---------+------------+-----------------------------------------------+
 *           +--> |COMMITTED| 0          | bytes of the payload, at most DR_MAX_PAYLOAD  |
 *                +---------+------------+-----------------------------------------------+
 *
 * Ownership
 * ---------
 *   head            producers, by compare-and-swap, and the daemon where it skips (below). It only grows.
 *                   The daemon sets DR_CLOSED in it when it lets a ring go whose producer may live on,
 *                   before it takes in what is there: no record is reserved after that, so none is
 *                   committed that no daemon takes in.
 *   tail            the daemon only. It only grows. Everything in [tail, head) belongs to producers until
 *                   committed, everything outside of it is zero: the daemon clears what it consumed before it
 *                   moves tail.
 *   a record        from the compare-and-swap that reserved it until its COMMITTED bit is set: the one thread
 *                   that reserved it. Afterwards: the daemon. Never another thread or process.
 *   lost, lost[]    producers add; the daemon exchanges with 0 and counts the result.
 *   counted[]       the daemon only, for its successor (dr_forget_lost_of).
 *   wait_us         the daemon, while a lossless reader is attached; the producer clears it when the daemon
 *                   is gone. waited_at: producers.
 *   behind          the daemon, for children of the producer; the producer stores 0 when the daemon is gone.
 *                   It is advice that may come late: a child connects now, or counts its record as lost.
 *   need_wakeup     the daemon sets it to 1 before it sleeps; the producer that exchanges it to 0 rings the
 *                   doorbell.
 *
 * Memory
 * ------
 * A large ring is for floods, and costs memory only then. The daemon skips free space, by the producers' own
 * step: it finds the ring empty (head == tail) and moves head forward by a compare-and-swap. The daemon has
 * then reserved the space between, which is zero; so it is consumed as well, and tail follows.
 *
 *     place of head     the daemon moves it              why
 *     DR_LOW and more   to the beginning of the area     short bursts use the same DR_LOW bytes each time
 *     any other         by half of the area              to give back the memory of a flood
 *
 * (Not in the last DR_END bytes.) When a ring has been quiet for a second after a flood, with no more than
 * 512 KiB of records, the daemon skips twice, one of each, and gives the memory of that space back (a hole in
 * the file) before tail follows. When no event of the ring is on any more, it skips three times, so that also
 * what short bursts used is given back. A producer that saw its event on reserves before such a skip, which
 * is then in vain, or behind it.
 *
 * dr_skip_bytes has this as a function of tail alone. Until tail follows, producers have the rest of the
 * area: at least DR_LOW bytes, for some nanoseconds, or until the daemon's next look while a thread of it
 * gives memory back: that takes two milliseconds, or as long as the program holds the lock of its file. A
 * producer with an older head fails its compare-and-swap and looks again. In a closed ring the daemon's own
 * one fails.
 *
 * A daemon that is killed before tail follows leaves zeros at tail and a head behind them, like a producer
 * that has not stored its length yet; its journal tells the next daemon that it was about to skip
 * (dr_skipped). A producer that gives its ring up walks over zeros anyhow (dr_walk).
 *
 * A refusal
 * ---------
 * A write_index with DR_REFUSED marks a refusal in place of a record: the program emitted a value that does
 * not fit its field, so its client made no record. The payload names the field and the reason in UTF-8 (at
 * most DR_MAX_WHY bytes: "usec was float"); the daemon counts it.
 *
 * Time
 * ----
 * CLOCK_MONOTONIC in nanoseconds; or, with DR_TSC in the record's flags, the result of rdtsc. Reading the
 * clock takes more than half of a record's time, because the vDSO orders its rdtsc with the instructions
 * around it: a record takes 33 ns with the clock, 13 ns with rdtsc. The daemon allows rdtsc by DR_CLOCK_TSC
 * in `clock` while the kernel itself takes the time from the TSC, and converts (tsc_clock.h). Each record has
 * its own flag, so a change needs no agreement on a moment, and records outlive a restart of the daemon
 * unchanged.
 *
 * rdtsc is not ordered by the architecture. In 50 million rounds of reserve, rdtsc, commit no time went back,
 * also with two threads in turn; if one does, its record gets the time of the one before it on its cpu, like
 * any late record.
 *
 * Names
 * -----
 * A thread may have ended when the daemon takes its record, so records can carry its name: with DR_NAMED in
 * the flags the last DR_COMM bytes of the payload are the name of the thread (PR_GET_NAME) and belong to no
 * field. The length word includes them. One reservation takes both, so neither is lost without the other.
 *
 * `names` is 0 if the daemon requests no names, else a number that no other ring has: a thread adds its name
 * when it finds a number for which it did not add it lately. The daemon changes the number from time to time,
 * because threads are renamed.
 *
 * States of the length word at a record's start
 * ---------------------------------------------
 *   0                       just reserved, or not reserved
 *   length                  reserved by a thread that is filling it now (or that died while it did)
 *   COMMITTED | length      complete
 *
 * The bare length lets the daemon skip the record of a dead producer and take the records behind it. If it
 * dies between its compare-and-swap and the next instruction, that store, its record is zero: the next one
 * begins where zeros end.
 *
 * Memory order
 * ------------
 * 1. The daemon's clearing must be seen before the space is used again: it clears, then stores tail with
 *    release; a producer loads tail with acquire before it reserves. Hence a fresh length word is 0, never a
 *    remainder of the lap before that looks committed. All consumed bytes are cleared, not just the length
 *    words: in the next lap the records start elsewhere.
 * 2. A record's bytes must be seen before its COMMITTED bit: the bit is stored with (at least) release and
 *    loaded with acquire.
 * 3. No lost wake-up: the producer moves head, stores COMMITTED and then loads need_wakeup; the daemon stores
 *    need_wakeup and then looks at head (dr_look) and at the length word once more. Store-then-load on both
 *    sides needs one total order, so all of these are seq_cst: on x86-64 one xchg, on aarch64 stlr and ldar,
 *    which the architecture orders.
 * 4. Finding records needs no stronger order of head: a record is found through its length word, and head
 *    only bounds the search. A producer's first load of it is relaxed; its compare-and-swap decides.
 *
 * The daemon trusts nothing in this memory: it keeps its own tail, bounds head and every length against the
 * size that it knows, and copies a record out before it parses it (dr_look, dr_next). A producer trusts the
 * daemon but never writes outside of its mapping either: places are masked.
 *
 * Signal handlers may emit: reserving takes no lock.
 */
#ifndef UTRACEFS_DATA_RING_H
#define UTRACEFS_DATA_RING_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DR_MAGIC 0x52525455u /* "UTRR" */
#define DR_VERSION 2u
#define DR_HEADER_BYTES 65536u
#define DR_RECORD_HEADER 24u
#define DR_LOST_COUNTERS 4096u
#define DR_LOST_BYTES (DR_LOST_COUNTERS * 4u)
/* u32 [DR_LOST_COUNTERS] in the header, the daemon's: the part of `lost` that it has counted already. */
#define DR_COUNTED 32768u
#define DR_MIN_SIZE (64u << 10)
#define DR_MAX_SIZE (64u << 20)
#define DR_DEFAULT_SIZE (16u << 20)
/* See "Memory" above. Tests have smaller ones. */
#ifndef DR_LOW
#define DR_LOW (1u << 20)
#define DR_END (512u << 10)
#endif
/* A producer rings the doorbell when it makes a ring fuller than this, or than half. */
#define DR_MUCH (512u << 10)
#define DR_CLOSED (UINT64_C(1) << 62)
#define DR_COMMITTED 0x80000000u
#define DR_LENGTH_MASK 0x00ffffffu
/* Largest payload of a record, the same as on the socket path (a bin object of 64 KiB, less its header and
 * the index). */
#define DR_MAX_PAYLOAD 65529u
/* In a write_index, which is never so large: marks a refusal. */
#define DR_REFUSED 0x40000000u
#define DR_MAX_WHY 255u

/* Each field that one side writes while the other reads has its own cache line. */
struct dr_header {
	uint32_t magic;
	uint32_t version;
	uint32_t size;
	uint32_t record_header;
	unsigned char pad0[64 - 16];
	_Atomic uint64_t head;
	unsigned char pad1[64 - 8];
	_Atomic uint64_t tail;
	unsigned char pad2[64 - 8];
	_Atomic uint64_t lost;
	unsigned char pad3[64 - 8];
	_Atomic uint32_t need_wakeup;
	_Atomic uint32_t clock;
	_Atomic uint32_t names;
	_Atomic uint64_t tsc_rate; /* 2^32 times nanoseconds per tick of the TSC, for durations; 0: not known */
	_Atomic uint32_t wait_us;  /* how long a producer may wait for room; 0: not at all, a full ring loses */
	_Atomic uint32_t behind;   /* DR_BEHIND or 0: for children of the producer that want to connect */
	_Atomic uint64_t waited_at; /* tail + 1 where one has waited in vain: none waits until tail has moved */
};

/* In `clock`, set by the daemon: the clocks a record may use. */
#define DR_CLOCK_MONOTONIC 0u
#define DR_CLOCK_TSC 1u
/* A value that no ring's `names` has. */
#define DR_NO_NAMES UINT32_MAX
/* In `behind`: many connections of this user wait, and more may be refused. A child that ends at once would
 * not see the refusal, and its records would be counted nowhere, so it does not connect now. */
#define DR_BEHIND 1u
/* In a record's flags. */
#define DR_TSC 1u
#define DR_NAMED 2u
#define DR_COMM 16u /* TASK_COMM_LEN */

struct dr_record {
	_Atomic uint32_t length_word;
	uint32_t write_index;
	uint64_t time;
	uint32_t tid;
	uint16_t cpu;
	uint16_t flags;
	unsigned char payload[];
};

_Static_assert(offsetof(struct dr_header, head) == 64, "head");
_Static_assert(offsetof(struct dr_header, tail) == 128, "tail");
_Static_assert(offsetof(struct dr_header, lost) == 192, "lost");
_Static_assert(offsetof(struct dr_header, need_wakeup) == 256, "need_wakeup");
_Static_assert(offsetof(struct dr_header, clock) == 260, "clock");
_Static_assert(offsetof(struct dr_header, names) == 264, "names");
_Static_assert(offsetof(struct dr_header, tsc_rate) == 272, "tsc_rate");
_Static_assert(offsetof(struct dr_header, wait_us) == 280, "wait_us");
_Static_assert(offsetof(struct dr_header, behind) == 284, "behind");
_Static_assert(offsetof(struct dr_header, waited_at) == 288, "waited_at");
_Static_assert(sizeof(struct dr_record) == DR_RECORD_HEADER, "record header");
_Static_assert(offsetof(struct dr_record, time) == 8 && offsetof(struct dr_record, cpu) == 20, "record");

/* A process's view of one ring. */
struct data_ring {
	struct dr_header *header;
	unsigned char *data;
	_Atomic uint32_t *lost;
	uint32_t size;
	size_t map_bytes;
};

static inline int dr_valid_size(uint64_t size)
{
	return size >= DR_MIN_SIZE && size <= DR_MAX_SIZE && (size & (size - 1)) == 0;
}

static inline size_t dr_file_bytes(uint32_t size)
{
	return (size_t)DR_HEADER_BYTES + size + DR_LOST_BYTES;
}

/* The ring of `size` bytes whose mapping begins at `at`. */
static inline void dr_place(struct data_ring *r, unsigned char *at, uint32_t size)
{
	r->header = (struct dr_header *)at;
	r->data = at + DR_HEADER_BYTES;
	/* The second mapping of the data runs on into the counters: data | data again | lost. */
	r->lost = (_Atomic uint32_t *)(at + DR_HEADER_BYTES + 2 * (size_t)size);
	r->size = size;
	r->map_bytes = (size_t)DR_HEADER_BYTES + 2 * (size_t)size + DR_LOST_BYTES;
}

/* Maps the memfd `fd` of a ring whose data area has `size` bytes; -1: memory without a file. 0, or -errno
 * with nothing mapped. The caller has made the file (the producer), or checked its length and seals (the
 * daemon). */
static inline int dr_map(struct data_ring *r, int fd, uint32_t size)
{
	const int prot = PROT_READ | PROT_WRITE, flags = fd < 0 ? MAP_ANONYMOUS | MAP_NORESERVE : 0;
	size_t first = (size_t)DR_HEADER_BYTES + size, again = (size_t)size + DR_LOST_BYTES, bytes = first + again;
	unsigned char *at;
	void *second;

	if (!dr_valid_size(size))
		return -EINVAL;
	/* Both parts, the second beyond the file's end until it is replaced. */
	at = (unsigned char *)mmap(NULL, bytes, prot, MAP_SHARED | flags, fd, 0);
	if (at == MAP_FAILED)
		return -errno;
	if (fd < 0) /* of 0 bytes: maps shared pages a second time */
		second = mremap(at + DR_HEADER_BYTES, 0, again, MREMAP_MAYMOVE | MREMAP_FIXED, at + first);
	else
		second = mmap(at + first, again, prot, MAP_SHARED | MAP_FIXED, fd, DR_HEADER_BYTES);
	if (second == MAP_FAILED) {
		int error = -errno;
		munmap(at, bytes);
		return error;
	}
	dr_place(r, at, size);
	return 0;
}

static inline void dr_unmap(struct data_ring *r)
{
	if (r->header)
		munmap(r->header, r->map_bytes);
	memset(r, 0, sizeof(*r));
}

/* Whether the daemon has closed the ring. */
static inline int dr_is_closed(const struct data_ring *r)
{
	return (atomic_load_explicit(&r->header->head, memory_order_relaxed) & DR_CLOSED) != 0;
}

/* The bytes in a ring at which a producer that exceeds them rings the doorbell. */
static inline uint32_t dr_much(const struct data_ring *r)
{
	return r->size / 2 < DR_MUCH ? r->size / 2 : DR_MUCH;
}

static inline uint32_t dr_need(uint32_t payload)
{
	return (DR_RECORD_HEADER + payload + 7u) & ~7u;
}

#endif
