/*
 * The stream ring: records of many events on their way from the daemon to one reader.
 *
 * The memory (a memfd made by the daemon, all of it allocated, sealed against resizing and further seals):
 *
 *     0                  4096                            4096 + size
 *     +------------------+-------------------------------+
 *     | struct ss_header | data area, a power of two     |
 *     +------------------+-------------------------------+
 *
 * Ownership
 * ---------
 *   head    the daemon stores it (release) when the records in front of it are complete.
 *   written the daemon stores it after each record, a head that is not published yet: the reader may have
 *           the records between the two once the daemon was killed. 0: unknown.
 *   tail    the reader stores it (release) when it has finished with the records in front of it.
 *   lost    the daemon; total number of lost records. The counts of SS_LOST records add up to it.
 *
 * head and tail count bytes since the beginning and only grow; the place is `position & (size - 1)`. The
 * daemon writes between head and tail + size, and uses the reader's tail only to compute the free
 * space: a tail ahead of head, or more than `size` behind it, means none. It keeps its own copy of head.
 *
 * A record begins on a multiple of 8 and never wraps: where it would, SS_PAD fills the rest of the area.
 *
 *     0          4         6         8                    16        20           24
 *     +----------+---------+---------+--------------------+---------+------------+--------- - -+-----+
 *     | size     | kind    | cpu     | time_ns            | pid     | length     | entry       | pad |
 *     +----------+---------+---------+--------------------+---------+------------+--------- - -+-----+
 *
 * The entry has the layout that the event's `format` says, so its first 8 bytes are u16 event id, u8 0, u8 0,
 * i32 thread id. Every kind has them but SS_PAGE, and SS_PAD, which has only its first 8 bytes.
 */
#ifndef UTRACEFS_STREAM_RING_H
#define UTRACEFS_STREAM_RING_H

#include <stdint.h>

#define SS_MAGIC 0x53525455u /* "UTRS" */
#define SS_VERSION 1u
#define SS_DATA_OFFSET 4096u
/* Of the data area. */
#define SS_MIN_SIZE (256u << 10)
#define SS_MAX_SIZE (128u << 20)

#define SS_RECORD 0u /* entry: a record */
#define SS_LOST 1u   /* common fields, u64: this many records of this event are lost here; pid, tid, cpu 0 */
#define SS_FORMAT 2u /* common fields, system, NUL, text of `format`; in front of the first record */
#define SS_COMM 3u   /* common fields, char[16]: the thread's name from here on; event id 0 */
#define SS_PAD 4u    /* skip it */
#define SS_PAGE 5u   /* entry: a whole sub-buffer of this cpu's ring buffer, without common fields */

struct ss_header {
	uint32_t magic;
	uint32_t version;
	uint32_t data_offset;
	uint32_t size;
	_Alignas(64) uint64_t head;
	_Alignas(64) uint64_t tail;
	_Alignas(64) uint64_t lost;
	_Alignas(64) uint64_t written;
};

struct ss_record {
	uint32_t size; /* bytes of all of it, a multiple of 8 */
	uint16_t kind;
	uint16_t cpu;
	uint64_t time_ns; /* CLOCK_MONOTONIC */
	int32_t pid;      /* of the process */
	uint32_t length;  /* bytes of the entry */
	uint8_t entry[];
};

#define SS_RECORD_HEADER 24u
#define SS_COMMON 8u
#define SS_COMM_SIZE 16u

#define ss_load(word) __atomic_load_n(word, __ATOMIC_ACQUIRE)
#define ss_store(word, value) __atomic_store_n(word, value, __ATOMIC_RELEASE)

#endif
