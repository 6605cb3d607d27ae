/* The journal: how far the daemon has consumed each data ring, in a file that the next daemon finds.
 *
 * A record goes from a data ring (shared with its producer) into the ring buffer (a file). Both outlive a
 * killed daemon, but neither tells by itself whether the record at the data ring's tail was stored already.
 * This file does: it has a slot for each data ring, whose first cache line is written per record.
 *
 *     header | slot 0 | slot 1 | ...               all in one file in the daemon's state folder, mode 0600
 *
 * Several instances may keep a record, each in its own ring buffer, and the daemon may be killed between any
 * two of them. Its stores for every record, in this order:
 *
 *     for each instance that keeps it:
 *       1. the ring buffer's origin = this data ring's number, the record's position, the ring buffer's count
 *       2. the record into the ring buffer           exists with one store (ring_buffer.h), or not at all
 *     3. tail = tail + bytes                         the record is consumed: one store
 *     4. the record's space in the data ring is zeroed
 *     5. (now and then) the data ring's shared tail  the producer may use the space again
 *
 * Conclusions of the next daemon (Journal.judge, jr_judge, then Intake.dispatch):
 *
 *     killed before 3   A ring buffer whose origin names the record at tail, and whose count is higher by now
 *                       than the one in its origin, took the record. `taken` gets a bit for each such
 *                       instance, tail the mark JR_JUDGED; and the record is dispatched again, to all other
 *                       instances. Exactly once, for every instance.
 *     killed after 3    tail is right, and no origin names the record there. The data ring from its shared
 *                       tail to tail may be half zeroed and is zeroed again.
 *
 * An instance with a snapshot has two rings for each cpu, and a swap makes the other one live
 * (consumers/ftrace/buffer/include/spare.h); the origin stays with its ring, so both are read.
 *
 * A ring buffer's count is of records stored or refused since the last clear (rb_cpu.appends): a record that
 * was refused because the ring buffer was full counts as handled. An instance whose step 1 was not reached,
 * or that does not keep the record (the event is not enabled there, tracing_on is off), has no such origin
 * and gets it again, which changes nothing.
 *
 * The judgement is stored before the next daemon records anything, as bit 0 of tail, which is otherwise a
 * multiple of 8: the ring buffers' origins are forgotten then, while a data ring may come back much later. If
 * the next daemon is killed in between, the one after it adds its own findings: `taken` only grows until the
 * record is consumed, and consuming it clears the mark in the same store.
 *
 * Each daemon numbers the rings that it makes or adopts, from 1 on, and never uses a number twice: otherwise
 * a reused slot would be taken for that of its former ring. The next daemon may begin at 1 again, because it
 * forgets all origins before it gives the first number.
 *
 * Before the daemon skips free space of an empty data ring, it stores the mark JR_SKIPPING in tail, and
 * afterwards the new tail. (Earlier versions find a tail that is no multiple of 8, and go by the data ring's
 * own.) With the mark the next daemon looks at the data ring whether the skip took place (dr_skipped).
 *
 * An instance without its ring buffer (it could not be adopted, or was in memory only) has taken nothing.
 *
 * Not covered: records that a producer reserved and never committed, when its process ended before the
 * daemon did. (While the process lives nothing is stepped over, Rings.drop.) They are zeroed and stepped over
 * before tail says so. If the daemon is killed between the two, and the next one gets the ring from a service
 * manager, that one cannot find the records behind them: these are lost, and nothing is taken in twice.
 *
 * The header also has the clock's conversion of TSC counts. The next daemon continues with it, so a record
 * that waited gets the same time that the killed daemon would have given it: with a rate that a new daemon
 * has measured for a millisecond, the error for a record some seconds old would far exceed the distance of
 * records. A look is written beside the previous one, and then one store makes it valid.
 *
 * Memory order: the reader of these stores is another process that starts after this one is dead. A
 * process is killed between two instructions: all stores before that point are done and reach memory, none
 * behind it is, in whatever order other processors might have seen them; and the kernel gives the folder's
 * lock to the next daemon only after the death. So it is enough that the compiler keeps the order: relaxed
 * atomic stores, which it cannot tear, with signal fences between them. None of this survives a reboot, and
 * neither does /dev/shm.
 */
#ifndef UTRACEFS_JOURNAL_H
#define UTRACEFS_JOURNAL_H

#include <stdint.h>

#include "tsc_clock.h"

#define JR_MAGIC 0x4c4e524a54525455ull /* "UTRTJRNL" as little-endian bytes */
#define JR_VERSION 2u
#define JR_SLOT_BYTES 128u
#define JR_TAKEN_WORDS 11
/* Instances with a number from this on may get a record twice that was being dispatched at a kill. */
#define JR_MAX_BUFFERS (64 * JR_TAKEN_WORDS)
#define JR_JUDGED 1ull /* in tail: `taken` holds */
#define JR_SKIPPING 2ull /* in tail: the data ring was empty there, and may have skipped */

struct jr_header {
    uint64_t magic;
    uint32_t version;
    uint32_t slot_bytes;
    struct tsc_clock_pair clock_first; /* where the measurement of the rate began */
    struct tsc_clock_pair clock_last[2]; /* the last look at both clocks, and room for the next one */
    uint64_t clock_at; /* which of the two it is */
    unsigned char zero[JR_SLOT_BYTES - 72];
};

struct jr_slot {
    uint64_t used;        /* 1: the rest holds. Stored last when a slot is given, first when it is freed */
    uint64_t dev;         /* st_dev and st_ino of the data ring's memfd: unique while a process has it open */
    uint64_t ino;
    uint64_t tail;        /* consumed up to here; JR_JUDGED, JR_SKIPPING: see above */
    uint64_t number;      /* of the data ring, as this daemon numbers them */
    uint64_t taken[JR_TAKEN_WORDS]; /* with JR_JUDGED: a bit for each instance that took the record at tail */
};

_Static_assert(sizeof(struct jr_header) == JR_SLOT_BYTES, "whole cache lines");
_Static_assert(sizeof(struct jr_slot) == JR_SLOT_BYTES, "whole cache lines");

#define JR_STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELAXED)
#define JR_ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)

/* Step 3: consumed up to `tail`. With JR_SKIPPING: and about to skip from there (data_ring.h, "Memory"). */
static inline void jr_done(struct jr_slot *slot, uint64_t tail)
{
    JR_ORDER();
    JR_STORE(slot->tail, tail);
    JR_ORDER();
}

/* Give a slot to a data ring that is consumed up to `tail`. */
static inline void jr_give_slot(struct jr_slot *slot, uint64_t dev, uint64_t ino, uint64_t tail,
                                uint64_t number)
{
    JR_STORE(slot->used, 0);
    JR_ORDER();
    slot->dev = dev;
    slot->ino = ino;
    slot->tail = tail;
    slot->number = number;
    JR_ORDER();
    JR_STORE(slot->used, 1);
    JR_ORDER();
}

/* Another number, for a data ring that is adopted. All origins were forgotten before, so none names it. */
static inline void jr_renumber(struct jr_slot *slot, uint64_t number)
{
    JR_STORE(slot->number, number);
    JR_ORDER();
}

static inline void jr_free_slot(struct jr_slot *slot)
{
    JR_STORE(slot->used, 0);
    JR_ORDER();
}

/* Store which instances took the record at tail (JR_TAKEN_WORDS words). Nothing may be recorded before this.
 * If the daemon is killed in here, the next one comes to the same result. */
static inline void jr_judge(struct jr_slot *slot, const uint64_t *taken)
{
    uint64_t any = 0;
    int judged = (slot->tail & JR_JUDGED) != 0;
    for (int i = 0; i < JR_TAKEN_WORDS; i++)
        any |= taken[i];
    if (!any)
        return;
    for (int i = 0; i < JR_TAKEN_WORDS; i++)
        JR_STORE(slot->taken[i], judged ? slot->taken[i] | taken[i] : taken[i]);
    jr_done(slot, slot->tail | JR_JUDGED);
}

/* Store a look at both clocks, and the beginning of the rate's measurement. */
static inline void jr_note_clock(struct jr_header *header, const struct tsc_clock_pair *first,
                                 const struct tsc_clock_pair *last)
{
    uint64_t next = (header->clock_at + 1) & 1;

    if (header->clock_first.ns != first->ns) {
        /* Clocks that jumped start again: older values are useless. */
        JR_STORE(header->clock_last[0].ns, 0);
        JR_STORE(header->clock_last[1].ns, 0);
        JR_ORDER();
        JR_STORE(header->clock_first.tsc, first->tsc);
        JR_STORE(header->clock_first.ns, first->ns);
    }
    JR_STORE(header->clock_last[next].tsc, last->tsc);
    JR_STORE(header->clock_last[next].ns, last->ns);
    JR_ORDER();
    JR_STORE(header->clock_at, next);
    JR_ORDER();
}

static inline int jr_has_taken(const struct jr_slot *slot, int buffer)
{
    return buffer < JR_MAX_BUFFERS && slot->taken[buffer / 64] >> (buffer % 64) & 1;
}

#endif
