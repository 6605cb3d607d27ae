/* The ring buffer of one cpu.
 *
 * A ring of n sub-buffers and one reader page outside it, as in kernel/trace/ring_buffer.c. The writer works
 * at the tail. A consuming reader swaps its page with the head:
 *
 *     reader page          ring, by position (slot = position % n)
 *     +----------+         +------+------+------+------+------+
 *     | reader_id|         | head |  ..  |  ..  | tail | free |
 *     +----------+         +------+------+------+------+------+
 *
 * Positions only grow, and a page keeps the position that it got when it became the tail until it becomes the
 * tail again: so (position, offset) names a record for ever, and shows whether the record still exists.
 * head..tail are in use; the reader page has reader_pos < head. When the reader took the tail page itself,
 * the ring is empty (tail == head - 1) and the writer continues on the reader page until that is full.
 *
 * One mapping holds everything, so that the next daemon can take it over from the file (rb_adopt):
 *
 *     struct rb_control | struct rb_page_meta [n + 1] | u32 ring [n] | padding | n + 1 sub-buffers
 *                                                       slot -> page id  to 4096
 *
 * Access: only the daemon, one thread; after its death the next daemon. The invariant: a SIGKILL between any
 * two stores leaves a buffer that can be taken over. The stores of a killed process are visible in program
 * order, so it is enough that the compiler keeps the order, and that every change ends in ONE store that
 * makes it valid:
 *
 *   - a record: its bytes first, then the page's commit word. Bytes behind commit are ignored, so a reserved
 *     place that is discarded, or in which the daemon is killed, needs no cleaning up.
 *   - consuming a record: the store of read_off. (`lost` is set to 0 before it: a kill between the two costs
 *     the mark before the next record, not the record; `overrun` still counts them.)
 *   - a change of structure (tail moves on, head dropped, reader page swapped): `state` exists twice. The
 *     spare copy is filled in, then `active` flips. A page is emptied only while the active state does not
 *     use it. After a swap the slot of the page that became the reader page still names that page; rb_adopt
 *     sees it twice and puts the missing one there.
 *   - clear: `clearing` is flipped in first, then pages in use are emptied; a daemon that adopts a ring with
 *     `clearing` set clears it again.
 *   - resize: made as a new mapping (file) which replaces the old one by rename(2).
 *
 * Records can be missing for two reasons. Overwritten ones are known when a reader takes the next page:
 * `overrun`. Losses on the way to the buffer (a data ring was full) are reported by rb_mark_lost, and belong
 * before the next record; readers of pages look for that only in a page's header. So a mark ends the page,
 * and its number is in the next page's meta. The mark of an overwritten page is added to the next page's
 * (`carried`). Readers get the sum.
 *
 * All else is a cache, which rb_adopt computes anew by walking the records.
 */
#ifndef UTRACEFS_RING_BUFFER_H
#define UTRACEFS_RING_BUFFER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "copy.h"

#define RB_MAGIC 0x4655424752545455ull /* "UTTRGBUF" as little-endian bytes */
#define RB_VERSION 3u
#define RB_POPULATE_BYTES (128u << 10)
#define RB_CONTROL_ALIGN 4096u
#define RB_PAGE_HEADER 16u         /* u64 time stamp, u64 commit */
/* Bytes of the largest entry: the payload of a page less two header words. */
#define RB_MAX_DATA(subbuf) ((subbuf) - RB_PAGE_HEADER - 8u)
#define RB_MAX_SMALL 112u          /* payload up to here has its length in type_len */
#define RB_TYPE_PADDING 29u
#define RB_TYPE_TIME_EXTEND 30u
#define RB_TYPE_TIME_STAMP 31u
#define RB_DELTA_BITS 27
#define RB_LOST_STORED (1u << 30)
#define RB_LOST (1u << 31)
#define RB_MAX_SUBBUF (512u << 10) /* lengths in the commit word have 20 bits */
#define RB_MAX_SUBBUFS (1u << 24)

struct rb_state {
    uint64_t head;          /* position of the oldest page in the ring */
    uint64_t tail;          /* position of the page being written; head - 1: that is the reader page */
    uint64_t reader_pos;    /* position of the reader page */
    uint32_t reader_id;
    uint32_t read_off;      /* bytes of the reader page's records already consumed */
    uint64_t overrun;       /* records dropped with their page, since the last clear */
    uint64_t last_overrun;  /* `overrun` when the reader page was swapped in */
    uint64_t lost;          /* overwritten before the reader page's next record, unreported */
    uint64_t read_before;   /* records consumed on earlier reader pages */
    uint64_t dropped;       /* records refused */
    uint64_t late;          /* records older than the one before, whose time they got, since the last clear */
    uint64_t late_by;       /* the largest change of such a time */
    uint32_t clearing;      /* a clear was under way */
    uint32_t zero;
    uint64_t unmarked;      /* lost before the next record, not yet in a page's meta */
    uint64_t carried;       /* marks of pages overwritten since the reader page was swapped in */
};

/* The last data ring record that was dispatched here: see intake/include/journal.h. */
struct rb_origin {
    uint64_t ring;          /* the data ring's number in the journal; 0: none */
    uint64_t at;            /* the record's position in that data ring */
    uint64_t appends;       /* rb_cpu.appends before it: a higher value means that it was stored or refused */
};

struct rb_control {
    uint64_t magic;
    uint32_t version;
    uint32_t subbuf_size;
    uint32_t nr_subbufs;    /* without the reader page */
    uint32_t cpu;
    uint32_t nr_cpus;       /* of the whole buffer */
    uint32_t overwrite;
    uint32_t active;        /* which of the two states is valid */
    uint32_t zero;
    struct rb_state state[2];
    struct rb_origin origin;
};

struct rb_page_meta {
    uint32_t entries;
    uint32_t real_end;      /* where the padding at the page end begins; 0: there is none */
    uint64_t lost;          /* lost records just before the page's first one */
};

struct rb_page {
    uint64_t time_stamp;
    uint64_t commit;        /* bytes of records, padding included; in memory without the lost bits */
    uint8_t data[];
};

/* One process' handle. Everything but `map` and `map_size` is derived from the mapping. */
typedef struct rb_cpu {
    uint8_t *map;
    size_t map_size;
    struct rb_control *control;
    struct rb_page_meta *meta;
    uint32_t *ring;
    uint8_t *pages;
    uint32_t subbuf_size;
    uint32_t payload;       /* subbuf_size - 16 */
    uint32_t nr;
    /* writer */
    struct rb_page *tail_page;
    struct rb_page_meta *tail_meta;
    uint32_t write;         /* == tail_page->commit */
    uint64_t last_ts;       /* of the last record, in trace-clock units */
    uint64_t appends;       /* records stored or refused since the last clear */
    uint32_t populated;     /* sub-buffers with a lower number are mapped */
    /* consuming reader */
    uint64_t read_ts;       /* running time at read_off of the reader page */
    uint64_t read_entries;  /* records of the reader page before read_off */
    /* incremented by every change that can move or remove an unread record; positions looked up before may
     * then be stale */
    uint64_t changes;
    /* One number for a ring as long as the process lives, whatever its size: which one a walk is on, where
     * a snapshot swapped it for another (spare.h). */
    uint64_t identity;
} rb_cpu;

/* A reserved place, which rb_commit makes a record. Valid until the next call that changes the ring. */
typedef struct rb_place {
    uint8_t *entry;         /* 8 bytes of common fields, then the payload, to be filled in */
    uint64_t ts;
    uint32_t end;           /* offset behind it */
} rb_place;

enum {
    RB_RESERVED = 0,
    RB_FULL = 1,            /* overwrite is off; counted as dropped */
    RB_TOO_LARGE = 2,       /* counted nowhere here */
    RB_AGAIN = 3,           /* the tail moved to another page: read the clock again, then reserve again */
};

struct rb_record {
    uint64_t pos;           /* position of its page */
    uint32_t off;           /* of its first word, which is that of its time extend if it has one */
    uint32_t end;           /* offset behind it */
    uint64_t ts;
    const uint8_t *data;
    uint32_t size;          /* as stored, rounded up */
};

/* A walk over one cpu's unread records. */
typedef struct rb_iter {
    uint64_t pos;
    uint32_t off;
    uint64_t ts;            /* running time at `off` */
    uint64_t seen_overrun;
    uint32_t overtaken;     /* records were overwritten between the last returned record and `next` */
    uint32_t have;          /* `next` is the next record, as of `changes` */
    uint64_t changes;
    uint64_t identity;      /* of the ring of the positions */
    struct rb_record next;
    uint64_t lost;          /* mark of the page that `next` is the first record of */
} rb_iter;

/* Order stores for the next daemon: it only needs program order, so these are compiler barriers in effect. */
#define RB_COMMIT(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELEASE)

static inline struct rb_state *rb_state(const rb_cpu *b)
{
    return &b->control->state[b->control->active & 1];
}

static inline struct rb_page *rb_page_of(const rb_cpu *b, uint32_t id)
{
    return (struct rb_page *)(b->pages + (size_t)id * b->subbuf_size);
}

/* Begin a change of structure: returns the copy to fill in. rb_flip makes it valid. */
static inline struct rb_state *rb_spare(const rb_cpu *b)
{
    struct rb_state *spare = &b->control->state[!(b->control->active & 1)];
    *spare = *rb_state(b);
    return spare;
}

static inline void rb_flip(const rb_cpu *b) { RB_COMMIT(b->control->active, !(b->control->active & 1)); }

static inline uint64_t rb_used(const struct rb_state *s) { return s->tail + 1 - s->head; }

static inline uint32_t rb_tail_id(const rb_cpu *b, const struct rb_state *s)
{
    return rb_used(s) ? b->ring[s->tail % b->nr] : s->reader_id;
}

/* Offset behind the last record of a page, without its padding. */
static inline uint32_t rb_page_end(const rb_cpu *b, uint32_t id)
{
    return b->meta[id].real_end ? b->meta[id].real_end : (uint32_t)rb_page_of(b, id)->commit;
}

static inline void rb_empty_page(const rb_cpu *b, uint32_t id)
{
    RB_COMMIT(rb_page_of(b, id)->commit, 0);
    b->meta[id].entries = 0;
    b->meta[id].real_end = 0;
    b->meta[id].lost = 0;
}

static inline void rb_find_tail(rb_cpu *b)
{
    uint32_t id = rb_tail_id(b, rb_state(b));
    b->tail_page = rb_page_of(b, id);
    b->tail_meta = &b->meta[id];
    b->write = (uint32_t)b->tail_page->commit;
}

/* ---- writing ---- */

/* Bytes of an entry of `size` bytes with its header, as in rb_calculate_event_length(): 12 becomes 16, so
 * that every record has space to become a time extend. size <= RB_MAX_DATA(RB_MAX_SUBBUF): no overflow. */
static inline uint32_t rb_record_size(size_t size)
{
    uint32_t total = (uint32_t)size + 4 + (size > RB_MAX_SMALL ? 4 : 0);
    total = (total + 3) & ~3u;
    return total == 12 ? 16 : total;
}

/* A sub-buffer is written for the first time: make the kernel map it and some that follow. A page fault for
 * each would cost 10 ns per record of 28 bytes, a third of its intake. */
static inline void rb_populate(rb_cpu *b, uint32_t id)
{
    uint32_t n = 1 + RB_POPULATE_BYTES / b->subbuf_size;
    uint8_t *at = b->pages + (size_t)id * b->subbuf_size;

    if (n > b->nr + 1 - id)
        n = b->nr + 1 - id;
#ifdef MADV_POPULATE_WRITE
    /* Linux 5.14. If it fails, each page is mapped when touched. */
    madvise(at, (size_t)n * b->subbuf_size, MADV_POPULATE_WRITE);
#endif
    b->populated = id + n;
}

/* Pad the rest of the tail page, then move to the next page. False: full and overwrite off. The kernel pads
 * before it checks that (out_reset in its rb_move_tail()), so no smaller record gets onto the page later. */
static inline int rb_move_tail(rb_cpu *b)
{
    if (b->payload - b->write >= 8) {
        uint32_t word = 1u << 5 | RB_TYPE_PADDING, array = b->payload - b->write - 4;
        memcpy(b->tail_page->data + b->write, &word, 4);
        memcpy(b->tail_page->data + b->write + 4, &array, 4);
        b->tail_meta->real_end = b->write;
        RB_COMMIT(b->tail_page->commit, b->payload);
        b->write = b->payload;
    }
    struct rb_state *s = rb_state(b);
    if (rb_used(s) == b->nr) {
        if (!b->control->overwrite)
            return 0;
        struct rb_page_meta *dropped = &b->meta[b->ring[s->head % b->nr]];
        s = rb_spare(b);
        s->overrun += dropped->entries;
        s->carried += dropped->lost;
        s->head++;
        rb_flip(b);
    }
    s = rb_state(b);
    uint32_t next = b->ring[(s->tail + 1) % b->nr]; /* outside head..tail and not the reader page: free */
    if (next >= b->populated)
        rb_populate(b, next);
    rb_empty_page(b, next);
    b->meta[next].lost = s->unmarked;
    s = rb_spare(b);
    s->unmarked = 0;
    s->tail++;
    rb_flip(b);
    rb_find_tail(b);
    b->changes++;
    return 1;
}

/* `n` records are missing before the next one. If no page can begin now, the next page that begins gets the
 * number: a buffer that is full and does not overwrite takes no record until then. */
static inline void rb_mark_lost(rb_cpu *b, uint64_t n)
{
    if (b->write == 0) {
        b->tail_meta->lost += n;
        return;
    }
    rb_state(b)->unmarked += n;
    if ((b->control->overwrite || rb_used(rb_state(b)) < b->nr) && rb_move_tail(b))
        b->tail_page->time_stamp = b->last_ts; /* until the record is stored */
}

/* Before storing the record at `at` of data ring `ring`: name it, for the next daemon. */
static inline void rb_note_origin(rb_cpu *b, uint64_t ring, uint64_t at)
{
    struct rb_origin *origin = &b->control->origin;
    /* The count first: the record named until then was consumed long ago. A half-stored name is no record
     * being dispatched either, because there is only one. */
    RB_COMMIT(origin->appends, b->appends);
    RB_COMMIT(origin->ring, ring);
    RB_COMMIT(origin->at, at);
}

/* Whether this ring stored or refused the record at `at` of data ring `ring`. For the next daemon. */
static inline int rb_has_taken(const rb_cpu *b, uint64_t ring, uint64_t at)
{
    const struct rb_origin *origin = &b->control->origin;
    return ring && origin->ring == ring && origin->at == at && b->appends > origin->appends;
}

static inline void rb_forget_origin(rb_cpu *b) { RB_COMMIT(b->control->origin.ring, 0); }

/* Reserve a place for an entry of 8 + size bytes, as ring_buffer_lock_reserve(): RB_RESERVED, RB_FULL,
 * RB_TOO_LARGE or RB_AGAIN. Commit it, or discard it by doing nothing: bytes behind the page's commit word
 * are ignored. A time before the last one becomes the last one: records of one cpu are in time order. */
static inline int rb_reserve(rb_cpu *b, uint64_t ts, size_t size, rb_place *place)
{
    if (size > RB_MAX_DATA(b->subbuf_size) - 8)
        return RB_TOO_LARGE;
    uint32_t entry = (uint32_t)size + 8, total = rb_record_size(entry);
    uint64_t late_by = 0;
    if (__builtin_expect(ts < b->last_ts, 0)) {
        late_by = b->last_ts - ts;
        ts = b->last_ts;
    }
    uint64_t delta = b->write ? ts - b->last_ts : 0; /* the first record of a page has the page's time */
    uint32_t extend = delta >> RB_DELTA_BITS ? 8 : 0;
    if (b->write + extend + total > b->payload) {
        if (rb_move_tail(b))
            return RB_AGAIN;
        rb_state(b)->dropped++;
        b->appends++;
        return RB_FULL;
    }
    struct rb_page *page = b->tail_page;
    uint8_t *to = page->data + b->write;
    if (b->write == 0)
        page->time_stamp = ts;
    uint32_t word, zero = 0;
    if (extend) {
        uint32_t high = (uint32_t)(delta >> RB_DELTA_BITS);
        word = (uint32_t)(delta & ((1u << RB_DELTA_BITS) - 1)) << 5 | RB_TYPE_TIME_EXTEND;
        memcpy(to, &word, 4);
        memcpy(to + 4, &high, 4);
        to += 8;
        delta = 0;
    }
    memcpy(to + total - 4, &zero, 4); /* the pad bytes: never show old contents */
    word = (uint32_t)delta << 5;
    if (entry > RB_MAX_SMALL) {
        uint32_t length = total - 4;
        memcpy(to, &word, 4);
        memcpy(to + 4, &length, 4);
        to += 8;
    } else {
        word |= (total - 4) / 4;
        memcpy(to, &word, 4);
        to += 4;
    }
    place->entry = to;
    place->ts = ts;
    place->end = b->write + extend + total;
    if (__builtin_expect(late_by != 0, 0)) {
        struct rb_state *s = rb_state(b);
        s->late++;
        if (s->late_by < late_by)
            s->late_by = late_by;
    }
    return RB_RESERVED;
}

/* Fill in a place. common: the entry's first 8 bytes, as one little-endian word. */
static inline void rb_fill(const rb_place *place, uint64_t common, const void *payload, size_t size)
{
    memcpy(place->entry, &common, 8);
    if (size)
        ut_copy(place->entry + 8, payload, size);
}

static inline void rb_commit(rb_cpu *b, const rb_place *place)
{
    b->write = place->end;
    RB_COMMIT(b->tail_page->commit, b->write); /* now it is a record */
    b->tail_meta->entries++;
    b->last_ts = place->ts;
    b->appends++;
}

/* Reserve, fill in, commit, with a given time: RB_RESERVED, RB_FULL or RB_TOO_LARGE. */
static inline int rb_append(rb_cpu *b, uint64_t ts, uint64_t common, const void *payload, size_t size)
{
    rb_place place;
    int code;
    while ((code = rb_reserve(b, ts, size, &place)) == RB_AGAIN)
        ;
    if (code == RB_RESERVED) {
        rb_fill(&place, common, payload, size);
        rb_commit(b, &place);
    }
    return code;
}

#endif
