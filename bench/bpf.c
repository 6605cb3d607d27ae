/* bpftrace's programs in the interpreter: for each line NAME of stdin the cpu time of a run, ns. */
#include "engine.h"

#include "bpf_programs.h"
#include "clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS 1024
#define RUNS 20000

static struct bp_map *maps[6];
static struct {
	_Alignas(8) uint8_t bytes[56];
	size_t size;
} records[RECORDS];

static struct bp_map *map_of(int fd)
{
	return fd >= 0 && fd < 6 ? maps[fd] : NULL;
}

/* As the library lays them out for bpftrace: status at 8, usec at 12, the word of path at 16. */
static void make_records(void)
{
	for (int i = 0; i < RECORDS; i++) {
		uint16_t status = i % 10 ? 200 : 503;
		uint32_t usec = (uint32_t)(i * 7919) % 3000;
		int n = snprintf((char *)records[i].bytes + 20, 32, "/item/%d.html", i % 3) + 1;
		uint32_t word = 20 | (uint32_t)n << 16;

		memcpy(records[i].bytes + 8, &status, 2);
		memcpy(records[i].bytes + 12, &usec, 4);
		memcpy(records[i].bytes + 16, &word, 4);
		records[i].size = 20 + (size_t)n;
	}
}

static struct bp_program *program_of(const struct bpftrace_program *of)
{
	union bpf_attr attr = {.map_type = of->map_type, .key_size = of->key_size, .value_size = 8};
	struct bp_load load = {.n = of->n, .map_of = map_of, .name = of->name};
	struct bp_program *program;
	const char *why;

	attr.max_entries = of->entries;
	load.instructions = (const struct bpf_insn *)of->instructions;
	if (bp_map_new(&maps[4], &attr, &why))
		exit(1);
	attr = (union bpf_attr){.map_type = BPF_MAP_TYPE_PERF_EVENT_ARRAY, .key_size = 4, .value_size = 4};
	attr.max_entries = 2;
	if (bp_map_new(&maps[5], &attr, &why) || bp_program_load(&program, &load))
		exit(1);
	return program;
}

int main(void)
{
	struct bp_program *programs[sizeof(bpftrace_programs) / sizeof(*bpftrace_programs)];
	struct bp_record record = {.pid = 1, .tid = 1, .comm = "python"};
	char line[64];

	make_records();
	for (size_t i = 0; i < sizeof(programs) / sizeof(*programs); i++)
		programs[i] = program_of(&bpftrace_programs[i]);
	while (fgets(line, sizeof(line), stdin)) {
		size_t i = 0;
		uint64_t begin;

		line[strcspn(line, "\n")] = 0;
		while (strcmp(bpftrace_programs[i].name, line))
			i++;
		begin = now(CLOCK_THREAD_CPUTIME_ID);
		for (int run = 0; run < RUNS; run++)
			bp_program_run(programs[i], records[run % RECORDS].bytes, records[run % RECORDS].size + 8,
				       &record);
		printf("%.2f\n", (double)(now(CLOCK_THREAD_CPUTIME_ID) - begin) / RUNS);
		fflush(stdout);
		if (programs[i]->faults)
			exit(1);
	}
	return 0;
}
