/*
 * Maps of eBPF programs, in the memory of the process that runs them: hash, LRU hash, array, their per-cpu
 * forms, perf event array, ring buffer. Flags, limits and errors are those of
 * kernel/bpf/{syscall,hashtab,arraymap,ringbuf}.c; other kinds and flags are -EINVAL.
 *
 * Everything is called with bp_lock() held, by any thread: programs for a batch of records, bpf(2) for one
 * call. Memory that the tool has mapped (BPF_F_MMAPABLE, rings) is shared without the lock, as with a kernel.
 * errno may change.
 */
#ifndef UTRACEFS_BPF_MAPS_H
#define UTRACEFS_BPF_MAPS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <linux/bpf.h>

/* Bytes of all maps together; memory is used when it is touched. */
#define BP_MAP_MEMORY (4ull << 30)

/* Fair: a thread that waits gets the lock before the holder gets it again. */
void bp_lock(void);
void bp_unlock(void);

/* Copies of per-cpu values: the kernel's possible cpus, by which libbpf and libbcc size their buffers. */
unsigned bp_cpus(void);

struct bp_slot {
	uint32_t hash; /* the low bits: BP_LIVE, BP_USED */
	uint32_t next; /* in the bucket, or in the list of free slots; index + 1, or 0 */
};

struct bp_map {
	uint32_t type, key_size, value_size, max_entries, flags, id, references;
	uint8_t kind; /* maps.c */
	uint8_t is_frozen;
	char name[BPF_OBJ_NAME_LEN];
	int fd; /* -1, or a memfd of the values (BPF_F_MMAPABLE) */
	/* Entries: the key (only of hashes) and the value's copies, each of a multiple of 8 bytes. */
	uint8_t *entries;
	uint32_t key_room, value_room, copies;
	uint64_t entry_size;
	uint32_t top, used; /* entries from top on were never in use */
	size_t bytes;
	/* Hashes only. */
	struct bp_slot *slots;
	uint32_t *buckets, mask;
	uint64_t seed;
	uint32_t free;	/* the first free slot + 1 */
	uint32_t first; /* no slot below is in use */
	uint32_t hand;	/* the slot that LRU looks at next */
	uint32_t last;	/* the slot + 1 that was found last, or 0 */
	/* Perf event array: a ring for each index. Ring buffer: its ring. */
	struct bp_ring **rings;
	uint32_t nr_rings;
};

/* attr: the members of BPF_MAP_CREATE. One reference. 0 or -EINVAL, -E2BIG, -ENOMEM; *why then names what is
 * not supported, or is NULL. */
int bp_map_new(struct bp_map **map, const union bpf_attr *attr, const char **why);
void bp_map_put(struct bp_map *map);

/* For bpf(2), with its errors; values have bp_map_value_size() bytes: per-cpu maps have each cpu's copy,
 * rounded up to 8. For a perf event array bp_map_set_ring() stands in for writing and erasing. */
size_t bp_map_value_size(const struct bp_map *map);
int bp_map_read(struct bp_map *map, const void *key, void *value, uint64_t flags);
int bp_map_write(struct bp_map *map, const void *key, const void *value, uint64_t flags);
int bp_map_erase(struct bp_map *map, const void *key);
/* The key after `key`, the first for NULL or a key that is not there; -ENOENT after the last. */
int bp_map_next(struct bp_map *map, const void *key, void *next);
int bp_map_freeze(struct bp_map *map);
void bp_map_info(const struct bp_map *map, struct bpf_map_info *info);

/* For programs: the copy of cpu `cpu`, or NULL. Valid as long as the map; after a deletion it may become
 * another key's. New elements are 0 for other cpus. */
void *bp_map_lookup(struct bp_map *map, const void *key, uint32_t cpu);
int bp_map_update(struct bp_map *map, const void *key, const void *value, uint64_t flags, uint32_t cpu);
int bp_map_delete(struct bp_map *map, const void *key);
/* The entry `i` below `top`, or NULL if it is not in use: its key, the value key_room bytes behind it. */
uint8_t *bp_map_entry(const struct bp_map *map, uint32_t i);
/* Memory that a run may access. */
struct bp_part {
	uint64_t start, size;
	int is_read_only;
};
/* The part of an entry that contains this address: a key, or one cpu's value. 0, or -EFAULT: in none. */
int bp_map_part(const struct bp_map *map, uint64_t address, struct bp_part *part);

/* ---- rings: a perf event's (PERF_COUNT_SW_BPF_OUTPUT) or a ring buffer's */

struct bp_ring {
	int memory; /* a memfd: the pages as the tool maps them, the data once; -1 before bp_ring_map() */
	int bell;   /* an eventfd, written by bp_ring_bells(); owned by the ring */
	uint8_t *pages, *data;
	size_t mapped, data_size;
	uint64_t lost;	     /* records without room that no PERF_RECORD_LOST in the ring has yet */
	uint64_t total_lost; /* since the beginning */
	int is_enabled;	     /* PERF_EVENT_IOC_ENABLE; without it records are dropped, as by the kernel */
	int is_due;
	struct bp_ring *next_due;
	uint32_t references;
};

/* A perf event's ring, with one reference. -ENOMEM, -EMFILE. */
int bp_ring_new(struct bp_ring **ring);
void bp_ring_put(struct bp_ring *ring);
/* mmap(2) of a perf event: makes the ring of 1 + 2^n pages (else -EINVAL, -EBUSY the second time); the caller
 * then maps ring->memory. */
int bp_ring_map(struct bp_ring *ring, size_t size);
/* The ring of an index of a perf event array; NULL removes it. -E2BIG. The map has its own reference. */
int bp_map_set_ring(struct bp_map *map, uint32_t index, struct bp_ring *ring);
/* The rings of a new map: places for them, or of a ring buffer the one. */
int bp_rings_new(struct bp_map *map);
/* mmap(2) of a ring buffer map, of its ring's memory: 0, -EPERM, -EINVAL. */
int bp_ringbuf_may_map(const struct bp_map *map, size_t size, int prot, off_t offset);
/* After each batch: rings the bells of all rings that got records, and writes pending losses. */
int bp_ring_bells(void);

/* For programs. -ENOENT: no ring, or it is not mapped or not enabled; -ENOSPC, counted; -E2BIG. With
 * BPF_F_CURRENT_CPU the records of all cpus are in one ring, the first, and so keep their order. */
int bp_perf_output(struct bp_map *map, uint64_t flags, const void *data, uint64_t size);
/* A reservation of `size` bytes, or NULL; to be submitted or discarded. */
void *bp_ringbuf_reserve(struct bp_map *map, uint64_t size);
void bp_ringbuf_commit(struct bp_map *map, void *sample, uint64_t flags, int is_discarded);
uint64_t bp_ringbuf_query(const struct bp_map *map, uint64_t flags);

#endif
