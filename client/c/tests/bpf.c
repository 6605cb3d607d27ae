/*
 * bpf: maps, programs and rings of src/bpf, by lines of stdin, each with one line as the answer. Bytes are
 * hexadecimal.
 *
 *     map TYPE KEY VALUE ENTRIES FLAGS    the map's number, or -errno and why
 *     read|write|erase|next MAP HEX...    bpf(2)'s: key; key value flags; key; key (or - for the first)
 *     freeze|info|memory MAP              bytes of the memfd
 *     ring MAP INDEX PAGES                a ring in a perf event array; enabled
 *     records MAP INDEX                   takes a ring's records: HEX, lost=N; "rang" if its bell did
 *     load HEX                            0, or -errno and why; maps by their numbers as fds
 *     run HEX CONTEXT CPU                 loads and runs: r0, or the fault, or as load
 *     format HEX                          the text of a daemon's `format`: the one that tools see, or "none"
 *     apply HEX                           a record of it: the context, or "none"
 */
#include "engine.h"
#include "layout.h"

#include "hex.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX 4096

static struct bp_map *maps[MAX];
static int nr_maps;

static struct bp_map *map_of(int fd)
{
	return fd >= 0 && fd < nr_maps ? maps[fd] : NULL;
}

static void make_map(char *arguments)
{
	union bpf_attr attr = {0};
	const char *why;
	int error;

	sscanf(arguments, "%u %u %u %u %u", &attr.map_type, &attr.key_size, &attr.value_size, &attr.max_entries,
	       &attr.map_flags);
	strcpy(attr.map_name, "m");
	error = bp_map_new(&maps[nr_maps], &attr, &why);
	if (error)
		printf("%d %s\n", error, why ? why : "");
	else
		printf("%d\n", nr_maps++);
}

static void use_map(const char *what, char *arguments)
{
	char *save, *number = strtok_r(arguments, " \n", &save);
	struct bp_map *map = map_of(atoi(number));
	size_t size;
	uint8_t *key = bytes_of(strtok_r(NULL, " \n", &save), &size), *given = NULL;
	uint8_t *out = malloc(bp_map_value_size(map) + map->key_size + 1);
	struct bpf_map_info info;
	struct stat stat;
	int error = 0;

	if (!strcmp(what, "read")) {
		error = bp_map_read(map, key, out, 0);
		size = bp_map_value_size(map);
	} else if (!strcmp(what, "next")) {
		error = bp_map_next(map, size ? key : NULL, out);
		size = map->key_size;
	} else if (!strcmp(what, "write")) {
		given = bytes_of(strtok_r(NULL, " \n", &save), &size);
		error = bp_map_write(map, key, given, strtoull(strtok_r(NULL, " \n", &save), NULL, 0));
		size = 0;
	} else {
		error = !strcmp(what, "erase") ? bp_map_erase(map, key) : !strcmp(what, "freeze") ? bp_map_freeze(map) : 0;
		size = 0;
	}
	if (!strcmp(what, "info")) {
		bp_map_info(map, &info);
		printf("%u %u %u %u %u %s\n", info.type, info.key_size, info.value_size, info.max_entries,
		       info.map_flags, info.name);
	} else if (!strcmp(what, "memory")) {
		printf("%lld\n", map->fd >= 0 && !fstat(map->fd, &stat) ? (long long)stat.st_size : -1);
	} else {
		if (error || !size)
			printf("%d", error);
		else
			print_bytes(out, size);
		printf("\n");
	}
	free(key);
	free(given);
	free(out);
}

/* ---- rings, as a tool reads them */

static void make_ring(char *arguments)
{
	unsigned map, index, nr_pages;
	struct bp_ring *ring;
	int error;

	sscanf(arguments, "%u %u %u", &map, &index, &nr_pages);
	bp_ring_new(&ring);
	ring->is_enabled = 1;
	error = bp_ring_map(ring, nr_pages * (size_t)sysconf(_SC_PAGESIZE));
	if (!error)
		error = bp_map_set_ring(map_of((int)map), index, ring);
	bp_ring_put(ring);
	printf("%d\n", error);
}

static int has_rung(int bell)
{
	uint64_t count;

	return read(bell, &count, sizeof(count)) == sizeof(count);
}

static void take_samples(struct bp_ring *ring)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), size = page + ring->data_size;
	struct perf_event_mmap_page *header = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring->memory, 0);
	const uint8_t *data = (const uint8_t *)header + page;

	while (header->data_tail < header->data_head) {
		uint8_t record[65536];
		struct perf_event_header *of_record = (struct perf_event_header *)record;
		uint32_t length;
		uint64_t lost;

		for (size_t i = 0; i < (i < 8 ? 8 : of_record->size); i++)
			record[i] = data[(header->data_tail + i) & (ring->data_size - 1)];
		memcpy(&length, record + 8, sizeof(length));
		memcpy(&lost, record + 16, sizeof(lost));
		if (of_record->type == PERF_RECORD_LOST)
			printf("lost=%" PRIu64 " ", lost);
		else {
			print_bytes(record + 12, length);
			printf(" ");
		}
		header->data_tail += of_record->size;
	}
	munmap(header, size);
}

static void take_ringbuf(struct bp_map *map)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), size = page + 2 * (size_t)map->max_entries;
	int memory = map->rings[0]->memory;
	uint64_t *consumer = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	const uint8_t *producer = mmap(NULL, size, PROT_READ, MAP_SHARED, memory, (off_t)page);
	const uint8_t *data = producer + page;

	if (bp_ringbuf_may_map(map, page, PROT_WRITE, 0) || bp_ringbuf_may_map(map, size, PROT_READ, (off_t)page) ||
	    !bp_ringbuf_may_map(map, size, PROT_WRITE, (off_t)page))
		printf("refused ");
	while (*consumer < *(const uint64_t *)producer) {
		const uint8_t *record = data + (*consumer & (map->max_entries - 1));
		uint32_t length;

		memcpy(&length, record, sizeof(length));
		if (length & BPF_RINGBUF_BUSY_BIT) {
			printf("busy ");
			break;
		}
		if (!(length & BPF_RINGBUF_DISCARD_BIT)) {
			print_bytes(record + 8, length);
			printf(" ");
		}
		*consumer += ((length & ~BPF_RINGBUF_DISCARD_BIT) + 8 + 7) & ~7u;
	}
	munmap(consumer, page);
	munmap((void *)producer, size);
}

static void records(char *arguments)
{
	unsigned number, index;
	struct bp_ring *ring;

	sscanf(arguments, "%u %u", &number, &index);
	ring = map_of((int)number)->rings[index];
	bp_ring_bells();
	if (has_rung(ring->bell))
		printf("rang ");
	if (map_of((int)number)->type == BPF_MAP_TYPE_RINGBUF)
		take_ringbuf(map_of((int)number));
	else
		take_samples(ring);
	printf("lost %" PRIu64 "\n", ring->total_lost);
}

/* ---- programs */

static struct bp_program *load(const char *hex)
{
	size_t size;
	struct bp_load load = {.map_of = map_of, .name = "program"};
	uint8_t *bytes = bytes_of(hex, &size);
	struct bp_program *program = NULL;
	int error;

	load.instructions = (const struct bpf_insn *)bytes;
	load.n = (uint32_t)(size / 8);
	error = bp_program_load(&program, &load);
	if (error)
		printf("%d %s\n", error, load.why);
	free(bytes);
	return program;
}

static void run(char *arguments)
{
	struct bp_record record = {
		.time_ns = 1000000000, .boot_ns = 3000000000, .pid = 77, .tid = 78, .comm = "writer"};
	char *save, *hex = strtok_r(arguments, " ", &save), *of_context = strtok_r(NULL, " ", &save);
	struct bp_program *program = load(hex);
	uint64_t value;
	uint8_t *context;
	size_t size;

	if (!program)
		return;
	record.cpu = of_context ? (uint32_t)atoi(strtok_r(NULL, " ", &save)) : 0;
	context = bytes_of(of_context, &size);
	value = of_context ? bp_program_run(program, context, size, &record) : 0;
	if (program->faults)
		puts(program->fault);
	else
		printf("%" PRIu64 "\n", value);
	free(context);
	bp_program_put(program);
}

/* ---- layouts */

static void show(const void *bytes, size_t size)
{
	if (bytes)
		print_bytes(bytes, size);
	puts(bytes ? "" : "none");
}

static void use_layout(const char *what, const char *hex)
{
	static struct bt_layout *layout;
	size_t size, made = 0;
	uint8_t *bytes = bytes_of(hex, &size);
	const void *context;

	if (!strcmp(what, "apply")) {
		context = bt_layout_apply(layout, bytes, (uint32_t)size, &made);
		show(context, made);
	} else {
		char *text = strndup((char *)bytes, size);

		bt_layout_free(layout);
		layout = bt_layout_new(text);
		show(layout ? bt_layout_text(layout) : NULL, layout ? strlen(bt_layout_text(layout)) : 0);
		free(text);
	}
	free(bytes);
}

int main(void)
{
	static char line[1 << 20];

	setvbuf(stdout, NULL, _IOLBF, 0);
	bp_lock();
	while (fgets(line, sizeof(line), stdin)) {
		char *arguments = line + strcspn(line, " \n");

		if (*arguments)
			*arguments++ = 0;
		if (!strcmp(line, "map"))
			make_map(arguments);
		else if (!strcmp(line, "ring"))
			make_ring(arguments);
		else if (!strcmp(line, "records"))
			records(arguments);
		else if (!strcmp(line, "load") || !strcmp(line, "run"))
			run(arguments);
		else if (!strcmp(line, "format") || !strcmp(line, "apply"))
			use_layout(line, arguments);
		else
			use_map(line, arguments);
	}
	bp_unlock();
	for (int i = 0; i < nr_maps; i++)
		bp_map_put(maps[i]);
	return 0;
}
