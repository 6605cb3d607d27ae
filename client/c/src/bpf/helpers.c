/*
 * The helper functions that programs call, by the kernel's numbers: see linux/bpf.h for their arguments.
 *
 * A pointer is checked as an access of an instruction is; a wrong one ends the program. Only the source of
 * bpf_probe_read and its kind may be anything: -EFAULT, since memory of kernel and writer is not there.
 */
#include "helpers.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#define HZ_NS 4000000u /* of a kernel with CONFIG_HZ=250 */
#define MAX_LOOPS (1u << 23)

/* ---- arguments: each line declares one, or ends the function, and with it the run */

#define HELPER(name) static uint64_t name(struct bp_run *run, const uint64_t *r)
#define ARGUMENT(declared, value) \
	declared = (value);       \
	if (run->why)             \
	return 0
#define READABLE(name, address, size) ARGUMENT(const void *name, memory(run, address, size, 0))
#define WRITABLE(name, address, size) ARGUMENT(void *name, memory(run, address, size, 1))
/* of: whether the map is one that the function knows. */
#define MAP(name, handle, of)                                           \
	ARGUMENT(struct bp_map *name, any_map(run, handle));            \
	if (!(of)) {                                                    \
		run->why = "a helper function with a map of another type"; \
		return 0;                                               \
	}
#define MAP_OF_VALUES(name, handle) MAP(name, handle, name->entries)
#define MAP_OF_TYPE(name, handle, type_) MAP(name, handle, name->type == (type_))

/* Mostly it is the stack's. */
static inline void *memory(struct bp_run *run, uint64_t address, uint64_t size, int is_write)
{
	run->budget -= (int64_t)(size >> 4);
	if (bp_inside(address, size, &run->parts[BP_STACK_PART]))
		return (void *)address;
	if (!size)
		return bp_frames; /* any */
	if (!bp_may(run, address, size, is_write))
		bp_refuse(run, address, size, is_write);
	return (void *)address;
}

/* Bytes from here to the end of what may be read; 0 outside. */
static uint64_t room(struct bp_run *run, uint64_t address)
{
	if (bp_may(run, address, 1, 0))
		for (int i = 0; i < BP_RESERVED + run->nr_reservations; i++)
			if (bp_inside(address, 1, &run->parts[i]))
				return run->parts[i].size - (address - run->parts[i].start);
	return 0;
}

static struct bp_map *any_map(struct bp_run *run, uint64_t handle)
{
	if (handle - BP_MAP_HANDLE < run->program->nr_maps)
		return run->program->maps[handle - BP_MAP_HANDLE];
	run->why = "a helper function with an argument that is no map";
	return NULL;
}

/* ---- maps */

static uint64_t found(struct bp_run *run, struct bp_map *map, void *value)
{
	if (value) /* the next access is mostly this */
		run->parts[BP_GUESS] =
			(struct bp_part){(uint64_t)value, map->value_size, map->flags & BPF_F_RDONLY_PROG};
	return (uint64_t)value;
}

HELPER(map_lookup_elem)
{
	MAP_OF_VALUES(map, r[1]);
	READABLE(key, r[2], map->key_size);
	return found(run, map, bp_map_lookup(map, key, run->record->cpu));
}

HELPER(map_lookup_percpu_elem)
{
	MAP_OF_VALUES(map, r[1]);
	READABLE(key, r[2], map->key_size);
	return (uint32_t)r[3] < map->copies ? found(run, map, bp_map_lookup(map, key, (uint32_t)r[3])) : 0;
}

HELPER(map_update_elem)
{
	MAP_OF_VALUES(map, r[1]);
	READABLE(key, r[2], map->key_size);
	READABLE(value, r[3], map->value_size);
	return (uint64_t)(int64_t)(map->flags & BPF_F_RDONLY_PROG
					   ? -EPERM
					   : bp_map_update(map, key, value, r[4], run->record->cpu));
}

HELPER(map_delete_elem)
{
	MAP_OF_VALUES(map, r[1]);
	READABLE(key, r[2], map->key_size);
	return (uint64_t)(int64_t)bp_map_delete(map, key);
}

HELPER(for_each_map_elem)
{
	uint64_t n = 0, stops = 0;

	MAP_OF_VALUES(map, r[1]);
	if (r[4])
		return (uint64_t)-EINVAL;
	for (uint32_t i = 0; i < map->top && !run->why && !stops; i++) {
		uint8_t *entry = bp_map_entry(map, i);
		uint64_t key = (uint64_t)entry;

		run->budget--;
		if (!entry)
			continue;
		if (!map->key_room && run->depth + 1 < BP_FRAMES) {
			bp_frames[run->depth + 1].key = i;
			key = (uint64_t)&bp_frames[run->depth + 1].key;
		}
		entry += map->key_room + (uint64_t)(run->record->cpu % map->copies) * map->value_room;
		stops = bp_call_back(run, r[2], (uint64_t[]){0, r[1], key, (uint64_t)entry, r[3], 0});
		n++;
	}
	return n;
}

HELPER(loop)
{
	uint64_t nr = (uint32_t)r[1], n = 0, stops = 0;

	if (r[4] || nr > MAX_LOOPS)
		return (uint64_t)(r[4] ? -EINVAL : -E2BIG);
	while (n < nr && !stops && !run->why)
		stops = bp_call_back(run, r[2], (uint64_t[]){0, n++, r[3], 0, 0, 0});
	return n;
}

/* ---- memory and text */

HELPER(probe_read)
{
	uint64_t size = (uint32_t)r[2];

	WRITABLE(to, r[1], size);
	if (!size)
		return 0;
	if (bp_may(run, r[3], size, 0)) {
		memmove(to, (const void *)r[3], size);
		return 0;
	}
	memset(to, 0, size);
	return (uint64_t)-EFAULT;
}

HELPER(probe_read_str)
{
	uint64_t size = (uint32_t)r[2], max = room(run, r[3]), n;
	const char *from = (const char *)r[3];

	WRITABLE(to, r[1], size);
	if (!size)
		return 0;
	if (!max) {
		memset(to, 0, size);
		return (uint64_t)-EFAULT;
	}
	n = strnlen(from, max < size - 1 ? max : size - 1);
	memmove(to, from, n);
	((char *)to)[n] = 0;
	return n + 1;
}

/* bpf_strncmp(text, size, a constant text). */
HELPER(compare_text)
{
	uint64_t size = (uint32_t)r[2], max = room(run, r[3]);

	READABLE(text, r[1], size);
	if (!max)
		return (uint64_t)bp_refuse(run, r[3], 1, 0);
	return (uint64_t)(int64_t)strncmp(text, (const char *)r[3], size < max ? size : max);
}

/* bpf_trace_printk and bpf_trace_vprintk: there is no trace_pipe. */
HELPER(print)
{
	READABLE(format, r[1], (uint32_t)r[2]);
	(void)format;
	return (uint32_t)r[2];
}

/* ---- the record */

#define WITHOUT_ARGUMENTS(name, value) \
	HELPER(name)                   \
	{                              \
		(void)r;               \
		return (value);        \
	}

WITHOUT_ARGUMENTS(ktime_get_ns, run->record->time_ns)
WITHOUT_ARGUMENTS(ktime_get_boot_ns, run->record->boot_ns)
WITHOUT_ARGUMENTS(jiffies64, run->record->time_ns / HZ_NS)
WITHOUT_ARGUMENTS(get_smp_processor_id, run->record->cpu)
WITHOUT_ARGUMENTS(get_current_pid_tgid,
		  (uint64_t)(uint32_t)run->record->pid << 32 | (uint32_t)run->record->tid)

/* (device, inode, struct bpf_pidns_info, its size): records have the numbers of the daemon's namespace. */
HELPER(get_ns_current_pid_tgid)
{
	struct bpf_pidns_info info = {(uint32_t)run->record->tid, (uint32_t)run->record->pid};

	if (r[4] != sizeof(info))
		return (uint64_t)-EINVAL;
	WRITABLE(to, r[3], sizeof(info));
	memcpy(to, &info, sizeof(info));
	return 0;
}

HELPER(get_current_comm)
{
	uint64_t size = (uint32_t)r[2], n = strnlen(run->record->comm, sizeof(run->record->comm));

	WRITABLE(to, r[1], size);
	if (!size)
		return (uint64_t)-EINVAL;
	memset(to, 0, size);
	memcpy(to, run->record->comm, n < size ? n : size - 1);
	return 0;
}

HELPER(get_prandom_u32)
{
	static uint64_t state;

	(void)r;
	while (!state)
		if (getrandom(&state, sizeof(state), GRND_NONBLOCK) < 0)
			state = (uintptr_t)run | 1;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32);
}

/* ---- output */

HELPER(perf_event_output)
{
	MAP_OF_TYPE(map, r[2], BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	READABLE(data, r[4], r[5]);
	return (uint64_t)(int64_t)bp_perf_output(map, r[3], data, r[5]);
}

HELPER(ringbuf_output)
{
	void *sample;

	MAP_OF_TYPE(map, r[1], BPF_MAP_TYPE_RINGBUF);
	READABLE(data, r[2], r[3]);
	sample = bp_ringbuf_reserve(map, r[3]);
	if (!sample)
		return (uint64_t)-EAGAIN;
	memcpy(sample, data, r[3]);
	bp_ringbuf_commit(map, sample, r[4], 0);
	return 0;
}

HELPER(ringbuf_reserve)
{
	int n = run->nr_reservations;
	void *sample;

	MAP_OF_TYPE(map, r[1], BPF_MAP_TYPE_RINGBUF);
	sample = n < BP_RESERVATIONS ? bp_ringbuf_reserve(map, r[2]) : NULL;
	if (sample) {
		run->parts[BP_RESERVED + n] = (struct bp_part){(uint64_t)sample, r[2], 0};
		run->reserved_in[n] = map;
		run->nr_reservations++;
	}
	return (uint64_t)sample;
}

static uint64_t release(struct bp_run *run, const uint64_t *r, int is_discarded)
{
	struct bp_part *open = &run->parts[BP_RESERVED];
	int i = 0;

	while (i < run->nr_reservations && open[i].start != r[1])
		i++;
	if (i == run->nr_reservations) {
		run->why = "submits or discards what is no reservation in a ring buffer";
		return 0;
	}
	bp_ringbuf_commit(run->reserved_in[i], (void *)r[1], r[2], is_discarded);
	open[i] = open[--run->nr_reservations];
	run->reserved_in[i] = run->reserved_in[run->nr_reservations];
	return 0;
}

HELPER(ringbuf_submit)
{
	return release(run, r, 0);
}

HELPER(ringbuf_discard)
{
	return release(run, r, 1);
}

HELPER(ringbuf_query)
{
	MAP_OF_TYPE(map, r[1], BPF_MAP_TYPE_RINGBUF);
	return bp_ringbuf_query(map, r[2]);
}

/* ---- by number */

#define NAMED(name) [BPF_FUNC_##name] = name
/* The later ones have no names in the headers of some distributions. */
const bp_helper bp_helpers[] = {
	NAMED(map_lookup_elem),	NAMED(map_update_elem), NAMED(map_delete_elem), NAMED(probe_read),
	NAMED(probe_read_str), NAMED(ktime_get_ns), NAMED(ktime_get_boot_ns), NAMED(jiffies64),
	NAMED(get_prandom_u32), NAMED(get_smp_processor_id), NAMED(get_current_pid_tgid),
	NAMED(get_ns_current_pid_tgid), NAMED(get_current_comm), NAMED(perf_event_output),
	NAMED(ringbuf_output), NAMED(ringbuf_reserve), NAMED(ringbuf_submit), NAMED(ringbuf_discard),
	NAMED(ringbuf_query),
	[BPF_FUNC_probe_read_user] = probe_read, [BPF_FUNC_probe_read_kernel] = probe_read,
	[BPF_FUNC_probe_read_user_str] = probe_read_str, [BPF_FUNC_probe_read_kernel_str] = probe_read_str,
	[BPF_FUNC_trace_printk] = print, [160] = ktime_get_ns, [164] = for_each_map_elem, [177] = print,
	[181] = loop, [182] = compare_text, [195] = map_lookup_percpu_elem,
};

#define NAME(name) "bpf_" #name
static const char *const names[] = {__BPF_FUNC_MAPPER(NAME)};

/* Numbers that some headers do not name: 148 copy_from_user, 158 get_current_task_btf, 175 task_pt_regs,
 * 208 ktime_get_tai_ns. */
static const struct {
	const char *why;
	uint8_t numbers[5];
} missing[] = {
	{"stacks are not part of a record (no kstack, no ustack)",
	 {BPF_FUNC_get_stackid, BPF_FUNC_get_stack, BPF_FUNC_get_task_stack}},
	{"the writer's task is memory of the kernel, which is not there (no curtask)",
	 {BPF_FUNC_get_current_task, 158, 175}},
	{"the writer's cgroup is not part of a record (no cgroup)",
	 {BPF_FUNC_get_current_cgroup_id, BPF_FUNC_get_current_ancestor_cgroup_id,
	  BPF_FUNC_current_task_under_cgroup}},
	{"the writer's user is not part of a record (no uid, no gid, no username)", {BPF_FUNC_get_current_uid_gid}},
	{"a program runs after the event, in another process, and cannot act on the writer",
	 {BPF_FUNC_send_signal, BPF_FUNC_send_signal_thread, BPF_FUNC_override_return, BPF_FUNC_probe_write_user,
	  148}},
	{"records have times of the clocks monotonic and boot only", {208}},
	{"there are no tail calls", {BPF_FUNC_tail_call}},
	{"counters of the processor are not part of a record",
	 {BPF_FUNC_perf_event_read, BPF_FUNC_perf_event_read_value}},
};

int bp_is_helper(uint32_t number, const char **name, const char **why)
{
	*name = number && number < sizeof(names) / sizeof(*names) ? names[number] : "unknown";
	*why = "this helper function is not there for programs on user events";
	for (size_t i = 0; i < sizeof(missing) / sizeof(*missing); i++)
		if (number && number < 256 && memchr(missing[i].numbers, (int)number, sizeof(missing[i].numbers)))
			*why = missing[i].why;
	return number < sizeof(bp_helpers) / sizeof(*bp_helpers) && bp_helpers[number];
}
