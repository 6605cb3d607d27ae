/* The mapping of the ring of ring_buffer.h: a new one, one taken over from a killed daemon, a larger one. */
#ifndef UTRACEFS_RING_MAPPING_H
#define UTRACEFS_RING_MAPPING_H

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "ring_reading.h"

/* ---- making ---- */

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

/* ---- adopting ---- */

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
    /* From here on everything in the file is untrusted: a killed daemon may have been anywhere, and the user
         * may have changed it. Sizes first, since all places are computed from them. */
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

    /* Killed in the middle of a clear: finish it, then there are no records to check. */
    if (s->clearing) {
        rb_clear(b);
        return 0;
    }
    *why = "invalid records";
    /* Each page is walked once: later reads rely on lengths and times that were checked here. */
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

/* ---- resizing ---- */

/* Fill the empty ring `to` (same sub-buffer size) with the newest pages of `from`; positions stay. Records
 * that do not fit count as overrun. */
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
