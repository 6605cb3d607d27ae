/* The journal: how far the daemon is in each data ring, kept where its successor finds it.
 *
 * A record goes from a data ring (shared with its producer) into the ring buffer (a file). Both outlive a daemon that is
 * killed, but neither tells by itself whether the record at the data ring's tail was stored already. This file does:
 * one slot of 64 bytes, one cache line, for each data ring.
 *
 *     header | slot 0 | slot 1 | ...                  all in one file below the status folder, mode 0600
 *
 * What the daemon stores for every record, in this order:
 *
 *     1. begun_cpu, begun_count, then begun_at = tail    "I am about to hand over the record at tail"
 *     2. the record into the ring buffer                 exists with one store there (ring_buffer.h), or not at all
 *     3. tail = tail + bytes                             the record is consumed: one store
 *     4. the record's space in the data ring is zeroed
 *     5. (now and then) the data ring's shared tail      the producer may use the space again
 *
 * What a successor concludes (jr_judge, then DataRing.adopt):
 *
 *     killed before 1 is whole, or before 2   begun_at is not tail, or the ring buffer holds no more than begun_count:
 *                                             the record is taken in as if nothing had happened
 *     between 2 and 3                         begun_at is tail, and the ring buffer of begun_cpu took more records than
 *                                             begun_count: the record is there, the successor steps over it
 *     after 3                                 tail is right; shared tail .. tail may be half zeroed and is zeroed again
 *
 * begun_count is `appends` of the ring buffer: records stored or refused since the last clear. Records that the ring
 * buffer never saw (the event is not enabled there, tracing_on is off) are handed over again, which changes nothing.
 *
 * The judgement is stored before the successor records anything: as bit 0 of tail, which is a multiple of 8 otherwise, so
 * that "this record was recorded" and "where" change in one store, too, and then the successor may be killed as well.
 *
 * Not covered: records that a producer reserved and never committed, when its connection ended before the daemon did. They
 * are zeroed and stepped over before tail says so; a daemon killed between the two leaves such a ring stuck for a process that
 * lives on and brings it back. What it held is then not taken in, and nothing is taken in twice.
 *
 * Memory order: the reader of these stores is another process that starts after this one is dead. A process is killed
 * between two instructions: all stores before that point are done and reach memory, none behind it is, whatever the
 * machine's own order towards other processors is; and the successor gets the folder's lock from the kernel only after
 * the death. So it is enough that the compiler keeps the order: relaxed atomic stores, which it cannot tear, with signal
 * fences between them. None of this survives the machine; nor does /dev/shm.
 */
#ifndef UTRACEFS_JOURNAL_H
#define UTRACEFS_JOURNAL_H

#include <stdint.h>

#define JR_MAGIC 0x4c4e524a54525455ull /* "UTRTJRNL" as little-endian bytes */
#define JR_VERSION 1u
#define JR_SLOT_BYTES 64u
#define JR_RECORDED 1ull      /* in tail: the record there is in the ring buffer already */
#define JR_NOWHERE UINT64_MAX /* begun_at: nothing is under way */

struct jr_header {
    uint64_t magic;
    uint32_t version;
    uint32_t slot_bytes;
    unsigned char zero[JR_SLOT_BYTES - 16];
};

struct jr_slot {
    uint64_t used;        /* 1: the rest holds. Stored last when a slot is taken, first when it is given back */
    uint64_t dev;         /* st_dev and st_ino of the data ring's memfd: unique as long as anybody has it open */
    uint64_t ino;
    uint64_t tail;        /* consumed up to here; with JR_RECORDED see above */
    uint64_t begun_at;    /* position of the record that is being handed over */
    uint64_t begun_count; /* `appends` of begun_cpu's ring buffer before */
    uint64_t begun_cpu;
    uint64_t zero;
};

_Static_assert(sizeof(struct jr_header) == JR_SLOT_BYTES && sizeof(struct jr_slot) == JR_SLOT_BYTES, "one cache line");

#define JR_STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELAXED)
#define JR_ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)

/* Step 1. */
static inline void jr_begin(struct jr_slot *slot, uint64_t position, uint64_t cpu, uint64_t count)
{
    JR_STORE(slot->begun_cpu, cpu);
    JR_STORE(slot->begun_count, count);
    JR_ORDER(); /* until begun_at names this record, what stands beside it says nothing */
    JR_STORE(slot->begun_at, position);
    JR_ORDER();
}

/* Step 3. */
static inline void jr_done(struct jr_slot *slot, uint64_t tail)
{
    JR_ORDER();
    JR_STORE(slot->tail, tail);
    JR_ORDER();
}

/* Give a slot to a data ring that is consumed up to `tail`. */
static inline void jr_take_slot(struct jr_slot *slot, uint64_t dev, uint64_t ino, uint64_t tail)
{
    JR_STORE(slot->used, 0);
    JR_ORDER();
    slot->dev = dev;
    slot->ino = ino;
    slot->tail = tail;
    slot->begun_at = JR_NOWHERE;
    JR_ORDER();
    JR_STORE(slot->used, 1);
    JR_ORDER();
}

static inline void jr_free_slot(struct jr_slot *slot)
{
    JR_STORE(slot->used, 0);
    JR_ORDER();
}

/* Settle what a dead daemon left under way in this slot. `count`: `appends` of begun_cpu's ring buffer as adopted, or 0
 * when the ring buffer was not. Nothing may be recorded before this; killed within, it comes to the same again. */
static inline void jr_judge(struct jr_slot *slot, uint64_t count)
{
    if (slot->begun_at == slot->tail && count > slot->begun_count)
        jr_done(slot, slot->tail | JR_RECORDED);
    JR_STORE(slot->begun_at, JR_NOWHERE);
    JR_ORDER();
}

#endif
