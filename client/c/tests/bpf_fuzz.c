/*
 * bpf_fuzz SEED SECONDS: random programs, bpftrace's with random changes, and random calls of the preload
 * library, under a sanitizer.
 *
 * Nothing of a program may change its context or the keys of a map, and what runs ends. Pointers of calls are
 * valid or NULL: a kernel says EFAULT to others, the library cannot.
 */
#include "engine.h"

#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bpf_programs.h"

#define MOST 200
#define COUNT(array) (sizeof(array) / sizeof(*(array)))

static uint64_t state;
static struct bp_map *maps[8];
static uint8_t codes[256];
static unsigned nr_codes;

static const unsigned kinds[COUNT(maps)][5] = {
	{BPF_MAP_TYPE_HASH, 8, 8, 16, 0},
	{BPF_MAP_TYPE_PERCPU_ARRAY, 4, 8, 16, 0},
	{BPF_MAP_TYPE_LRU_HASH, 72, 24, 8, 0},
	{BPF_MAP_TYPE_ARRAY, 4, 100, 3, BPF_F_MMAPABLE},
	{BPF_MAP_TYPE_PERCPU_HASH, 72, 8, 32, 0}, /* bpftrace's: 4 and 5 */
	{BPF_MAP_TYPE_PERF_EVENT_ARRAY, 4, 4, 2, 0},
	{BPF_MAP_TYPE_RINGBUF, 0, 0, 4096, 0},
	{BPF_MAP_TYPE_ARRAY, 4, 16, 1, BPF_F_RDONLY_PROG},
};

static const uint8_t helpers[] = {1,   2,   3,   4,   5,   6,   7,   8,   14,  16,  25,
				  45,  112, 113, 114, 115, 118, 120, 125, 130, 131, 132,
				  133, 134, 160, 164, 177, 181, 182, 195};

static uint64_t any(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

static unsigned below(unsigned n)
{
	return (unsigned)(any() >> 16) % n;
}

static struct bp_map *map_of(int fd)
{
	return fd >= 0 && fd < (int)COUNT(maps) ? maps[fd] : NULL;
}

static void change(struct bpf_insn *in)
{
	switch (below(6)) {
	case 0:
		in->code = (uint8_t)any();
		break;
	case 1:
		in->dst_reg = any() & 15;
		break;
	case 2:
		in->src_reg = any() & 15;
		break;
	case 3:
		in->off = (int16_t)(below(4) ? below(40) - 20 : any());
		break;
	case 4:
		in->imm = (int32_t)(below(4) ? below(600) - 300 : any());
		break;
	default:
		in->imm ^= (int32_t)(1u << below(32));
	}
}

/* An argument of a helper: the stack, a map, a callback, a value, a number, or another register. */
static unsigned argument(struct bpf_insn *in, unsigned reg)
{
	unsigned what = below(7);

	if (what < 4) { /* BPF_PSEUDO_MAP_FD twice, _FUNC, _MAP_VALUE */
		in[0] = (struct bpf_insn){.code = 0x18, .dst_reg = reg, .src_reg = (unsigned[]){1, 1, 4, 2}[what]};
		in[0].imm = what == 3 ? 3 : what == 2 ? (int)below(20) - 10 : (int)below(COUNT(maps));
		in[1] = (struct bpf_insn){.imm = what == 3 ? (int)below(100) : 0};
		return 2;
	}
	in[0] = (struct bpf_insn){.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = reg};
	in[0].src_reg = what == 4 ? 10 : below(10);
	if (what == 5)
		in[0] = (struct bpf_insn){.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = reg, .imm = (int)below(80)};
	in[1] = (struct bpf_insn){.code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = reg, .imm = -(int)below(520)};
	return what == 4 ? 2 : 1;
}

/* A code that loads, with fields that mostly load. */
static struct bpf_insn instruction(void)
{
	struct bpf_insn in = {.code = codes[below(nr_codes)], .dst_reg = below(10), .src_reg = below(11)};
	unsigned class = BPF_CLASS(in.code);

	if (class == BPF_JMP || class == BPF_JMP32) {
		in.off = (int16_t)((int)below(9) - 3);
		in.imm = in.code == BPF_JMP32 ? in.off : in.code == (BPF_JMP | BPF_CALL) ? 7 : (int)below(200) - 100;
		in.src_reg = in.code == (BPF_JMP | BPF_CALL) ? 0 : in.src_reg;
	} else if (class >= BPF_LDX && class <= BPF_STX) {
		in.off = (int16_t)below(64);
		in.imm = class == BPF_ST ? (int)below(256) : 0;
		if (in.code & 0x80 && class == BPF_STX)
			in.imm = (int[]){0, 1, 0x40, 0x51, 0xa1, 0xe1, 0xf1}[below(7)];
		if (below(2)) {
			in.off = (int16_t)(-8 * (int)(1 + below(64)));
			in.dst_reg = class == BPF_LDX ? in.dst_reg : 10;
			in.src_reg = class == BPF_LDX ? 10 : in.src_reg;
		}
	} else {
		in.imm = (int32_t)(below(4) ? below(200) - 100 : any());
		if (BPF_OP(in.code) == BPF_END)
			in.imm = 16 << below(3);
	}
	return in;
}

static unsigned random_program(struct bpf_insn *in)
{
	unsigned n = 0, end = 5 + below(80);

	in[n++] = (struct bpf_insn){.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = 6, .src_reg = 1};
	while (n < end) {
		if (below(3)) {
			in[n] = instruction();
			n += in[n].code == 0x18 ? 2 : 1;
			if (in[n - 1].code == 0 && in[n - 2].code == 0x18)
				in[n - 2].src_reg = 0;
			continue;
		}
		for (unsigned reg = 1; reg <= 5; reg++)
			n += argument(&in[n], reg);
		in[n++] = (struct bpf_insn){.code = BPF_JMP | BPF_CALL, .imm = helpers[below(COUNT(helpers))]};
		if (below(2)) /* NULL? */
			in[n++] = (struct bpf_insn){.code = BPF_JMP | BPF_JEQ, .dst_reg = 0, .off = 1};
	}
	for (int i = 0; i < 6; i++) /* where jumps go */
		in[n++] = (struct bpf_insn){.code = BPF_JMP | BPF_EXIT};
	return n;
}

static unsigned changed_program(struct bpf_insn *in)
{
	const struct bpftrace_program *seed = &bpftrace_programs[below(COUNT(bpftrace_programs))];
	unsigned n = seed->n;

	memcpy(in, seed->instructions, n * sizeof(*in));
	for (unsigned i = 1 + below(4); i; i--) {
		unsigned a = below(n), b = below(n);

		if (below(4))
			change(&in[a]);
		else if (below(2))
			in[a] = in[b];
		else
			in[a].imm = helpers[below(COUNT(helpers))];
	}
	return n;
}

/* Every key is found where it is, and none is there twice. */
static void check_maps(void)
{
	for (unsigned i = 0; i < COUNT(maps); i++) {
		unsigned n = 0;

		if (!maps[i]->slots)
			continue;
		for (uint32_t k = 0; k < maps[i]->top; k++) {
			uint8_t *entry = bp_map_entry(maps[i], k);

			n += entry != NULL;
			if (entry && bp_map_lookup(maps[i], entry, 0) != entry + maps[i]->key_room)
				abort();
		}
		if (n != maps[i]->used)
			abort();
	}
}

static int run(const struct bpf_insn *in, unsigned n)
{
	struct bp_load load = {.n = n, .map_of = map_of, .name = "fuzz"};
	struct bp_record record = {.time_ns = 1, .pid = 2, .tid = 3, .cpu = below(4), .comm = "fuzz"};
	struct bpf_insn *exact = malloc(n * sizeof(*in));
	size_t size = 8 + below(60);
	uint8_t *context = malloc(size), *before = malloc(size);
	struct bp_program *program = NULL;
	int result = 0;

	memcpy(exact, in, n * sizeof(*in));
	load.instructions = exact;
	for (size_t i = 0; i < size; i++)
		context[i] = (uint8_t)any();
	memcpy(before, context, size);
	if (!bp_program_load(&program, &load)) {
		for (int i = 0; i < 3; i++)
			bp_program_run(program, context, size, &record);
		result = program->faults ? 1 : 2;
		bp_program_put(program);
	}
	if (memcmp(context, before, size))
		abort();
	free(exact);
	free(context);
	free(before);
	return result;
}

static void make_maps(void)
{
	for (unsigned i = 0; i < COUNT(maps); i++) {
		union bpf_attr attr = {.map_type = kinds[i][0], .key_size = kinds[i][1], .value_size = kinds[i][2]};
		const char *why;

		attr.max_entries = kinds[i][3];
		attr.map_flags = kinds[i][4];
		if (bp_map_new(&maps[i], &attr, &why))
			abort();
	}
}

static void find_codes(void)
{
	for (unsigned i = 0; i < 256 * 3; i++) {
		struct bpf_insn in[3] = {{.code = (uint8_t)(i / 3), .imm = 8 * (i % 3)}, {.code = BPF_JMP | BPF_EXIT}};

		if (i / 3 == 0x18) {
			in[2] = in[1];
			in[1] = (struct bpf_insn){0};
		}
		if (run(in, i / 3 == 0x18 ? 3 : 2) && (!nr_codes || codes[nr_codes - 1] != i / 3))
			codes[nr_codes++] = (uint8_t)(i / 3);
	}
}

static uint64_t pointer(void *to)
{
	return below(16) ? (uintptr_t)to : 0;
}

/* A descriptor of the library's, mostly. */
static int fds[32];

static int any_fd(void)
{
	return below(16) ? fds[below(COUNT(fds))] : (int)any();
}

static long bpf_call(unsigned command)
{
	static const uint32_t sizes[] = {0, 1, 4, 4, 4, 8, 8, 13, 72, 300, 4096, 70000, -1u};
	static const uint32_t flags[] = {BPF_F_NO_PREALLOC, BPF_F_RDONLY, BPF_F_WRONLY, BPF_F_RDONLY_PROG,
					 BPF_F_MMAPABLE};
	static uint8_t key[1 << 17], value[1 << 23];
	struct bpf_insn in[MOST + 20] = {0};
	unsigned words = below(8) ? sizeof(union bpf_attr) / 8 : below(sizeof(union bpf_attr) / 8);
	union bpf_attr attr;

	for (size_t i = 0; i < sizeof(attr) / 4; i++)
		((uint32_t *)&attr)[i] = below(4) ? below(3) : (uint32_t)any();
	attr.map_fd = (uint32_t)any_fd(); /* the first of all structs */
	memcpy(key, (uint32_t[]){below(3), below(3)}, 8);
	memcpy(value, (int[]){any_fd()}, 4);
	if (command == BPF_MAP_CREATE) {
		attr.map_type = below(30);
		attr.key_size = sizes[below(COUNT(sizes))];
		attr.value_size = sizes[below(COUNT(sizes))];
		attr.max_entries = below(8) ? below(100) << 12 * below(2) : (uint32_t)any();
		attr.map_flags = below(2) ? 0 : flags[below(COUNT(flags))];
	} else if (command == BPF_PROG_LOAD) {
		attr.prog_type = (uint32_t[]){BPF_PROG_TYPE_TRACEPOINT, BPF_PROG_TYPE_PERF_EVENT, below(30)}[below(3)];
		attr.insn_cnt = below(2) ? random_program(in) : changed_program(in);
		attr.insns = pointer(in);
		attr.log_buf = pointer(value);
		attr.log_size = below(300);
		attr.fd_array = 0;
		for (unsigned i = 0; i < attr.insn_cnt; i++)
			if (in[i].code == 0x18 && in[i].src_reg)
				in[i].imm = any_fd();
	} else if (command == BPF_PROG_TEST_RUN) {
		attr.test.ctx_in = pointer(value);
	} else if (command == BPF_OBJ_GET_INFO_BY_FD) {
		attr.info.info = pointer(value);
	} else {
		attr.key = pointer(key);
		attr.value = pointer(value);
	}
	return syscall(SYS_bpf, command, below(64) ? &attr : NULL, 8 * words);
}

static long perf_call(void)
{
	struct perf_event_attr attr = {.type = below(8), .config = below(12), .freq = any() & 1};

	if (below(2)) {
		attr.type = PERF_TYPE_SOFTWARE;
		attr.config = below(2) ? PERF_COUNT_SW_CPU_CLOCK : PERF_COUNT_SW_BPF_OUTPUT;
	}
	attr.sample_period = below(2) ? 100000 + below(1000) : any() >> below(64);
	return syscall(SYS_perf_event_open, below(64) ? &attr : NULL, (int)any(), (int)any(), -1, 0ul);
}

static void any_call(void)
{
	static const unsigned requests[] = {PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_DISABLE,
					    PERF_EVENT_IOC_SET_BPF, PERF_EVENT_IOC_SET_BPF, PERF_EVENT_IOC_RESET};
	const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = page * (1 + below(10));
	int *fd = &fds[below(COUNT(fds))], made = -1;
	void *mapped;

	switch (below(8)) {
	case 0:
		made = (int)perf_call();
		break;
	case 1:
		ioctl(any_fd(), requests[below(COUNT(requests))], (void *)(intptr_t)any_fd());
		break;
	case 2:
		mapped = mmap(NULL, size, PROT_READ | (below(2) ? PROT_WRITE : 0), MAP_SHARED, fds[below(COUNT(fds))],
			      (off_t)(page * below(2)));
		if (mapped != MAP_FAILED)
			munmap(mapped, size);
		break;
	case 3:
		made = dup(fds[below(COUNT(fds))]);
		break;
	default:
		made = (int)bpf_call(below(4) ? below(8) : below(40));
	}
	if (made > 2) { /* results of 0 are no descriptors */
		close(*fd);
		*fd = made;
	}
}

int main(int argc, char **argv)
{
	unsigned long counts[3] = {0};
	time_t end = time(NULL) + atoi(argv[argc - 1]);
	struct bpf_insn in[MOST + 20];
	struct bp_ring *ring;

	state = 88172645463325252u ^ strtoull(argv[1], NULL, 0) * 0x9e3779b97f4a7c15u;
	bp_budget = 5000;
	bp_lock();
	make_maps();
	if (bp_ring_new(&ring) || bp_ring_map(ring, 2 * (size_t)sysconf(_SC_PAGESIZE)) ||
	    bp_map_set_ring(maps[5], 0, ring))
		abort();
	ring->is_enabled = 1;
	find_codes();
	memset(fds, -1, sizeof(fds));
	for (unsigned long i = 0; i % 256 || time(NULL) < end; i++) {
		memset(in, 0, sizeof(in));
		counts[run(in, below(2) ? random_program(in) : changed_program(in))]++;
		if (i % 1024 == 0)
			check_maps();
		if (i % 64 == 0) /* the tool takes what there is */
			memcpy(maps[6]->rings[0]->pages, maps[6]->rings[0]->pages + sysconf(_SC_PAGESIZE), 8);
		bp_ring_bells();
		bp_unlock();
		any_call();
		bp_lock();
	}
	bp_ring_put(ring);
	for (unsigned i = 0; i < COUNT(maps); i++)
		bp_map_put(maps[i]);
	bp_unlock();
	for (unsigned i = 0; i < COUNT(fds); i++)
		close(fds[i]);
	printf("%u codes, %lu not loaded, %lu ended early, %lu ran to their end\n", nr_codes, counts[0], counts[1],
	       counts[2]);
	return 0;
}
