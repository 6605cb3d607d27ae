/* Reading the ring of ring_buffer.h: its numbers, readers that consume, readers that only look; clearing. */
#ifndef UTRACEFS_RING_READING_H
#define UTRACEFS_RING_READING_H

#include "ring_buffer.h"

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

/* ---- numbers ---- */

static inline int rb_overwrite(const rb_cpu *b) { return b->control->overwrite; }
static inline void rb_set_overwrite(const rb_cpu *b, int on) { b->control->overwrite = on; }
static inline uint32_t rb_cpu_number(const rb_cpu *b) { return b->control->cpu; }
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

/* ---- clearing ---- */

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

/* Whether the next read gets a page that the writer has left. */
static inline int rb_has_full_page(const rb_cpu *b)
{
    const struct rb_state *s = rb_state(b);
    return rb_used(s) && (rb_used(s) > 1 || s->read_off < rb_page_end(b, s->reader_id));
}

/* ---- walking ---- */

static inline void rb_iter_start(const rb_cpu *b, rb_iter *it)
{
    memset(it, 0, sizeof *it);
    it->seen_overrun = rb_state(b)->overrun;
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
    it->seen_overrun = rb_state(b)->overrun;
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

#endif
