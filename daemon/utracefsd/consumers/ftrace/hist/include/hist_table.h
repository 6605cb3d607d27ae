/* The table of a histogram, in memory that outlives the daemon.
 *
 *     header | redo image | map                        | elements
 *            | 1 element  | 2 * size words of 64 bits  | size of them
 *
 * An element is a key of key_size bytes (a multiple of 8) and nr_words words of 64 bits: sums, and other
 * values that the histogram keeps for each key. The map finds it by its key: open addressing, one step at a
 * time, never more than half full. A word of the map is the upper half of the key's hash and, in its lower
 * half, the element's number + 1; 0: free. Elements are allocated in order and freed only all together
 * (ht_clear); a key that finds the table full is dropped and counted.
 *
 * The header and the image are allocated at the beginning, the rest at the first record, all at once. A table
 * without entries is never read behind its image.
 *
 * The seed of the hash is random: programs choose the keys, and must not be able to choose colliding ones.
 *
 * One record changes several words: hits, sums, perhaps the map and a new key. The daemon may be killed
 * between any two stores, and the next daemon must find the record counted either completely or not; and it
 * gets that record again (intake/include/journal.h), which must not count twice. So the new values are
 * written beside the table first, as absolute values:
 *
 *     1. valid = 0
 *     2. the record: the key of the trigger that counts it (several may share a table), and the
 *        record's number among those with triggers (event/include/trigger_cells.h)
 *     3. the new values: hits, drops, entries, the element's number, its words, the map's word; its key if it
 *        is new
 *     4. valid = 1
 *     5. the same values, at their places in the table
 *
 * and a daemon that finds valid = 1 repeats step 5, which changes nothing if it was done (ht_redo). Then it
 * compares the record with the one that was being dispatched: if it is the same, it is counted. If valid is
 * 0, that record has not changed the table, and the record before it was counted completely before step 1.
 *
 * A record may take a snapshot (the action `snapshot()`): then `taken` changes with its count. The snapshot
 * itself is taken after that, and _triggers.pyx finds out whether it was.
 *
 * Clearing is `clearing` = 1, zeroing, `clearing` = 0; a daemon that finds it 1 clears again.
 *
 * Memory order: as in journal.h; it is enough that the compiler keeps the order.
 */
#ifndef UTRACEFS_HIST_TABLE_H
#define UTRACEFS_HIST_TABLE_H

#include <stdint.h>
#include <string.h>

#define HT_MAGIC 0x5453494854525455ull /* "UTRTHIST" as little-endian bytes */
#define HT_VERSION 2u
#define HT_HEADER_BYTES 768u
#define HT_MIN_BITS 7u
#define HT_MAX_BITS 17u
#define HT_MAX_KEY 504u    /* HIST_KEY_SIZE_MAX */
#define HT_MAX_WORDS 2048u /* of an element: 64 variables, and their strings of 256 bytes */

struct ht_redo {
    uint64_t valid;   /* 1: all of this is valid */
    uint64_t who;     /* the trigger's key; 0: unused */
    uint64_t serial;  /* the record's number */
    uint64_t hits;    /* new values of the header's three counts */
    uint64_t drops;
    uint64_t entries;
    uint64_t element; /* number + 1; 0: unchanged */
    uint64_t slot;    /* the word of the map to change */
    uint64_t map_word; /* its new value; 0: unchanged, the key is in the map already */
    uint64_t takes;    /* 1: `taken` is set for this record, with the element's key */
    uint64_t value;    /* its value */
};

/* The trigger, key and value of the last snapshot. */
struct ht_taken {
    uint64_t valid;  /* 0: there was none */
    uint64_t who;    /* as in ht_redo */
    uint64_t serial;
    uint64_t value;  /* that was larger, or different */
    unsigned char key[HT_MAX_KEY];
};

struct ht_header {
    uint64_t magic;
    uint32_t version;
    uint32_t bits;     /* size is 1 << bits */
    uint32_t key_size;
    uint32_t nr_words;
    uint64_t seed;
    uint64_t clearing;
    uint64_t hits;
    uint64_t drops;
    uint64_t entries;
    struct ht_redo redo;
    struct ht_taken taken;
    unsigned char zero[HT_HEADER_BYTES - 64 - sizeof(struct ht_redo) - sizeof(struct ht_taken)];
};

_Static_assert(sizeof(struct ht_header) == HT_HEADER_BYTES, "the image follows");

/* One process' handle: the mapping, and values derived from its header. */
struct ht {
    struct ht_header *header;
    uint64_t *image;      /* words, then the key: in the order in which they are needed most */
    uint64_t *map;
    unsigned char *elements;
    size_t element_bytes;
    uint64_t mask;        /* of numbers of map words */
};

struct ht_place {
    uint64_t element; /* number + 1 of the key's element; 0: it has none */
    uint64_t slot;    /* the key's map word, present or future */
    uint64_t map_word; /* its value for the key */
};

#define HT_STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELAXED)
#define HT_ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)

/* The part that is allocated before the first record. */
static inline size_t ht_first_bytes(uint32_t key_size, uint32_t nr_words)
{
    return HT_HEADER_BYTES + key_size + (size_t)nr_words * 8;
}

static inline size_t ht_bytes(uint32_t bits, uint32_t key_size, uint32_t nr_words)
{
    size_t element = key_size + (size_t)nr_words * 8;
    return ht_first_bytes(key_size, nr_words) + ((size_t)16 << bits) + (element << bits);
}

static inline int ht_is_possible(uint32_t bits, uint32_t key_size, uint32_t nr_words)
{
    return bits >= HT_MIN_BITS && bits <= HT_MAX_BITS && key_size && key_size <= HT_MAX_KEY
        && key_size % 8 == 0 && nr_words && nr_words <= HT_MAX_WORDS;
}

/* Derive the handle from a valid header. */
static inline void ht_attach(struct ht *t, void *memory)
{
    struct ht_header *header = memory;
    unsigned char *p = memory;
    t->header = header;
    t->element_bytes = header->key_size + (size_t)header->nr_words * 8;
    t->image = (uint64_t *)(p + HT_HEADER_BYTES);
    t->map = (uint64_t *)(p + HT_HEADER_BYTES + t->element_bytes);
    t->elements = (unsigned char *)t->map + ((size_t)16 << header->bits);
    t->mask = ((uint64_t)2 << header->bits) - 1;
}

/* Make an empty table in zeroed memory of ht_bytes(). The magic comes last: without it there is no table. */
static inline void ht_make(struct ht *t, void *memory, uint32_t bits, uint32_t key_size, uint32_t nr_words,
                           uint64_t seed)
{
    struct ht_header *header = memory;
    header->version = HT_VERSION;
    header->bits = bits;
    header->key_size = key_size;
    header->nr_words = nr_words;
    header->seed = seed;
    HT_ORDER();
    HT_STORE(header->magic, HT_MAGIC);
    ht_attach(t, memory);
}

static inline uint64_t *ht_words(const struct ht *t, uint64_t element)
{
    return (uint64_t *)(t->elements + (element - 1) * t->element_bytes);
}

static inline unsigned char *ht_key(const struct ht *t, uint64_t element)
{
    return t->elements + (element - 1) * t->element_bytes + (size_t)t->header->nr_words * 8;
}

static inline uint64_t ht_mix(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t ht_hash(const struct ht *t, const uint64_t *key)
{
    uint64_t hash = t->header->seed;
    for (uint32_t i = 0; i < t->header->key_size / 8; i++)
        hash = ht_mix(hash ^ key[i], 0x9e3779b97f4a7c15ull ^ t->header->seed) + i;
    return ht_mix(hash, 0xd6e8feb86659fd93ull);
}

/* Find a key (8-byte aligned), or its future place. */
static inline void ht_find(const struct ht *t, const uint64_t *key, struct ht_place *place)
{
    uint64_t hash = ht_hash(t, key), slot = hash & t->mask, high = hash & ~(uint64_t)0xffffffff;
    while (t->header->entries) {
        uint64_t word = t->map[slot];
        if (!word)
            break;
        if ((word & ~(uint64_t)0xffffffff) == high) {
            uint64_t element = word & 0xffffffff;
            if (!memcmp(ht_key(t, element), key, t->header->key_size)) {
                place->element = element;
                place->slot = slot;
                place->map_word = word;
                return;
            }
        }
        slot = (slot + 1) & t->mask;
    }
    place->element = 0;
    place->slot = slot;
    place->map_word = high;
}

/* Step 5; also repeated by the next daemon. */
static inline void ht_apply(struct ht *t)
{
    struct ht_header *header = t->header;
    struct ht_redo *redo = &header->redo;
    if (redo->element) {
        uint64_t *words = ht_words(t, redo->element);
        for (uint32_t i = 0; i < header->nr_words; i++)
            words[i] = t->image[i];
        if (redo->map_word) {
            memcpy(ht_key(t, redo->element), t->image + header->nr_words, header->key_size);
            t->map[redo->slot] = redo->map_word;
        }
        if (redo->takes) {
            memcpy(header->taken.key, ht_key(t, redo->element), header->key_size);
            header->taken.who = redo->who;
            header->taken.serial = redo->serial;
            header->taken.value = redo->value;
            header->taken.valid = 1;
        }
    }
    header->hits = redo->hits;
    header->drops = redo->drops;
    header->entries = redo->entries;
    HT_ORDER();
}

/* Steps 1 and 2. The caller then writes all words of `image`, and the key if there is no element yet. */
static inline void ht_begin(struct ht *t, uint64_t who, uint64_t serial)
{
    HT_ORDER();
    HT_STORE(t->header->redo.valid, 0);
    HT_ORDER();
    HT_STORE(t->header->redo.who, who);
    HT_STORE(t->header->redo.serial, serial);
    HT_STORE(t->header->redo.takes, 0);
}

/* Between ht_begin() and ht_count(): with `value` the record takes a snapshot. */
static inline void ht_take(struct ht *t, uint64_t value)
{
    HT_STORE(t->header->redo.value, value);
    HT_STORE(t->header->redo.takes, 1);
}

/* Steps 3 to 5, for the element whose words are in the image; map_word 0: its key is in the map already. */
static inline void ht_store(struct ht *t, uint64_t hits, uint64_t drops, uint64_t element, uint64_t map_word)
{
    struct ht_redo *redo = &t->header->redo;
    redo->hits = t->header->hits + hits;
    redo->drops = t->header->drops + drops;
    redo->entries = t->header->entries + (map_word != 0);
    redo->element = element;
    redo->map_word = map_word;
    HT_ORDER();
    HT_STORE(redo->valid, 1);
    HT_ORDER();
    ht_apply(t);
}

/* The same for a key that was looked up; there is a free element if it has none. */
static inline void ht_count(struct ht *t, const struct ht_place *place, const uint64_t *key)
{
    t->header->redo.slot = place->slot;
    if (place->element) {
        ht_store(t, 1, 0, place->element, 0);
        return;
    }
    uint64_t element = t->header->entries + 1;
    memcpy(t->image + t->header->nr_words, key, t->header->key_size);
    ht_store(t, 1, 0, element, place->map_word | element);
}

/* Change only an element: its variable was read once. */
static inline void ht_change(struct ht *t, uint64_t element) { ht_store(t, 0, 0, element, 0); }

/* The same for a key that finds the table full, from step 1 on. */
static inline void ht_drop(struct ht *t, uint64_t who, uint64_t serial)
{
    ht_begin(t, who, serial);
    ht_store(t, 0, 1, 0, 0);
}

static inline int ht_is_full(const struct ht *t) { return t->header->entries >> t->header->bits != 0; }

static inline void ht_clear(struct ht *t)
{
    struct ht_header *header = t->header;
    HT_ORDER();
    HT_STORE(header->clearing, 1);
    HT_ORDER();
    HT_STORE(header->redo.valid, 0);
    HT_ORDER();
    if (header->entries)
        memset(t->map, 0, (size_t)16 << header->bits);
    HT_ORDER();
    header->hits = header->drops = header->entries = 0;
    HT_ORDER();
    HT_STORE(header->clearing, 0);
    HT_ORDER();
}

/* Whether all of a previous daemon's table is allocated; else the memory behind the image must be zeroed
 * before ht_adopt. */
static inline int ht_is_used(const void *memory)
{
    const struct ht_header *header = memory;
    return header->entries || (header->redo.valid && header->redo.element);
}

/* The next daemon's first step, in a mapping of `bytes`. 0: not a table of this shape, or a damaged one. */
static inline int ht_adopt(struct ht *t, void *memory, size_t bytes, uint32_t bits, uint32_t key_size,
                           uint32_t nr_words)
{
    struct ht_header *header = memory;
    uint64_t size = (uint64_t)1 << bits;
    if (bytes < HT_HEADER_BYTES || header->magic != HT_MAGIC || header->version != HT_VERSION)
        return 0;
    if (header->bits != bits || header->key_size != key_size || header->nr_words != nr_words
        || bytes != ht_bytes(bits, key_size, nr_words))
        return 0;
    ht_attach(t, memory);
    if (header->clearing)
        ht_clear(t);
    if (header->redo.valid) {
        struct ht_redo *redo = &header->redo;
        if (redo->element > size || redo->slot > t->mask || redo->entries > size)
            return 0;
        ht_apply(t);
    }
    if (header->entries > size)
        return 0;
    if (!header->entries)
        return 1;
    uint64_t used = 0;
    for (uint64_t i = 0; i <= t->mask; i++) {
        uint64_t element = t->map[i] & 0xffffffff;
        if (element > header->entries || (t->map[i] && !element))
            return 0;
        used += t->map[i] != 0;
    }
    return used == header->entries;
}

/* Whether the last snapshot was, or is to be, taken for this record. */
static inline int ht_takes(const struct ht *t, uint64_t who, uint64_t serial)
{
    const struct ht_taken *taken = &t->header->taken;
    return taken->valid && taken->who == who && taken->serial == serial;
}

/* Whether the table has counted, or dropped, this record, which then must not be counted again. */
static inline int ht_has_taken(const struct ht *t, uint64_t who, uint64_t serial)
{
    const struct ht_redo *redo = &t->header->redo;
    return who && redo->valid && redo->who == who && redo->serial == serial;
}

#endif
