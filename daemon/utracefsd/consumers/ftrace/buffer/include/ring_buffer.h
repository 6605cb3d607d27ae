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
 * Access: only the daemon, one thread, with the GIL; after its death the next daemon. Never both, and no
 * other process (files have mode 0600). So nothing here is atomic against another writer. The invariant: a
 * SIGKILL between any two stores leaves a buffer that can be taken over. The stores of a killed process are
 * visible in program order, so it is enough that the compiler keeps the order, and that every change ends in
 * ONE store that makes it valid:
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
 * All else is a cache: entries and real_end of a page, the time of the last record, how many records of the
 * reader page were read, and `appends`. rb_adopt computes them anew by walking the records.
 */
#ifndef UTRACEFS_RING_BUFFER_H
#define UTRACEFS_RING_BUFFER_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

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

/* ---- making, adopting ---- */

/* Bytes before the first sub-buffer. n <= RB_MAX_SUBBUFS, so nothing overflows; nor does rb_map_size. */
static inline size_t rb_head_size(uint32_t n)
{
    size_t size = sizeof(struct rb_control) + ((size_t)n + 1) * sizeof(struct rb_page_meta);
    size += (size_t)n * sizeof(uint32_t);
    return (size + RB_CONTROL_ALIGN - 1) / RB_CONTROL_ALIGN * RB_CONTROL_ALIGN;
}

static inline size_t rb_map_size(uint32_t n, uint32_t subbuf)
{
    return rb_head_size(n) + ((size_t)n + 1) * subbuf;
}

static inline int rb_valid_subbuf(uint32_t size)
{
    return size >= 4096 && size <= RB_MAX_SUBBUF && (size & (size - 1)) == 0;
}

static inline void rb_locate(rb_cpu *b, uint32_t n, uint32_t subbuf)
{
    b->control = (struct rb_control *)b->map;
    b->meta = (struct rb_page_meta *)(b->control + 1);
    b->ring = (uint32_t *)(b->meta + n + 1);
    b->pages = b->map + rb_head_size(n);
    b->subbuf_size = subbuf;
    b->payload = subbuf - RB_PAGE_HEADER;
    b->nr = n;
}

static inline void rb_unmap(rb_cpu *b)
{
    if (b->map)
        munmap(b->map, b->map_size);
    b->map = NULL;
}

static inline uint64_t rb_new_identity(void)
{
    static uint64_t last;
    return ++last;
}

/* A new, empty ring in zero-filled memory: anonymous for fd -1, else a fresh file of rb_map_size() bytes.
 * 0 or -errno. */
static inline int rb_create(rb_cpu *b, int fd, uint32_t n, uint32_t subbuf, uint32_t cpu, uint32_t nr_cpus,
                            int overwrite)
{
    memset(b, 0, sizeof *b);
    b->identity = rb_new_identity();
    b->map_size = rb_map_size(n, subbuf);
    void *map = mmap(NULL, b->map_size, PROT_READ | PROT_WRITE,
                     fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    b->map = map;
    rb_locate(b, n, subbuf);
    struct rb_control *c = b->control;
    c->version = RB_VERSION;
    c->subbuf_size = subbuf;
    c->nr_subbufs = n;
    c->cpu = cpu;
    c->nr_cpus = nr_cpus;
    c->overwrite = overwrite;
    for (uint32_t i = 0; i < n; i++)
        b->ring[i] = i;
    c->state[0].reader_id = n;
    c->state[0].reader_pos = 1;
    c->state[0].head = c->state[0].tail = 2;
    rb_find_tail(b);
    RB_COMMIT(c->magic, RB_MAGIC);
    return 0;
}

/* Decode the record at `off` of a page whose records end at `end`; `ts` is the running time there. False:
 * none, or an invalid one (only possible on a page not yet checked). */
static inline int rb_decode(const struct rb_page *page, uint32_t off, uint32_t end, uint64_t ts,
                            struct rb_record *r)
{
    r->off = off;
    while (off + 4 <= end) {
        uint32_t word, array = 0, total;
        memcpy(&word, page->data + off, 4);
        if (off + 8 <= end)
            memcpy(&array, page->data + off + 4, 4);
        uint32_t type = word & 31;
        uint64_t delta = word >> 5;
        if (type == RB_TYPE_TIME_EXTEND || type == RB_TYPE_TIME_STAMP) {
            if (off + 8 > end)
                return 0;
            uint64_t wide = ((uint64_t)array << RB_DELTA_BITS) + delta;
            ts = type == RB_TYPE_TIME_EXTEND ? ts + wide : (ts & ~((1ull << 59) - 1)) | wide;
            off += 8;
            continue;
        }
        if (type == RB_TYPE_PADDING)
            return 0; /* padding is written only at the end of a page, behind `end` */
        if (type == 0) {
            if (off + 8 > end || array < 4 || array > end - off - 4)
                return 0;
            total = 4 + array;
            r->data = page->data + off + 8;
            r->size = array - 4;
        } else {
            total = 4 + 4 * type;
            if (total > end - off)
                return 0;
            r->data = page->data + off + 4;
            r->size = total - 4;
        }
        r->ts = ts + delta;
        r->end = off + total;
        return 1;
    }
    return 0;
}

/* Compute entries and real_end of a page from its records. Gives the running time at its end, and the number
 * of records and the running time at `upto`. -1: not a page of records, or no record ends at `upto`. */
static inline int rb_check_page(const rb_cpu *b, uint32_t id, uint32_t upto, uint64_t *end_ts,
                                uint64_t *upto_ts, uint64_t *upto_entries)
{
    struct rb_page *page = rb_page_of(b, id);
    if (page->commit > b->payload || page->commit % 4)
        return -1;
    uint32_t commit = (uint32_t)page->commit, off = 0, entries = 0, real_end = 0;
    uint64_t ts = page->time_stamp;
    int found = upto == 0;
    *upto_ts = ts;
    *upto_entries = 0;
    struct rb_record r;
    while (off < commit) {
        uint32_t word, array;
        memcpy(&word, page->data + off, 4);
        if ((word & 31) == RB_TYPE_PADDING) {
            if (commit != b->payload || commit - off < 8)
                return -1;
            memcpy(&array, page->data + off + 4, 4);
            if (off == 0 || array != commit - off - 4)
                return -1;
            real_end = off;
            break;
        }
        if (!rb_decode(page, off, commit, ts, &r) || r.end % 4 || r.size < 8 ||
            r.size > RB_MAX_DATA(b->subbuf_size))
            return -1;
        off = r.end;
        ts = r.ts;
        entries++;
        if (off == upto) {
            found = 1;
            *upto_ts = ts;
            *upto_entries = entries;
        }
    }
    if (upto == commit && !found) { /* everything read, also the padding */
        found = 1;
        *upto_ts = ts;
        *upto_entries = entries;
    }
    if (!found)
        return -1;
    b->meta[id].entries = entries;
    b->meta[id].real_end = real_end;
    *end_ts = ts;
    return 0;
}

static inline void rb_clear(rb_cpu *b);
static inline uint64_t rb_entries(const rb_cpu *b);
static inline uint64_t rb_read(const rb_cpu *b);

/* 0 if each page is named once, by a slot or as the reader page; -1 if not. An interrupted swap is completed:
 * the slot before the head still names the reader page, and the former reader page is named nowhere.
 * `entries` counts how often each is named; it is 0 again for all pages afterwards. */
static inline int rb_check_slots(rb_cpu *b)
{
    struct rb_state *s = rb_state(b);
    uint32_t twice = b->nr, missing = b->nr + 1;
    for (uint32_t id = 0; id <= b->nr; id++)
        b->meta[id].entries = 0;
    b->meta[s->reader_id].entries = 1;
    for (uint32_t slot = 0; slot < b->nr; slot++) {
        uint32_t id = b->ring[slot];
        if (id > b->nr)
            return -1;
        if (b->meta[id].entries++) {
            if (twice != b->nr || id != s->reader_id || slot != (s->head - 1) % b->nr || rb_used(s) == b->nr)
                return -1;
            twice = slot;
        }
    }
    for (uint32_t id = 0; id <= b->nr; id++) {
        if (b->meta[id].entries == 0)
            missing = id;
        b->meta[id].entries = 0;
        b->meta[id].real_end = 0;
    }
    if (twice != b->nr)
        b->ring[twice] = missing;
    return 0;
}

/* Take over the ring in a file of an ended process. All values are checked: 0, -errno, or -EINVAL with *why
 * set. */
static inline int rb_adopt(rb_cpu *b, int fd, const char **why)
{
    struct stat st;
    memset(b, 0, sizeof *b);
    b->identity = rb_new_identity();
    *why = "no ring buffer has this length";
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_size < (off_t)rb_map_size(2, 4096))
        return -EINVAL;
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    b->map = map;
    b->map_size = (size_t)st.st_size;
    struct rb_control *c = (struct rb_control *)b->map;
    *why = "not a ring buffer of this version";
    if (c->magic != RB_MAGIC || c->version != RB_VERSION)
        goto nonsense;
    *why = "invalid sizes";
    if (!rb_valid_subbuf(c->subbuf_size) || c->nr_subbufs < 2 || c->nr_subbufs > RB_MAX_SUBBUFS ||
        c->active > 1 || c->overwrite > 1 || c->nr_cpus == 0 || c->cpu >= c->nr_cpus)
        goto nonsense;
    if (b->map_size != rb_map_size(c->nr_subbufs, c->subbuf_size))
        goto nonsense;
    rb_locate(b, c->nr_subbufs, c->subbuf_size);

    struct rb_state *s = rb_state(b);
    *why = "invalid positions";
    if (s->reader_id > b->nr || s->head < 2 || s->head > UINT64_MAX / 2 || s->tail + 1 < s->head ||
        rb_used(s) > b->nr || s->reader_pos >= s->head || (rb_used(s) == 0 && s->reader_pos != s->tail) ||
        s->overrun < s->last_overrun || s->clearing > 1)
        goto nonsense;

    *why = "a page is missing or used twice";
    if (rb_check_slots(b))
        goto nonsense;

    if (s->clearing) {
        rb_clear(b);
        return 0;
    }
    *why = "invalid records";
    uint64_t end_ts, ts, entries;
    uint32_t reader_commit = (uint32_t)rb_page_of(b, s->reader_id)->commit;
    if (s->read_off > reader_commit ||
        rb_check_page(b, s->reader_id, s->read_off, &end_ts, &b->read_ts, &b->read_entries))
        goto nonsense;
    b->last_ts = b->meta[s->reader_id].entries ? end_ts : 0;
    for (uint64_t pos = s->head; pos <= s->tail; pos++) {
        uint32_t id = b->ring[pos % b->nr];
        if (rb_check_page(b, id, 0, &end_ts, &ts, &entries) || (pos < s->tail && b->meta[id].entries == 0))
            goto nonsense; /* only the tail page can be empty: rb_is_empty counts on it */
        if (b->meta[id].entries && end_ts > b->last_ts)
            b->last_ts = end_ts;
    }
    rb_find_tail(b);
    b->appends = rb_entries(b) + rb_read(b) + s->overrun + s->dropped;
    return 0;
nonsense:
    rb_unmap(b);
    return -EINVAL;
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
    /* The count is stored first: the record named until then was consumed long ago, so its count is not used.
     * A half-stored name is no record being dispatched either, because there is only one. */
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
        memcpy(place->entry + 8, payload, size);
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

static inline uint64_t rb_oldest_ts(const rb_cpu *b);

/* Drop all records, zero all counters. The stamp of the oldest page is kept, as in the kernel: `stats`
 * after a clear still shows it (tests/conformance/6.12.117/30_lifetime.txt). */
static inline void rb_clear(rb_cpu *b)
{
    struct rb_state *s = rb_state(b);
    uint64_t oldest = rb_oldest_ts(b), tail = s->tail;
    if (!s->clearing) {
        s = rb_spare(b);
        s->clearing = 1;
        rb_flip(b);
        s = rb_state(b);
    }
    uint32_t reader = s->reader_id;
    rb_empty_page(b, reader);
    rb_empty_page(b, b->ring[(tail + 2) % b->nr]);
    rb_page_of(b, b->ring[(tail + 2) % b->nr])->time_stamp = oldest;
    s = rb_spare(b);
    memset(s, 0, sizeof *s);
    s->reader_id = reader;
    s->reader_pos = tail + 1; /* new positions, so a cursor at an old one notices */
    s->head = s->tail = tail + 2;
    rb_flip(b);
    rb_find_tail(b);
    b->last_ts = b->read_ts = b->read_entries = b->appends = 0;
    b->changes++;
}

/* ---- numbers ---- */

static inline uint64_t rb_overrun(const rb_cpu *b) { return rb_state(b)->overrun; }
static inline uint64_t rb_dropped(const rb_cpu *b) { return rb_state(b)->dropped; }
static inline uint64_t rb_late(const rb_cpu *b) { return rb_state(b)->late; }
static inline uint64_t rb_late_by(const rb_cpu *b) { return rb_state(b)->late_by; }
static inline uint64_t rb_lost(const rb_cpu *b) { return rb_state(b)->lost; }
static inline uint64_t rb_pages_used(const rb_cpu *b) { return rb_used(rb_state(b)); }
static inline int rb_overwrite(const rb_cpu *b) { return b->control->overwrite; }
static inline void rb_set_overwrite(const rb_cpu *b, int on) { b->control->overwrite = on; }
static inline uint32_t rb_cpu_number(const rb_cpu *b) { return b->control->cpu; }
static inline uint32_t rb_cpu_count(const rb_cpu *b) { return b->control->nr_cpus; }
static inline uint32_t rb_subbuf_size(const rb_cpu *b) { return b->subbuf_size; }
static inline uint64_t rb_read(const rb_cpu *b) { return rb_state(b)->read_before + b->read_entries; }

static inline uint64_t rb_entries(const rb_cpu *b)
{
    struct rb_state *s = rb_state(b);
    uint64_t n = b->meta[s->reader_id].entries - b->read_entries;
    for (uint64_t pos = s->head; pos <= s->tail; pos++)
        n += b->meta[b->ring[pos % b->nr]].entries;
    return n;
}

static inline int rb_is_empty(const rb_cpu *b)
{
    struct rb_state *s = rb_state(b);
    if (b->meta[s->reader_id].entries > b->read_entries)
        return 0;
    /* Only the tail page can be empty. */
    return rb_used(s) == 0 || b->meta[b->ring[s->head % b->nr]].entries == 0;
}

/* Bytes of unread records. Padding at page ends counts, as in the kernel's entries_bytes: 158 records of 64
 * bytes on three pages are 10208 there. */
static inline uint64_t rb_bytes(const rb_cpu *b)
{
    struct rb_state *s = rb_state(b);
    uint64_t n = rb_page_of(b, s->reader_id)->commit - s->read_off;
    for (uint64_t pos = s->head; pos <= s->tail; pos++)
        n += rb_page_of(b, b->ring[pos % b->nr])->commit;
    return n;
}

/* As ring_buffer_oldest_event_ts(): the head page's stamp; that of the reader page if the writer is on it. */
static inline uint64_t rb_oldest_ts(const rb_cpu *b)
{
    struct rb_state *s = rb_state(b);
    return rb_page_of(b, rb_used(s) ? b->ring[s->head % b->nr] : s->reader_id)->time_stamp;
}

/* ---- consuming ---- */

/* Make the reader page one with an unread record. False: there is no such record. */
static inline int rb_load_reader(rb_cpu *b)
{
    struct rb_state *s = rb_state(b);
    if (s->read_off < rb_page_end(b, s->reader_id))
        return 1;
    if (rb_is_empty(b))
        return 0;
    uint32_t old = s->reader_id;
    uint64_t slot = s->head % b->nr, missed = s->overrun - s->last_overrun;
    uint32_t read = b->meta[old].entries;
    s = rb_spare(b);
    s->read_before += read;
    s->lost += missed + s->carried + b->meta[b->ring[slot]].lost;
    s->carried = 0;
    s->last_overrun = s->overrun;
    s->reader_id = b->ring[slot];
    s->reader_pos = s->head;
    s->read_off = 0;
    s->head++;
    rb_flip(b);
    RB_COMMIT(b->ring[slot], old);
    b->read_ts = rb_page_of(b, s->reader_id)->time_stamp;
    b->read_entries = 0;
    b->changes++;
    return 1;
}

/* The reader page was read up to `off`, `entries` records more; the running time there is `ts`. */
static inline void rb_consumed(rb_cpu *b, uint32_t off, uint64_t ts, uint64_t entries)
{
    struct rb_state *s = rb_state(b);
    if (off == b->meta[s->reader_id].real_end)
        off = (uint32_t)rb_page_of(b, s->reader_id)->commit; /* the padding with the last record */
    s->lost = 0;
    b->read_ts = ts;
    b->read_entries += entries;
    RB_COMMIT(s->read_off, off);
    b->changes++;
}

/* Finish a page with `length` bytes of records: flag records `missing` before it, and store their number
 * behind the records if there is space; `lost` is 0 if it is unknown. Zero the rest. */
static inline void rb_seal_page(const rb_cpu *b, struct rb_page *to, uint32_t length, int missing,
                                uint64_t lost)
{
    uint32_t commit = length;
    if (missing)
        commit |= RB_LOST;
    if (lost && b->payload - length >= sizeof lost) {
        commit |= RB_LOST_STORED;
        memcpy(to->data + length, &lost, sizeof lost);
        length += sizeof lost;
    }
    to->commit = commit;
    memset(to->data + length, 0, b->payload - length);
}

/* Consume a page for one read() of trace_pipe_raw, as ring_buffer_read_page(), into a page of subbuf_size
 * bytes at `out`: 1 a page; 0 nothing to read; -1 `size` too small for the first record.
 *
 * The number of missing records is stored behind the records. The kernel omits it where a full page has no
 * space for it; here the page then ends before its last record, which the next read gets. */
static inline int rb_read_page(rb_cpu *b, size_t size, uint8_t *out)
{
    if (!rb_load_reader(b))
        return 0;
    struct rb_state *s = rb_state(b);
    uint32_t id = s->reader_id, start = s->read_off, end = rb_page_end(b, id), length;
    struct rb_page *page = rb_page_of(b, id), *to = (struct rb_page *)out;
    int is_tail = rb_used(s) == 0;
    if (size <= RB_PAGE_HEADER)
        return -1;
    size -= RB_PAGE_HEADER;
    struct rb_record r;
    uint32_t off = start;
    uint64_t ts = b->read_ts, entries = 0, lost = s->lost;
    size_t room = lost && size > b->payload - sizeof lost ? b->payload - sizeof lost : size;
    if (start == 0 && room >= end) { /* the whole page; no need to decode the records */
        off = end;
        entries = b->meta[id].entries;
        if (is_tail)
            ts = b->last_ts; /* the writer is on this page: the next read begins at the last record's time */
    } else {
        /* one record that fills the page alone goes without the number */
        while (rb_decode(page, off, end, ts, &r) && r.end - start <= (entries ? room : size)) {
            off = r.end;
            ts = r.ts;
            entries++;
        }
    }
    length = off - start;
    if (length == 0)
        return -1;
    to->time_stamp = b->read_ts;
    memcpy(to->data, page->data + start, length);
    rb_seal_page(b, to, length, lost != 0, lost);
    rb_consumed(b, off, ts, entries);
    return 1;
}

/* ---- walking ---- */

static inline uint64_t rb_tail(const rb_cpu *b)
{
    return rb_state(b)->tail;
}

static inline void rb_iter_start(const rb_cpu *b, rb_iter *it)
{
    memset(it, 0, sizeof *it);
    it->seen_overrun = rb_overrun(b);
    it->identity = b->identity;
}

/* Find the first unread record at or behind (pos, off). If that page was consumed, overwritten or cleared
 * meanwhile, the walk continues with the oldest record. */
static inline int rb_iter_peek(const rb_cpu *b, rb_iter *it)
{
    if (it->identity != b->identity)
        rb_iter_start(b, it); /* another ring: positions differ */
    if (it->have && it->changes == b->changes)
        return 1;
    struct rb_state *s = rb_state(b);
    it->have = 0;
    for (;;) {
        uint32_t id;
        if (it->pos <= s->reader_pos) {
            if (it->pos < s->reader_pos || it->off < s->read_off) {
                it->overtaken |= it->pos != 0 && s->overrun > it->seen_overrun;
                it->pos = s->reader_pos;
                it->off = s->read_off;
                it->ts = b->read_ts;
            }
            id = s->reader_id;
        } else if (rb_used(s) == 0) {
            return 0; /* behind the last page: wait for the next one */
        } else {
            if (it->pos < s->head) {
                it->overtaken |= s->overrun > it->seen_overrun;
                it->pos = s->head;
                it->off = 0;
            }
            if (it->pos > s->tail)
                return 0;
            id = b->ring[it->pos % b->nr];
        }
        const struct rb_page *page = rb_page_of(b, id);
        if (it->off == 0)
            it->ts = page->time_stamp;
        it->next.pos = it->pos;
        if (rb_decode(page, it->off, rb_page_end(b, id), it->ts, &it->next)) {
            it->lost = it->off ? 0 : b->meta[id].lost;
            it->have = 1;
            it->changes = b->changes;
            return 1;
        }
        if (it->pos == s->tail)
            return 0;
        it->pos++; /* a page that the tail has left never grows again */
        it->off = 0;
    }
}

static inline void rb_iter_advance(const rb_cpu *b, rb_iter *it)
{
    it->off = it->next.end;
    it->ts = it->next.ts;
    it->have = 0;
    it->overtaken = 0;
    it->seen_overrun = rb_overrun(b);
}

/* The rest of the walk's page, as a page of subbuf_size bytes at `out`: 1; 0: nothing is left. The walk
 * continues behind it. As in rb_read_page(), the number of records missing before the page is behind its
 * records; for records overwritten during the walk the page has only the flag. */
static inline int rb_iter_page(const rb_cpu *b, rb_iter *it, uint8_t *out)
{
    if (!rb_iter_peek(b, it))
        return 0;
    const struct rb_state *s = rb_state(b);
    const struct rb_page *page =
        rb_page_of(b, it->pos == s->reader_pos ? s->reader_id : b->ring[it->pos % b->nr]);
    struct rb_page *to = (struct rb_page *)out;
    uint64_t pos = it->pos, lost = it->lost;
    uint32_t start = it->off, length = 0;
    int missing = lost || it->overtaken, counted = lost && !it->overtaken;
    size_t room = counted ? b->payload - sizeof lost : b->payload;
    to->time_stamp = it->ts;
    do { /* one record that fills the page alone goes without the number */
        length = it->next.end - start;
        rb_iter_advance(b, it);
    } while (rb_iter_peek(b, it) && it->pos == pos && it->next.end - start <= room);
    memcpy(to->data, page->data + start, length);
    rb_seal_page(b, to, length, missing, counted ? lost : 0);
    return 1;
}

/* rb_iter_peek() for a consuming reader: `next` is the first unread record on the reader page. */
static inline int rb_consume_peek(rb_cpu *b, rb_iter *it)
{
    if (it->identity != b->identity)
        rb_iter_start(b, it);
    if (it->have && it->changes == b->changes)
        return 1;
    it->have = 0;
    if (!rb_load_reader(b))
        return 0;
    struct rb_state *s = rb_state(b);
    it->next.pos = s->reader_pos;
    const struct rb_page *page = rb_page_of(b, s->reader_id);
    if (!rb_decode(page, s->read_off, rb_page_end(b, s->reader_id), b->read_ts, &it->next))
        return 0;
    it->have = 1;
    it->changes = b->changes;
    return 1;
}

/* ---- resizing ---- */

/* Fill the empty ring `to` (same sub-buffer size) with the newest pages of `from`; positions stay. Records
that
 * do not fit count as overrun, which readers see. */
static inline void rb_copy(rb_cpu *to, const rb_cpu *from)
{
    const struct rb_state *f = rb_state(from);
    struct rb_state *s = rb_state(to);
    uint64_t used = rb_used(f), keep = used < to->nr ? used : to->nr;
    *s = *f;
    for (; s->head + keep <= f->tail; s->head++) {
        s->overrun += from->meta[from->ring[s->head % from->nr]].entries;
        s->carried += from->meta[from->ring[s->head % from->nr]].lost;
    }
    s->reader_id = to->nr;
    memcpy(rb_page_of(to, to->nr), rb_page_of(from, f->reader_id), to->subbuf_size);
    to->meta[to->nr] = from->meta[f->reader_id];
    for (uint64_t pos = s->head; pos <= s->tail; pos++) {
        uint32_t id = to->ring[pos % to->nr], old = from->ring[pos % from->nr];
        memcpy(rb_page_of(to, id), rb_page_of(from, old), to->subbuf_size);
        to->meta[id] = from->meta[old];
    }
    rb_find_tail(to);
    to->last_ts = from->last_ts;
    to->read_ts = from->read_ts;
    to->read_entries = from->read_entries;
    to->appends = from->appends;
    to->changes = from->changes + 1;
    to->identity = from->identity;
}

#endif
