/* Hashes and arrays: see maps.h; rings.c has the other kinds. */
#include "maps.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <stdlib.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define BP_LIVE 1u
#define BP_USED 2u /* since the LRU's hand was here last */
#define BP_FLAGS (BP_LIVE | BP_USED)
/* The kernel's KMALLOC_MAX_SIZE: a key and a value. */
#define BP_MAX_ELEMENT (4u << 20)
#define BP_MOST_RINGS 65536u /* of a perf event array: one for each cpu */

static pthread_mutex_t entrance = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t memory; /* bytes of all maps */

void bp_lock(void)
{
	pthread_mutex_lock(&entrance);
	pthread_mutex_lock(&lock);
	pthread_mutex_unlock(&entrance);
}

void bp_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

/* As libbpf counts: up to the last of "0-3,8-11". */
unsigned bp_cpus(void)
{
	static unsigned cpus;
	unsigned last;
	FILE *file;

	if (cpus)
		return cpus;
	cpus = (unsigned)sysconf(_SC_NPROCESSORS_CONF);
	file = fopen("/sys/devices/system/cpu/possible", "re");
	while (file && fscanf(file, "%u%*1[,-]", &last) == 1)
		cpus = last + 1;
	if (file)
		fclose(file);
	return cpus;
}

enum { IS_HASH = 1, IS_ARRAY = 2, IS_LRU = 4, IS_PER_CPU = 8, IS_RINGS = 16 };
/* kind 0: there are none, and why. */
static const struct {
	uint8_t kind;
	const char *why;
} types[] = {
	[BPF_MAP_TYPE_HASH] = {IS_HASH},
	[BPF_MAP_TYPE_ARRAY] = {IS_ARRAY},
	[BPF_MAP_TYPE_PROG_ARRAY] = {.why = "there are no tail calls, so there are no maps of programs"},
	[BPF_MAP_TYPE_PERF_EVENT_ARRAY] = {IS_RINGS},
	[BPF_MAP_TYPE_PERCPU_HASH] = {IS_HASH | IS_PER_CPU},
	[BPF_MAP_TYPE_PERCPU_ARRAY] = {IS_ARRAY | IS_PER_CPU},
	[BPF_MAP_TYPE_STACK_TRACE] = {.why = "stacks are not part of a record, so there are no maps of stacks"},
	[BPF_MAP_TYPE_CGROUP_ARRAY] = {.why = "the writer's cgroup is not part of a record, so there are no maps of "
					      "cgroups"},
	[BPF_MAP_TYPE_LRU_HASH] = {IS_HASH | IS_LRU},
	[BPF_MAP_TYPE_LRU_PERCPU_HASH] = {IS_HASH | IS_LRU | IS_PER_CPU},
	[BPF_MAP_TYPE_RINGBUF] = {IS_RINGS},
};

/* Whether the map is of one of these kinds. */
static int is(const struct bp_map *map, int which)
{
	return map->kind & which;
}

/* ---- creation */

static int check_sizes(const struct bp_map *map)
{
	uint32_t key = map->key_size, value = map->value_size, n = map->max_entries;

	if (map->type == BPF_MAP_TYPE_RINGBUF)
		return key || value || !n || n & (n - 1) || n % (uint32_t)sysconf(_SC_PAGESIZE) ? -EINVAL : 0;
	if (!n || !key || !value || (!is(map, IS_HASH) && key != 4) || (is(map, IS_RINGS) && value != 4))
		return -EINVAL;
	if (is(map, IS_RINGS)) /* they are looked through */
		return n > BP_MOST_RINGS ? -E2BIG : 0;
	return value > INT32_MAX - 8 || (is(map, IS_HASH) && (uint64_t)key + value >= BP_MAX_ELEMENT) ? -E2BIG : 0;
}

/* The entries, and behind those of a hash its slots and buckets. */
static int make_elements(struct bp_map *map)
{
	void *at;

	map->copies = is(map, IS_PER_CPU) ? bp_cpus() : 1;
	map->key_room = is(map, IS_HASH) ? (map->key_size + 7) & ~7u : 0;
	map->value_room = (map->value_size + 7) & ~7u;
	map->entry_size = map->key_room + (uint64_t)map->value_room * map->copies;
	map->mask = 1;
	while (map->mask < map->max_entries && map->mask < 1u << 29)
		map->mask <<= 1;
	map->mask = 2 * map->mask - 1; /* half of the buckets or more are empty */
	if (map->entry_size > BP_MAP_MEMORY / map->max_entries)
		return -ENOMEM;
	map->bytes = map->entry_size * map->max_entries;
	if (is(map, IS_HASH))
		map->bytes += map->max_entries * sizeof(*map->slots) + ((size_t)map->mask + 1) * sizeof(*map->buckets);
	if (map->bytes > BP_MAP_MEMORY - memory)
		return -ENOMEM;
	if (map->flags & BPF_F_MMAPABLE) {
		map->fd = memfd_create("bpf-map", MFD_CLOEXEC);
		if (map->fd < 0 || ftruncate(map->fd, (off_t)map->bytes))
			return -ENOMEM;
	}
	at = mmap(NULL, map->bytes, PROT_READ | PROT_WRITE,
		  map->fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, map->fd, 0);
	if (at == MAP_FAILED)
		return -ENOMEM;
	memory += map->bytes;
	map->entries = at;
	map->top = is(map, IS_ARRAY) ? map->max_entries : 0;
	/* The keys are often a stranger's words: paths of requests. */
	if (getrandom(&map->seed, sizeof(map->seed), GRND_NONBLOCK) < 0)
		map->seed = (uintptr_t)map->entries;
	if (is(map, IS_HASH)) {
		map->slots = (struct bp_slot *)(map->entries + map->entry_size * map->max_entries);
		map->buckets = (uint32_t *)(map->slots + map->max_entries);
	}
	return 0;
}

int bp_map_new(struct bp_map **made, const union bpf_attr *attr, const char **why)
{
	static const uint32_t flags = BPF_F_NO_PREALLOC | BPF_F_NO_COMMON_LRU | BPF_F_NUMA_NODE | BPF_F_RDONLY |
				      BPF_F_WRONLY | BPF_F_ZERO_SEED | BPF_F_RDONLY_PROG;
	static uint32_t ids;
	struct bp_map *map = calloc(1, sizeof(*map));
	int error;

	*why = NULL;
	if (!map)
		return -ENOMEM;
	*map = (struct bp_map){attr->map_type, attr->key_size, attr->value_size, attr->max_entries,
			       attr->map_flags, .id = ++ids, .references = 1, .fd = -1};
	memcpy(map->name, attr->map_name, sizeof(map->name) - 1);
	if (map->type < sizeof(types) / sizeof(*types)) {
		map->kind = types[map->type].kind;
		*why = types[map->type].why;
	}
	if (!map->kind && !*why)
		*why = "there are hash, LRU hash, array and per-cpu maps, perf event arrays and ring buffers";
	error = map->kind ? check_sizes(map) : -EINVAL;
	if (map->flags & ~(flags | (map->type == BPF_MAP_TYPE_ARRAY ? BPF_F_MMAPABLE : 0u)))
		error = -EINVAL;
	if (!error)
		error = is(map, IS_RINGS) ? bp_rings_new(map) : make_elements(map);
	if (error)
		bp_map_put(map);
	else
		*made = map;
	return error;
}

void bp_map_put(struct bp_map *map)
{
	if (--map->references)
		return;
	if (map->entries) {
		memory -= map->bytes;
		munmap(map->entries, map->bytes);
	}
	if (map->fd >= 0)
		close(map->fd);
	for (uint32_t i = 0; i < map->nr_rings; i++)
		if (map->rings[i])
			bp_ring_put(map->rings[i]);
	free(map->rings);
	free(map);
}

/* ---- elements */

static uint64_t mix(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)a * b;

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t word(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

/* Four lanes, because one multiplication waits for the one before it: a text of bpftrace has 1,024 bytes. */
static inline uint32_t hash_of(const struct bp_map *map, const uint8_t *key)
{
	static const uint64_t odd[4] = {0xa24baed4963ee407, 0x9fb21c651e98df25, 0xd1b54a32d192ed03,
					0x8cb92ba72f3d8dd7};
	uint64_t state = map->seed ^ map->key_size, tail = 0;
	size_t n = map->key_size, at = 0;

	if (n >= 128) {
		uint64_t lanes[4] = {state, state + odd[0], state + odd[1], state + odd[2]};

		for (; at + 64 <= n; at += 64)
			for (int i = 0; i < 4; i++)
				lanes[i] = mix(lanes[i] ^ word(key + at + 16 * i),
					       odd[i] ^ word(key + at + 16 * i + 8));
		state = mix(lanes[0] ^ lanes[1], odd[1] ^ lanes[2]) ^ mix(lanes[3], odd[3]);
	}
	for (; at + 8 <= n; at += 8)
		state = mix(state ^ word(key + at), odd[0]);
	if (at < n) {
		memcpy(&tail, key + at, n - at);
		state = mix(state ^ tail, odd[0]);
	}
	return (uint32_t)(state ^ state >> 32) & ~BP_FLAGS;
}

static uint32_t *bucket_of(const struct bp_map *map, uint32_t hash)
{
	return &map->buckets[hash >> 2 & map->mask];
}

static inline int is_same(const struct bp_map *map, const uint8_t *one, const uint8_t *other)
{
	size_t n = map->key_size, at = 0;

	/* Most keys are one number or two. */
	for (; n <= 32 && at + 8 <= n; at += 8)
		if (word(one + at) != word(other + at))
			return 0;
	return at == n || memcmp(one + at, other + at, n - at) == 0;
}

/* The slot + 1 with this key, or 0. Programs look an element up and then update it, and records repeat. */
static inline uint32_t find(struct bp_map *map, const void *key)
{
	uint32_t hash, i = map->last;

	if (i && is_same(map, map->entries + (i - 1) * map->entry_size, key))
		return i;
	hash = hash_of(map, key);
	for (i = *bucket_of(map, hash); i; i = map->slots[i - 1].next)
		if ((map->slots[i - 1].hash & ~BP_FLAGS) == hash &&
		    is_same(map, map->entries + (i - 1) * map->entry_size, key))
			break;
	map->last = i;
	return i;
}

static void release(struct bp_map *map, uint32_t i)
{
	uint32_t *at = bucket_of(map, map->slots[i].hash);

	while (*at != i + 1)
		at = &map->slots[*at - 1].next;
	*at = map->slots[i].next;
	map->slots[i] = (struct bp_slot){.next = map->free};
	map->free = i + 1;
	map->last = 0;
	map->used--;
	if (i == map->first)
		map->first++;
}

/* The second chance of a clock: the first element that was not used since the hand was there. */
static void evict(struct bp_map *map)
{
	while (map->slots[map->hand].hash & BP_USED) {
		map->slots[map->hand].hash &= ~BP_USED;
		map->hand = (map->hand + 1) % map->max_entries;
	}
	release(map, map->hand);
	map->hand = (map->hand + 1) % map->max_entries;
}

/* The values of the key, all cpus', or NULL. */
static inline uint8_t *look(struct bp_map *map, const void *key, int is_use)
{
	uint32_t i;

	if (is(map, IS_HASH)) {
		i = find(map, key) - 1;
		if (is(map, IS_LRU) && is_use && i < map->top)
			map->slots[i].hash |= BP_USED;
	} else {
		memcpy(&i, key, sizeof(i));
	}
	return i < map->top ? map->entries + i * map->entry_size + map->key_room : NULL;
}

/* The same; the key is inserted if it is missing. */
static int place(struct bp_map *map, const void *key, uint64_t flags, uint8_t **values)
{
	uint32_t hash, i, *at;

	if (flags > BPF_EXIST || !map->entries)
		return map->entries ? -EINVAL : -EOPNOTSUPP;
	*values = look(map, key, 1);
	if (*values)
		return flags == BPF_NOEXIST ? -EEXIST : 0;
	if (!is(map, IS_HASH) || (map->used == map->max_entries && !is(map, IS_LRU) && flags != BPF_EXIST))
		return -E2BIG;
	if (flags == BPF_EXIST)
		return -ENOENT;
	if (map->used == map->max_entries)
		evict(map);
	i = map->free ? map->free - 1 : map->top++;
	if (map->free)
		map->free = map->slots[i].next;
	*values = map->entries + i * map->entry_size + map->key_room;
	memmove(*values - map->key_room, key, map->key_size); /* it may be the key of the evicted element */
	if (map->copies > 1)
		memset(*values, 0, (size_t)map->value_room * map->copies);
	hash = hash_of(map, *values - map->key_room);
	at = bucket_of(map, hash);
	map->slots[i] = (struct bp_slot){.hash = hash | BP_LIVE, .next = *at};
	*at = i + 1;
	map->last = i + 1;
	if (!map->used++ || i < map->first)
		map->first = i;
	return 0;
}

/* A recording may be of a machine with more cpus. */
static uint64_t copy_of(const struct bp_map *map, uint32_t cpu)
{
	return map->copies == 1 ? 0 : (uint64_t)(cpu < map->copies ? cpu : cpu % map->copies) * map->value_room;
}

void *bp_map_lookup(struct bp_map *map, const void *key, uint32_t cpu)
{
	uint8_t *values = look(map, key, 1);

	return values ? values + copy_of(map, cpu) : NULL;
}

int bp_map_update(struct bp_map *map, const void *key, const void *value, uint64_t flags, uint32_t cpu)
{
	uint8_t *values;
	int error = place(map, key, flags, &values);

	if (!error)
		memmove(values + copy_of(map, cpu), value, map->value_size);
	return error;
}

int bp_map_delete(struct bp_map *map, const void *key)
{
	uint32_t i;

	if (!is(map, IS_HASH))
		return -EINVAL;
	i = find(map, key);
	if (i)
		release(map, i - 1);
	return i ? 0 : -ENOENT;
}

uint8_t *bp_map_entry(const struct bp_map *map, uint32_t i)
{
	if (is(map, IS_HASH) && !(map->slots[i].hash & BP_LIVE))
		return NULL;
	return map->entries + i * map->entry_size;
}

int bp_map_part(const struct bp_map *map, uint64_t address, struct bp_part *part)
{
	uint64_t offset = address - (uint64_t)map->entries, inside;
	int is_key;

	if (!map->entries || offset >= map->top * map->entry_size)
		return -EFAULT;
	inside = offset % map->entry_size;
	is_key = inside < map->key_room;
	if (!is_key)
		inside = (inside - map->key_room) % map->value_room;
	*part = (struct bp_part){address - inside, is_key ? map->key_size : map->value_size,
				 is_key || map->flags & BPF_F_RDONLY_PROG};
	return inside < part->size ? 0 : -EFAULT;
}

/* ---- bpf(2) */

size_t bp_map_value_size(const struct bp_map *map)
{
	return is(map, IS_PER_CPU) ? (size_t)map->value_room * map->copies : map->value_size;
}

int bp_map_read(struct bp_map *map, const void *key, void *value, uint64_t flags)
{
	const uint8_t *values;

	if (flags || map->flags & BPF_F_WRONLY || !map->entries)
		return flags ? -EINVAL : map->entries ? -EPERM : -EOPNOTSUPP;
	values = look(map, key, 0);
	if (values)
		memcpy(value, values, bp_map_value_size(map));
	return values ? 0 : -ENOENT;
}

int bp_map_write(struct bp_map *map, const void *key, const void *value, uint64_t flags)
{
	uint8_t *values;
	int error = map->is_frozen || map->flags & BPF_F_RDONLY ? -EPERM : place(map, key, flags, &values);

	if (!error)
		memcpy(values, value, bp_map_value_size(map));
	return error;
}

int bp_map_erase(struct bp_map *map, const void *key)
{
	return map->is_frozen || map->flags & BPF_F_RDONLY ? -EPERM : bp_map_delete(map, key);
}

int bp_map_next(struct bp_map *map, const void *key, void *next)
{
	uint32_t i;

	if (map->flags & BPF_F_WRONLY)
		return -EPERM;
	if (map->type == BPF_MAP_TYPE_RINGBUF)
		return -EOPNOTSUPP;
	if (!is(map, IS_HASH)) {
		if (key)
			memcpy(&i, key, sizeof(i));
		i = key && i < map->max_entries ? i + 1 : 0;
		if (i < map->max_entries)
			memcpy(next, &i, sizeof(i));
		return i < map->max_entries ? 0 : -ENOENT;
	}
	while (map->first < map->top && !bp_map_entry(map, map->first))
		map->first++;
	i = key ? find(map, key) : 0;
	for (i = i ? i : map->first; i < map->top && !bp_map_entry(map, i);)
		i++;
	if (i >= map->top)
		return -ENOENT;
	memcpy(next, bp_map_entry(map, i), map->key_size);
	return 0;
}

int bp_map_freeze(struct bp_map *map)
{
	if (map->is_frozen)
		return -EBUSY;
	map->is_frozen = 1;
	return 0;
}

void bp_map_info(const struct bp_map *map, struct bpf_map_info *info)
{
	*info = (struct bpf_map_info){map->type, map->id, map->key_size, map->value_size, map->max_entries,
				      .map_flags = map->flags};
	memcpy(info->name, map->name, sizeof(info->name));
}
