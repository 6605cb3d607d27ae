/* Values that triggers change from within a record, in a file that the next daemon finds.
 *
 * A trigger's remaining count, tracing_on (traceon, traceoff) and whether an event is soft-disabled
 * (enable_event, disable_event) change per record, so they cannot wait for the log of the state, which is
 * written after a batch. They are in cells of one mapped file in the daemon's state folder, mode 0600:
 *
 *     header | cell 1 | cell 2 | ...             each cell is a number: a count, a switch
 *
 * One firing changes two cells (the count and its switch) and notes that the trigger has fired for this
 * record. A kill in between must leave all of that or nothing. So a firing is written twice, all values
 * absolute:
 *
 *     1. redo.cell, .value, .effect, .effect_value, .serial      the new values
 *     2. redo.valid = 1                                          one store: from here on it has happened
 *     3. effect's value, cell's value, cell's done               carry it out
 *     4. redo.valid = 0
 *
 * A daemon that finds redo.valid repeats 3 and 4.
 *
 * Which record? The record that was being dispatched when a daemon was killed is dispatched again (journal.h
 * of intake). A trigger that had fired for it does not fire again, one that had not does; so every firing is
 * stored with its record. Records for which there are triggers are numbered (header.serial), the header has
 * the data ring and position of the present one, and done is the number of the last record for which a
 * trigger fired.
 *
 *     begin     ring = 0;  at, serial + 1;  ring = number of the data ring
 *
 * A record is being dispatched when the journal's tail of that data ring is at it. The journal identifies it
 * by the data ring's dev and ino, because each daemon numbers data rings anew: tc_name() stores them here
 * before the journal drops the number. From then on the state's log and the journal keep the list of fired
 * triggers (Journal.fired), because the data ring may come back after other records were dispatched. A record
 * that came another way (ring 0) is not dispatched again.
 *
 * A record may cause others: synthetic events, which are recorded after it. They wait in the daemon's memory
 * and are lost with it. deferred counts them: it is incremented before the histogram counts the record that
 * causes them, and decremented after one is recorded. So a daemon that finds n knows that at most n are lost.
 *
 * Memory order: as in journal.h; the compiler's order is enough.
 */
#ifndef UTRACEFS_TRIGGER_CELLS_H
#define UTRACEFS_TRIGGER_CELLS_H

#include <stdint.h>

#define TC_MAGIC 0x534c4c4543545455ull /* "UTTCELLS" as little-endian bytes */
#define TC_VERSION 1u
#define TC_CELL_BYTES 32u
#define TC_HEADER_BYTES 128u
#define TC_NAMED UINT64_MAX /* in ring: dev and ino identify the record */
#define TC_NONE 0u          /* no cell has this index */

struct tc_redo {
    uint64_t valid;
    uint32_t cell;
    uint32_t effect; /* the other cell that changes; TC_NONE: none */
    uint64_t value;
    uint64_t effect_value;
    uint64_t serial;
};

struct tc_header {
    uint64_t magic;
    uint32_t version;
    uint32_t cell_bytes;
    uint64_t keys;   /* allocated so far */
    uint64_t serial; /* of the last record that had triggers */
    uint64_t ring;   /* its data ring's number, 0, or TC_NAMED */
    uint64_t at;     /* its position there */
    uint64_t dev;    /* with TC_NAMED: of the data ring */
    uint64_t ino;
    struct tc_redo redo;
    uint64_t deferred; /* synthetic events not recorded yet */
    unsigned char zero[TC_HEADER_BYTES - 72 - sizeof(struct tc_redo)];
};

struct tc_cell {
    uint64_t key;   /* unique: a log with another key is out of date */
    uint64_t value;
    uint64_t done;  /* serial of the last record for which the trigger fired */
    uint64_t zero;
};

_Static_assert(sizeof(struct tc_header) == TC_HEADER_BYTES, "cells begin behind it");
_Static_assert(sizeof(struct tc_cell) == TC_CELL_BYTES, "two a cache line");

#define TC_STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELAXED)
#define TC_ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)

static inline struct tc_cell *tc_at(struct tc_header *h, uint32_t index)
{
    return (struct tc_cell *)((unsigned char *)h + TC_HEADER_BYTES) + (index - 1);
}

/* Triggers see the record at `at` of data ring `ring`, perhaps in several instances. */
static inline void tc_begin(struct tc_header *h, uint64_t ring, uint64_t at)
{
    if (ring && h->ring == ring && h->at == at)
        return;
    TC_STORE(h->ring, 0);
    TC_ORDER();
    TC_STORE(h->at, at);
    TC_STORE(h->serial, h->serial + 1);
    TC_ORDER();
    TC_STORE(h->ring, ring);
    TC_ORDER();
}

/* Step 3 and 4. */
static inline void tc_apply(struct tc_header *h)
{
    const struct tc_redo *redo = &h->redo;
    struct tc_cell *cell = tc_at(h, redo->cell);
    if (redo->effect != TC_NONE)
        TC_STORE(tc_at(h, redo->effect)->value, redo->effect_value);
    TC_STORE(cell->value, redo->value);
    TC_STORE(cell->done, redo->serial);
    TC_ORDER();
    TC_STORE(h->redo.valid, 0);
    TC_ORDER();
}

/* The trigger of `cell` fires: its count becomes `value`, and cell `effect` effect_value. */
static inline void tc_fire(struct tc_header *h, uint32_t cell, uint64_t value, uint32_t effect,
                           uint64_t effect_value)
{
    TC_STORE(h->redo.cell, cell);
    TC_STORE(h->redo.value, value);
    TC_STORE(h->redo.effect, effect);
    TC_STORE(h->redo.effect_value, effect_value);
    TC_STORE(h->redo.serial, h->serial);
    TC_ORDER();
    TC_STORE(h->redo.valid, 1);
    TC_ORDER();
    tc_apply(h);
}

/* Whether the record at `at` of a data ring is that of `serial`. ring: its number in the previous daemon. */
static inline int tc_is_under_way(const struct tc_header *h, uint64_t ring, uint64_t at, uint64_t dev,
                                  uint64_t ino)
{
    if (h->at != at)
        return 0;
    if (h->ring == TC_NAMED)
        return h->dev == dev && h->ino == ino;
    return ring && h->ring == ring;
}

/* From now on the data ring's file identifies that record. */
static inline void tc_name(struct tc_header *h, uint64_t dev, uint64_t ino)
{
    TC_STORE(h->dev, dev);
    TC_STORE(h->ino, ino);
    TC_ORDER();
    TC_STORE(h->ring, TC_NAMED);
    TC_ORDER();
}

/* A cell for a new trigger or switch. */
static inline void tc_give(struct tc_header *h, uint32_t index, uint64_t value)
{
    struct tc_cell *cell = tc_at(h, index);
    TC_STORE(cell->key, 0);
    TC_ORDER();
    TC_STORE(cell->value, value);
    TC_STORE(cell->done, 0);
    TC_STORE(h->keys, h->keys + 1);
    TC_ORDER();
    TC_STORE(cell->key, h->keys);
    TC_ORDER();
}

#endif
