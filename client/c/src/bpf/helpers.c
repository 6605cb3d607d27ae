/*
 * The helper functions that programs call, by the kernel's numbers: see linux/bpf.h for their arguments.
 *
 * A pointer is checked as an access of an instruction is; a wrong one ends the program. Only the source of
 * bpf_probe_read and its kind may be anything: -EFAULT, since memory of kernel and writer is not there.
 */
#include "helpers.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define HZ_NS 4000000u /* of a kernel with CONFIG_HZ=250 */
#define MAX_LOOPS (1u << 23)
#define MAX_TEXT 1024

void (*bp_trace)(const char *text, size_t size);

/* ---- arguments */

static void *memory(struct bp_run *run, uint64_t address, uint64_t size, int is_write)
{
	if (!size)
		return bp_frames; /* any */
	if (!bp_may(run, address, size, is_write))
		return (void *)(uintptr_t)bp_refuse(run, address, size, is_write);
	run->budget -= (int64_t)(size >> 4);
	return (void *)address;
}

static const void *readable(struct bp_run *run, uint64_t address, uint64_t size)
{
	return memory(run, address, size, 0);
}

static void *writable(struct bp_run *run, uint64_t address, uint64_t size)
{
	return memory(run, address, size, 1);
}

/* Bytes from here to the end of what may be read; 0 outside. */
static uint64_t room(struct bp_run *run, uint64_t address)
{
	if (bp_inside(address, 1, run->context, run->context_size))
		return run->context_size - (address - run->context);
	if (bp_inside(address, 1, run->stack, run->stack_size))
		return run->stack_size - (address - run->stack);
	if (bp_inside(address, 1, run->part, run->part_size) || (bp_find_part(run, address, 1, 0) &&
								 bp_inside(address, 1, run->part, run->part_size)))
		return run->part_size - (address - run->part);
	for (int i = 0; i < run->nr_reservations; i++) {
		uint64_t sample = (uint64_t)run->reservations[i].sample;

		if (bp_inside(address, 1, sample, run->reservations[i].size))
			return run->reservations[i].size - (address - sample);
	}
	return 0;
}

static struct bp_map *any_map(struct bp_run *run, uint64_t handle)
{
	if (handle >> 32 == BP_MAP_HANDLE && (uint32_t)handle < run->program->nr_maps)
		return run->program->maps[(uint32_t)handle];
	run->why = "a helper function with an argument that is no map";
	return NULL;
}

static struct bp_map *map_of_type(struct bp_run *run, uint64_t handle, uint32_t type)
{
	struct bp_map *map = any_map(run, handle);

	if (!map || map->type == type)
		return map;
	run->why = "a helper function with a map of another type";
	return NULL;
}

static struct bp_map *map_with_values(struct bp_run *run, uint64_t handle)
{
	struct bp_map *map = any_map(run, handle);

	if (!map || map->entries)
		return map;
	run->why = "a helper function with a map that has no values";
	return NULL;
}

/* ---- maps */

static uint64_t found(struct bp_run *run, struct bp_map *map, void *value)
{
	if (value) { /* the next access is mostly this */
		run->part = (uint64_t)value;
		run->part_size = map->value_size;
		run->part_is_read_only = (map->flags & BPF_F_RDONLY_PROG) != 0;
	}
	return (uint64_t)value;
}

static uint64_t map_lookup_elem(struct bp_run *run, const uint64_t *r)
{
	struct bp_map *map = map_with_values(run, r[1]);
	const void *key = map ? readable(run, r[2], map->key_size) : NULL;

	return key ? found(run, map, bp_map_lookup(map, key, run->record->cpu)) : 0;
}

static uint64_t map_lookup_percpu_elem(struct bp_run *run, const uint64_t *r)
{
	struct bp_map *map = map_with_values(run, r[1]);
	const void *key = map ? readable(run, r[2], map->key_size) : NULL;

	if (!key || (uint32_t)r[3] >= map->copies)
		return 0;
	return found(run, map, bp_map_lookup(map, key, (uint32_t)r[3]));
}

static uint64_t map_update_elem(struct bp_run *run, const uint64_t *r)
{
	struct bp_map *map = map_with_values(run, r[1]);
	const void *key = map ? readable(run, r[2], map->key_size) : NULL;
	const void *value = key ? readable(run, r[3], map->value_size) : NULL;

	if (!value)
		return 0;
	if (map->flags & BPF_F_RDONLY_PROG)
		return (uint64_t)-EPERM;
	return (uint64_t)(int64_t)bp_map_update(map, key, value, r[4], run->record->cpu);
}

static uint64_t map_delete_elem(struct bp_run *run, const uint64_t *r)
{
	struct bp_map *map = map_with_values(run, r[1]);
	const void *key = map ? readable(run, r[2], map->key_size) : NULL;

	return key ? (uint64_t)(int64_t)bp_map_delete(map, key) : 0;
}

static uint64_t for_each_map_elem(struct bp_run *run, const uint64_t *r)
{
	struct bp_map *map = map_with_values(run, r[1]);
	uint64_t n = 0;

	if (!map || r[4])
		return (uint64_t)-EINVAL;
	for (uint32_t i = 0; i < map->top; i++) {
		uint8_t *entry = bp_map_entry(map, i);
		uint64_t key = (uint64_t)entry, stops;

		run->budget--;
		if (!entry)
			continue;
		if (!map->key_room && run->depth + 1 < BP_FRAMES) {
			bp_frames[run->depth + 1].key = i;
			key = (uint64_t)&bp_frames[run->depth + 1].key;
		}
		stops = bp_call_back(run, r[2], r[1], key,
				     (uint64_t)entry + map->key_room +
					     (uint64_t)(run->record->cpu % map->copies) * map->value_room,
				     r[3]);
		n++;
		if (run->why || stops)
			break;
	}
	return n;
}

static uint64_t loop(struct bp_run *run, const uint64_t *r)
{
	uint64_t nr = (uint32_t)r[1], n = 0, stops = 0;

	if (r[4])
		return (uint64_t)-EINVAL;
	if (nr > MAX_LOOPS)
		return (uint64_t)-E2BIG;
	while (n < nr && !stops && !run->why)
		stops = bp_call_back(run, r[2], n++, r[3], 0, 0);
	return n;
}

/* ---- memory and text */

static uint64_t probe_read(struct bp_run *run, const uint64_t *r)
{
	uint64_t size = (uint32_t)r[2];
	void *to = writable(run, r[1], size);

	if (!to || !size)
		return 0;
	if (!bp_may(run, r[3], size, 0)) {
		memset(to, 0, size);
		return (uint64_t)-EFAULT;
	}
	memmove(to, (const void *)r[3], size);
	return 0;
}

static uint64_t probe_read_str(struct bp_run *run, const uint64_t *r)
{
	uint64_t size = (uint32_t)r[2], max, n;
	char *to = writable(run, r[1], size);
	const char *from = (const char *)r[3];

	if (!to || !size)
		return 0;
	max = room(run, r[3]);
	if (!max) {
		memset(to, 0, size);
		return (uint64_t)-EFAULT;
	}
	n = strnlen(from, max < size - 1 ? max : size - 1);
	memmove(to, from, n);
	to[n] = 0;
	return n + 1;
}

/* bpf_strncmp(text, size, a constant text). */
static uint64_t compare_text(struct bp_run *run, const uint64_t *r)
{
	uint64_t size = (uint32_t)r[2], max = room(run, r[3]);
	const char *text = readable(run, r[1], size);

	if (!text)
		return 0;
	if (!max)
		return (uint64_t)bp_refuse(run, r[3], 1, 0);
	return (uint64_t)(int64_t)strncmp(text, (const char *)r[3], size < max ? size : max);
}

struct text {
	char *out;
	size_t size, at; /* without its NUL; `at` counts also characters without room */
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static void add(struct text *text, const char *format, ...)
{
	size_t at = text->at < text->size ? text->at : text->size;
	va_list arguments;

	va_start(arguments, format);
	text->at += (size_t)vsnprintf(text->out + at, text->size - at, format, arguments);
	va_end(arguments);
}
#pragma GCC diagnostic pop

/* One conversion, behind its "%", of those of bpf_bprintf_prepare(). Its end; NULL for an unknown one. */
static const char *convert(struct bp_run *run, struct text *text, const char *at, uint64_t value)
{
	size_t nr_flags = strspn(at, "-+ 0"), digits = strspn(at + nr_flags, "0123456789"), longs;
	int n = (int)(nr_flags + digits);
	uint64_t max = room(run, value);
	char format[24];

	if (nr_flags > 7 || digits > 3)
		return NULL;
	longs = strspn(at + n, "l");
	snprintf(format, sizeof(format), "%%%.*sll%c", n, at, at[(size_t)n + longs]);
	at += (size_t)n + longs;
	switch (*at) {
	case 's':
		snprintf(format, sizeof(format), "%%%s%.*s.*s", memchr(at - n - longs, '-', nr_flags) ? "-" : "",
			 (int)digits, at - longs - digits);
		add(text, format, (int)(max < MAX_TEXT ? max : MAX_TEXT - 1), max ? (const char *)value : "");
		break;
	case 'c':
		add(text, "%c", (int)value);
		break;
	case 'd':
	case 'i':
		add(text, format, longs ? value : (uint64_t)(int32_t)value);
		break;
	case 'u':
	case 'x':
	case 'X':
		add(text, format, longs ? value : (uint32_t)value);
		break;
	case 'p':
		add(text, "0x%llx", (unsigned long long)value);
		at += at[1] == 'K' || at[1] == 'x';
		break;
	default:
		return NULL;
	}
	return at + 1;
}

/* `format` ends with a NUL. The bytes that the whole text needs with its NUL, or -EINVAL. */
static int64_t print(struct bp_run *run, struct text *text, const char *format, const uint64_t *values,
		     uint64_t n)
{
	uint64_t used = 0;

	if (text->size)
		*text->out = 0;
	while (*format) {
		const char *percent = strchrnul(format, '%');

		run->budget -= 64;
		add(text, "%.*s", (int)(percent - format), format);
		format = percent;
		if (format[0] == '%' && format[1] == '%') {
			add(text, "%%");
			format += 2;
		} else if (*format) {
			format = used < n ? convert(run, text, format + 1, values[used++]) : NULL;
			if (!format)
				return -EINVAL;
		}
	}
	return (int64_t)text->at + 1;
}

/* A format that a program gives, of `size` bytes or up to its end: a copy with a NUL. */
static int copy_format(struct bp_run *run, char *copy, uint64_t address, uint64_t size)
{
	uint64_t max = room(run, address);

	if (!max || (size && size > max))
		return bp_refuse(run, address, size ? size : 1, 0);
	max = size ? size : max;
	snprintf(copy, MAX_TEXT, "%.*s", (int)(max < MAX_TEXT ? max : MAX_TEXT), (const char *)address);
	return 1;
}

static uint64_t trace(struct bp_run *run, const char *format, const uint64_t *values, uint64_t n)
{
	char out[MAX_TEXT];
	struct text text = {out, sizeof(out), 0};
	int64_t size = print(run, &text, format, values, n);

	if (size < 0)
		return (uint64_t)size;
	if (bp_trace)
		bp_trace(out, text.at < sizeof(out) ? text.at : sizeof(out) - 1);
	return (uint64_t)size - 1;
}

static uint64_t trace_printk(struct bp_run *run, const uint64_t *r)
{
	char format[MAX_TEXT];

	return copy_format(run, format, r[1], (uint32_t)r[2]) ? trace(run, format, r + 3, 3) : 0;
}

/* (format, its size, values of 8 bytes, the size of all of them) */
static uint64_t trace_vprintk(struct bp_run *run, const uint64_t *r)
{
	char format[MAX_TEXT];
	const uint64_t *values = readable(run, r[3], (uint32_t)r[4]);

	if (!values || !copy_format(run, format, r[1], (uint32_t)r[2]))
		return 0;
	return r[4] % 8 || r[3] % 8 ? (uint64_t)-EINVAL : trace(run, format, values, (uint32_t)r[4] / 8);
}

/* (text, its size, format, values, the size of all of them) */
static uint64_t print_text(struct bp_run *run, const uint64_t *r)
{
	char format[MAX_TEXT];
	struct text text = {writable(run, r[1], (uint32_t)r[2]), (uint32_t)r[2], 0};
	const uint64_t *values = text.out ? readable(run, r[4], (uint32_t)r[5]) : NULL;

	if (!values || !copy_format(run, format, r[3], 0))
		return 0;
	return r[5] % 8 || r[4] % 8 ? (uint64_t)-EINVAL
				    : (uint64_t)print(run, &text, format, values, (uint32_t)r[5] / 8);
}

/* ---- the record */

#define WITHOUT_ARGUMENTS(name, value)                                         \
	static uint64_t name(struct bp_run *run, const uint64_t *unused)       \
	{                                                                      \
		(void)unused;                                                  \
		return (value);                                                \
	}

WITHOUT_ARGUMENTS(ktime_get_ns, run->record->time_ns)
WITHOUT_ARGUMENTS(ktime_get_boot_ns, run->record->boot_ns)
WITHOUT_ARGUMENTS(jiffies64, run->record->time_ns / HZ_NS)
WITHOUT_ARGUMENTS(get_smp_processor_id, run->record->cpu)
WITHOUT_ARGUMENTS(get_current_pid_tgid,
		  (uint64_t)(uint32_t)run->record->pid << 32 | (uint32_t)run->record->tid)

/* (device, inode, struct bpf_pidns_info, its size): records have the numbers of the daemon's namespace. */
static uint64_t get_ns_current_pid_tgid(struct bp_run *run, const uint64_t *r)
{
	struct bpf_pidns_info info = {(uint32_t)run->record->tid, (uint32_t)run->record->pid};
	void *to = writable(run, r[3], sizeof(info));

	if (r[4] != sizeof(info))
		return (uint64_t)-EINVAL;
	if (to)
		memcpy(to, &info, sizeof(info));
	return 0;
}

static uint64_t get_current_comm(struct bp_run *run, const uint64_t *r)
{
	uint64_t size = (uint32_t)r[2], n = strnlen(run->record->comm, sizeof(run->record->comm));
	char *to = writable(run, r[1], size);

	if (!to || !size)
		return (uint64_t)-EINVAL;
	memset(to, 0, size);
	memcpy(to, run->record->comm, n < size ? n : size - 1);
	return 0;
}

static uint64_t get_prandom_u32(struct bp_run *run, const uint64_t *r)
{
	static uint64_t state;

	(void)run, (void)r;
	while (!state)
		if (getrandom(&state, sizeof(state), GRND_NONBLOCK) < 0)
			state = (uintptr_t)run | 1;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32);
}

/* ---- output */

static uint64_t perf_event_output(struct bp_run *run, const uint64_t *r)
{
	struct bp_map *map = map_of_type(run, r[2], BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	const void *data = map ? readable(run, r[4], r[5]) : NULL;

	return data ? (uint64_t)(int64_t)bp_perf_output(map, r[3], data, r[5]) : 0;
}

static uint64_t ringbuf_output(struct bp_run *run, const uint64_t *r)
{
	struct bp_map *map = map_of_type(run, r[1], BPF_MAP_TYPE_RINGBUF);
	const void *data = map ? readable(run, r[2], r[3]) : NULL;
	void *sample = data ? bp_ringbuf_reserve(map, r[3]) : NULL;

	if (!sample)
		return (uint64_t)-EAGAIN;
	memcpy(sample, data, r[3]);
	bp_ringbuf_commit(map, sample, r[4], 0);
	return 0;
}

static uint64_t ringbuf_reserve(struct bp_run *run, const uint64_t *r)
{
	struct bp_map *map = map_of_type(run, r[1], BPF_MAP_TYPE_RINGBUF);
	void *sample = map && run->nr_reservations < BP_RESERVATIONS ? bp_ringbuf_reserve(map, r[2]) : NULL;

	if (sample)
		run->reservations[run->nr_reservations++] = (struct bp_reservation){map, sample, r[2]};
	return (uint64_t)sample;
}

static uint64_t release(struct bp_run *run, const uint64_t *r, int is_discarded)
{
	for (int i = 0; i < run->nr_reservations; i++) {
		struct bp_reservation *open = &run->reservations[i];

		if ((uint64_t)open->sample == r[1]) {
			bp_ringbuf_commit(open->map, open->sample, r[2], is_discarded);
			*open = run->reservations[--run->nr_reservations];
			return 0;
		}
	}
	run->why = "submits or discards what is no reservation in a ring buffer";
	return 0;
}

static uint64_t ringbuf_submit(struct bp_run *run, const uint64_t *r) { return release(run, r, 0); }
static uint64_t ringbuf_discard(struct bp_run *run, const uint64_t *r) { return release(run, r, 1); }

static uint64_t ringbuf_query(struct bp_run *run, const uint64_t *r)
{
	struct bp_map *map = map_of_type(run, r[1], BPF_MAP_TYPE_RINGBUF);

	return map ? bp_ringbuf_query(map, r[2]) : 0;
}

/* ---- by number */

/* The later ones have no names in the headers of some distributions. */
const bp_helper bp_helpers[] = {
	[BPF_FUNC_map_lookup_elem] = map_lookup_elem,
	[BPF_FUNC_map_update_elem] = map_update_elem,
	[BPF_FUNC_map_delete_elem] = map_delete_elem,
	[BPF_FUNC_probe_read] = probe_read,
	[BPF_FUNC_ktime_get_ns] = ktime_get_ns,
	[BPF_FUNC_trace_printk] = trace_printk,
	[BPF_FUNC_get_prandom_u32] = get_prandom_u32,
	[BPF_FUNC_get_smp_processor_id] = get_smp_processor_id,
	[BPF_FUNC_get_current_pid_tgid] = get_current_pid_tgid,
	[BPF_FUNC_get_current_comm] = get_current_comm,
	[BPF_FUNC_perf_event_output] = perf_event_output,
	[BPF_FUNC_probe_read_str] = probe_read_str,
	[BPF_FUNC_probe_read_user] = probe_read,
	[BPF_FUNC_probe_read_kernel] = probe_read,
	[BPF_FUNC_probe_read_user_str] = probe_read_str,
	[BPF_FUNC_probe_read_kernel_str] = probe_read_str,
	[BPF_FUNC_jiffies64] = jiffies64,
	[BPF_FUNC_get_ns_current_pid_tgid] = get_ns_current_pid_tgid,
	[BPF_FUNC_ktime_get_boot_ns] = ktime_get_boot_ns,
	[BPF_FUNC_ringbuf_output] = ringbuf_output,
	[BPF_FUNC_ringbuf_reserve] = ringbuf_reserve,
	[BPF_FUNC_ringbuf_submit] = ringbuf_submit,
	[BPF_FUNC_ringbuf_discard] = ringbuf_discard,
	[BPF_FUNC_ringbuf_query] = ringbuf_query,
	[160] = ktime_get_ns,
	[164] = for_each_map_elem,
	[165] = print_text,
	[177] = trace_vprintk,
	[181] = loop,
	[182] = compare_text,
	[195] = map_lookup_percpu_elem,
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
