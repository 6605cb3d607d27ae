/* Which of two rings of each cpu is the live one, and which is the spare that holds a snapshot.
 *
 * With a spare, a cpu has two rings (ring_buffer.h), in the files cpuN and cpuN.b. A snapshot exchanges their
 * roles: the records become the snapshot, and the former snapshot's ring is written to. It is a swap and not
 * a copy, as in update_max_tr() of kernel/trace/trace.c, and a trigger may make it in the middle of a record.
 *
 *     header | state 0 | state 1                        file `spare` beside the rings, mode 0600
 *
 * A state says for all cpus at once which file is the live one. As in ring_buffer.h it exists twice: the
 * invalid copy is filled in, then ONE store (`active`) makes it valid. So a SIGKILL leaves a swap done for
 * all cpus or for none, and the same is true of making the spare (its rings are complete before the store)
 * and of removing it (they are removed after it).
 *
 * `key` identifies the record and trigger that made the last swap, as their owner counts them; zeros for a
 * write to the tree. The same store makes it valid. A record that was being dispatched when the daemon was
 * killed is dispatched again, and a trigger that finds its key here has already swapped (spare_has_key):
 * swapping again would undo it. Only one record is being dispatched at a time, so the last key is enough.
 *
 * If the file is missing or damaged, the ring of a cpu with the later record is taken for the live one
 * (RingBuffer.adopt). A ring's origin (rb_note_origin) stays with the ring.
 */
#ifndef UTRACEFS_SPARE_H
#define UTRACEFS_SPARE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "ring_buffer.h"

#define SPARE_MAGIC 0x5241505354525455ull /* "UTRTSPAR" as little-endian bytes */
#define SPARE_VERSION 1u
#define SPARE_KEY_WORDS 4

struct spare_state {
    uint32_t allocated;     /* there is a spare */
    uint32_t zero;
    uint64_t key[SPARE_KEY_WORDS];
    uint8_t live[];         /* for each cpu 0: cpuN is live; 1: cpuN.b is */
};

struct spare_header {
    uint64_t magic;
    uint32_t version;
    uint32_t nr_cpus;
    uint32_t active;        /* which of the two states is valid */
    uint32_t zero;
};

/* One process' handle. `header` NULL: there was never a spare, and cpuN is the live ring of each cpu. */
typedef struct spare_map {
    struct spare_header *header;
    size_t size;
} spare_map;

static inline size_t spare_state_size(uint32_t nr_cpus)
{
    return (sizeof(struct spare_state) + nr_cpus + 7) & ~(size_t)7;
}

static inline size_t spare_map_size(uint32_t nr_cpus)
{
    return sizeof(struct spare_header) + 2 * spare_state_size(nr_cpus);
}

static inline struct spare_state *spare_copy(const spare_map *m, uint32_t which)
{
    return (struct spare_state *)((uint8_t *)(m->header + 1) + which * spare_state_size(m->header->nr_cpus));
}

static inline struct spare_state *spare_now(const spare_map *m)
{
    return spare_copy(m, m->header->active & 1);
}

/* Begin a change: returns the copy to fill in. spare_flip makes it valid. */
static inline struct spare_state *spare_begin(const spare_map *m)
{
    struct spare_state *next = spare_copy(m, !(m->header->active & 1));
    memcpy(next, spare_now(m), spare_state_size(m->header->nr_cpus));
    return next;
}

static inline void spare_flip(const spare_map *m) { RB_COMMIT(m->header->active, !(m->header->active & 1)); }

static inline int spare_allocated(const spare_map *m) { return m->header && spare_now(m)->allocated; }

static inline int spare_live(const spare_map *m, uint32_t cpu)
{
    return m->header ? spare_now(m)->live[cpu] : 0;
}

static inline void spare_set_live(const spare_map *m, uint32_t cpu, int which)
{
    struct spare_state *next = spare_begin(m);
    next->live[cpu] = (uint8_t)which;
    spare_flip(m);
}

static inline void spare_unmap(spare_map *m)
{
    if (m->header)
        munmap(m->header, m->size);
    m->header = NULL;
}

/* A new map in zero-filled memory: anonymous for fd -1, else a fresh file of spare_map_size() bytes. No spare
 * yet. 0 or -errno. */
static inline int spare_create(spare_map *m, int fd, uint32_t nr_cpus)
{
    m->size = spare_map_size(nr_cpus);
    void *map = mmap(NULL, m->size, PROT_READ | PROT_WRITE,
                     fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    m->header = map;
    m->header->version = SPARE_VERSION;
    m->header->nr_cpus = nr_cpus;
    RB_COMMIT(m->header->magic, SPARE_MAGIC);
    return 0;
}

/* Take over the file of an ended process. 0, -errno, or -EINVAL for an invalid map. */
static inline int spare_adopt(spare_map *m, int fd, uint32_t nr_cpus)
{
    struct stat st;
    m->header = NULL;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_size != (off_t)spare_map_size(nr_cpus))
        return -EINVAL;
    m->size = (size_t)st.st_size;
    void *map = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    m->header = map;
    if (m->header->magic != SPARE_MAGIC || m->header->version != SPARE_VERSION ||
        m->header->nr_cpus != nr_cpus || m->header->active > 1 || spare_now(m)->allocated > 1)
        goto nonsense;
    for (uint32_t cpu = 0; cpu < nr_cpus; cpu++)
        if (spare_now(m)->live[cpu] > 1)
            goto nonsense;
    return 0;
nonsense:
    spare_unmap(m);
    return -EINVAL;
}

static inline void spare_set_allocated(const spare_map *m, int allocated)
{
    spare_begin(m)->allocated = allocated;
    spare_flip(m);
}

/* Whether the last swap had this `key`. */
static inline int spare_has_key(const spare_map *m, const uint64_t *key)
{
    return m->header && memcmp(spare_now(m)->key, key, sizeof spare_now(m)->key) == 0;
}

/* Swap the rings of the cpus first..end-1 of `live` and `other`, handles included. */
static inline void spare_swap(const spare_map *m, rb_cpu *live, rb_cpu *other, int first, int end,
                              const uint64_t *key)
{
    struct spare_state *next = spare_begin(m);
    memcpy(next->key, key, sizeof next->key);
    for (int cpu = first; cpu < end; cpu++)
        next->live[cpu] ^= 1;
    spare_flip(m);
    for (int cpu = first; cpu < end; cpu++) {
        rb_cpu handle = live[cpu];
        live[cpu] = other[cpu];
        other[cpu] = handle;
    }
}

#endif
