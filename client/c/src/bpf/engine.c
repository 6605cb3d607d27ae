/* See engine.h; instructions.h has the instructions. */
#include "helpers.h"

#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BP_MAX_MAPS 64 /* MAX_USED_MAPS */
#define BP_STACK 512

struct bp_frame bp_frames[BP_FRAMES];
int32_t bp_budget = 1 << 22;

/* ---- running */

int bp_find_part(struct bp_run *run, uint64_t address, uint64_t size, int is_write)
{
	const struct bp_program *program = run->program;
	uint64_t start, part_size;
	int is_key, is_read_only;

	for (uint32_t i = 0; i < program->nr_maps; i++) {
		const struct bp_map *map = program->maps[i];

		if (bp_map_part(map, address, &start, &part_size, &is_key))
			continue;
		is_read_only = is_key || map->flags & BPF_F_RDONLY_PROG;
		if (!bp_inside(address, size, start, part_size) || (is_write && is_read_only))
			return 0;
		run->part = start;
		run->part_size = part_size;
		run->part_is_read_only = is_read_only;
		return 1;
	}
	/* Not remembered as the part: it ends with its submission. */
	for (int i = 0; i < run->nr_reservations; i++)
		if (bp_inside(address, size, (uint64_t)run->reservations[i].sample, run->reservations[i].size))
			return 1;
	return 0;
}

int bp_refuse(struct bp_run *run, uint64_t address, uint64_t size, int is_write)
{
	run->why = "";
	run->bad_address = address;
	run->bad_size = size;
	run->bad_is_write = is_write;
	return 0;
}

#define OP(name, ...) OP_##name,
#define SPECIAL(name, ...) OP_##name,
enum op {
#include "instructions.h"
	NR_OPS
};

#define D r[x->dst]
#define S r[x->src]
#define IMM x->imm
#define OFF x->offset
#define RUN goto *x->label
#define NEXT      \
	do {      \
		x++; \
		RUN; \
	} while (0)
/* Only backward jumps and calls cost something: without them a run is as long as its program. */
#define JUMP(distance)                             \
	do {                                       \
		int64_t far = (distance);          \
		x += far + 1;                      \
		if (far < 0) {                     \
			run->budget += far;        \
			if (run->budget < 0)       \
				goto ended;        \
		}                                  \
		RUN;                               \
	} while (0)
#define REFUSE(address, size, is_write)                     \
	do {                                                \
		bp_refuse(run, address, size, is_write);    \
		goto ended;                                 \
	} while (0)
#define END(text)                  \
	do {                       \
		run->why = (text); \
		goto ended;        \
	} while (0)

static const void *const *labels;
static const struct bp_instruction *last; /* where the last run ended */

static void set_depth(struct bp_run *run, int depth)
{
	run->depth = depth;
	run->stack_size = (uint64_t)(depth + 1) * sizeof(struct bp_frame);
}

#ifdef __clang__
#define BP_THREADED __attribute__((noinline))
#else
/* As gcc's manual advises for programs with computed gotos. */
#define BP_THREADED __attribute__((noinline, noclone, optimize("no-gcse")))
#endif

/* Direct threading: each instruction knows the place of its code. Without a run it only sets these places,
 * which are known only inside. */
BP_THREADED static uint64_t interpret(struct bp_run *run, const struct bp_instruction *x, uint64_t a,
				      uint64_t b, uint64_t c, uint64_t d)
{
#define OP(name, ...) [OP_##name] = &&name,
#define SPECIAL(name, ...) [OP_##name] = &&name,
	static const void *const places[] = {
#include "instructions.h"
	};
	struct {
		const struct bp_instruction *x;
		uint64_t registers[4];
	} callers[BP_FRAMES];
	uint64_t r[11] = {0, a, b, c, d};
	int nested = 0;

	if (!run) {
		labels = places;
		return 0;
	}
	r[10] = (uint64_t)(bp_frames[run->depth].stack + BP_STACK);
	RUN;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-local-typedefs"
#pragma GCC diagnostic ignored "-Wunused-variable"
#define OP(name, code, ...) name: __VA_ARGS__
#define SPECIAL(name, ...) name: __VA_ARGS__
#include "instructions.h"
#pragma GCC diagnostic pop
enter:
	if (run->depth + 1 == BP_FRAMES)
		END("calls of functions are nested deeper than 8");
	run->budget -= 16;
	if (run->budget < 0)
		goto ended;
	callers[nested].x = x;
	memcpy(callers[nested++].registers, r + 6, sizeof(callers->registers));
	set_depth(run, run->depth + 1);
	r[10] += sizeof(struct bp_frame);
	x += IMM + 1;
	RUN;
leave:
	if (!nested) {
		last = x;
		return r[0];
	}
	/* Forward jumps cost nothing, but a function may be called often. */
	nested--;
	run->budget -= x - callers[nested].x - callers[nested].x->imm;
	if (run->budget < 0)
		goto ended;
	x = callers[nested].x;
	memcpy(r + 6, callers[nested].registers, sizeof(callers->registers));
	set_depth(run, run->depth - 1);
	r[10] -= sizeof(struct bp_frame);
	NEXT;
ended:
	if (!run->why)
		run->why = "it ran too long";
	last = x;
	return 0;
}

uint64_t bp_call_back(struct bp_run *run, uint64_t handle, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	uint64_t value = 0;

	run->budget -= 16;
	if (handle >> 32 != BP_CALLBACK_HANDLE || (uint32_t)handle >= run->program->n)
		run->why = "a callback that is none of its functions";
	else if (run->depth + 1 == BP_FRAMES)
		run->why = "calls of functions are nested deeper than 8";
	else if (run->budget < 0)
		run->why = "it ran too long";
	else {
		set_depth(run, run->depth + 1);
		value = interpret(run, run->program->instructions + (uint32_t)handle, a, b, c, d);
		run->budget -= last - (run->program->instructions + (uint32_t)handle);
		set_depth(run, run->depth - 1);
	}
	return value;
}

static void describe(struct bp_program *program, const struct bp_run *run)
{
	char access[128] = "";

	if (!*run->why)
		snprintf(access, sizeof(access), "a %s of %llu bytes at %#llx, %s",
			 run->bad_is_write ? "write" : "read", (unsigned long long)run->bad_size,
			 (unsigned long long)run->bad_address,
			 run->bad_address < 4096 ? "a pointer that is NULL"
			 : run->bad_is_write	 ? "outside of the stack and the values of maps"
						 : "outside of the record, the stack and the values of maps");
	snprintf(program->fault, sizeof(program->fault), "instruction %u: %s%s",
		 (uint32_t)(last - program->instructions), run->why, access);
}

uint64_t bp_program_run(struct bp_program *program, const void *context, size_t size,
			const struct bp_record *record)
{
	struct bp_run run;
	uint64_t value;

	run.program = program;
	run.record = record;
	run.context = (uint64_t)context;
	run.context_size = size;
	run.stack = (uint64_t)bp_frames;
	run.part = run.part_size = 0;
	run.budget = bp_budget;
	run.why = NULL;
	set_depth(&run, 0);
	run.nr_reservations = 0;
	program->runs++;
	value = interpret(&run, program->instructions, (uint64_t)context, 0, 0, 0);
	while (run.nr_reservations) {
		const struct bp_reservation *open = &run.reservations[--run.nr_reservations];

		bp_ringbuf_commit(open->map, open->sample, 0, 1);
		if (!run.why)
			run.why = "a reservation in a ring buffer that is neither submitted nor discarded";
	}
	if (run.why && !program->faults++)
		describe(program, &run);
	return run.why ? 0 : value;
}

/* ---- loading */

#define OP(name, code, ...) [code] = OP_##name + 1,
#define SPECIAL(name, ...)
static const uint8_t op_of_code[256] = {
#include "instructions.h"
};

struct loading {
	struct bp_load *load;
	struct bp_program *program;
	uint32_t at;
};

__attribute__((format(printf, 2, 3))) static int refuse(struct loading *loading, const char *format, ...)
{
	struct bp_load *load = loading->load;
	va_list arguments;
	int n;

	va_start(arguments, format);
	n = snprintf(load->why, sizeof(load->why), "instruction %u: ", loading->at);
	vsnprintf(load->why + n, sizeof(load->why) - (size_t)n, format, arguments);
	va_end(arguments);
	return -EINVAL;
}

/* The operation by more than the code; -1: the code is enough, or wrong. */
static int special(const struct bpf_insn *in)
{
	int is_64 = BPF_CLASS(in->code) == BPF_ALU64, is_x = in->code & BPF_X, base = -1;

	if (BPF_CLASS(in->code) != BPF_ALU && !is_64)
		return -1;
	switch (BPF_OP(in->code)) {
	case BPF_END:
		base = is_64 ? OP_SWAP16 : is_x ? OP_BE16 : OP_LE16;
		if (is_64 && is_x)
			return -1;
		return in->imm == 16 ? base : in->imm == 32 ? base + 1 : in->imm == 64 ? base + 2 : -1;
	case BPF_MOV:
		if (!is_x)
			return -1;
		base = is_64 ? OP_MOVSX64_8 : OP_MOVSX32_8;
		return in->off == 8 ? base : in->off == 16 ? base + 1 : in->off == 32 && is_64 ? base + 2 : -1;
	case BPF_DIV:
	case BPF_MOD:
		base = BPF_OP(in->code) == BPF_DIV ? OP_SDIV64K : OP_SMOD64K;
		return in->off == 1 ? base + (is_64 ? 0 : 2) + (is_x ? 1 : 0) : -1;
	default:
		return -1;
	}
}

static int size_of(uint8_t code)
{
	return BPF_SIZE(code) == BPF_B ? 1 : BPF_SIZE(code) == BPF_H ? 2 : BPF_SIZE(code) == BPF_W ? 4 : 8;
}

static int check_atomic(struct loading *loading, const struct bpf_insn *in, uint8_t *writes)
{
	switch (in->imm) {
	case BPF_ADD | BPF_FETCH:
	case BPF_OR | BPF_FETCH:
	case BPF_AND | BPF_FETCH:
	case BPF_XOR | BPF_FETCH:
	case BPF_XCHG:
		*writes = in->src_reg;
		/* fall through */
	case BPF_ADD:
	case BPF_OR:
	case BPF_AND:
	case BPF_XOR:
	case BPF_CMPXCHG:
		break;
	default:
		return refuse(loading, "unknown atomic operation %#x", in->imm);
	}
	if (in->dst_reg == 10 && in->off % size_of(in->code))
		return refuse(loading, "an atomic operation at an address that is not aligned");
	return 0;
}

/* Chooses the operation and checks registers; targets of jumps are checked later. */
static int decode_plain(struct loading *loading, const struct bpf_insn *in, int *op)
{
	uint8_t class = BPF_CLASS(in->code), writes = 0;
	int is_store = class == BPF_ST || class == BPF_STX, is_access = is_store || class == BPF_LDX;
	int is_jump = class == BPF_JMP || class == BPF_JMP32;

	*op = special(in);
	if (*op < 0) {
		*op = op_of_code[in->code] - 1;
		if (*op < 0)
			return refuse(loading, "unknown opcode %02x", in->code);
		if ((class == BPF_ALU || class == BPF_ALU64) && in->off)
			return refuse(loading, "opcode %02x uses a reserved field", in->code);
	}
	if (in->dst_reg > 10 || in->src_reg > 10)
		return refuse(loading, "R%u is invalid", in->dst_reg > 10 ? in->dst_reg : in->src_reg);
	if (class == BPF_STX && BPF_MODE(in->code) == BPF_ATOMIC) {
		if (check_atomic(loading, in, &writes))
			return -EINVAL;
	} else if (!is_store && !is_jump) {
		writes = in->dst_reg;
	}
	if (writes == 10)
		return refuse(loading, "frame pointer is read only");
	if (is_access && (is_store ? in->dst_reg : in->src_reg) == 10) {
		if (in->off < -BP_STACK || in->off + size_of(in->code) > 0)
			return refuse(loading, "the stack has %d bytes", BP_STACK);
		if (BPF_MODE(in->code) != BPF_ATOMIC)
			++*op;
	}
	return 0;
}

static int check_target(struct loading *loading, int64_t target)
{
	const struct bpf_insn *all = loading->load->instructions;
	uint32_t i;

	if (target < 0 || target >= loading->load->n)
		return refuse(loading, "jump out of range to %lld", (long long)target);
	/* Second halves of BPF_LD_IMM64 have the code 0, which no instruction has. */
	i = (uint32_t)target;
	if (all[i].code == 0)
		return refuse(loading, "jump into the middle of an instruction, to %u", i);
	return 0;
}

static int add_map(struct loading *loading, int fd, struct bp_map **map, uint32_t *index)
{
	struct bp_program *program = loading->program;

	*map = loading->load->map_of ? loading->load->map_of(fd) : NULL;
	if (!*map) {
		refuse(loading, "fd %d is not pointing to valid bpf_map", fd);
		return -EBADF;
	}
	for (*index = 0; *index < program->nr_maps; ++*index)
		if (program->maps[*index] == *map)
			return 0;
	if (*index == BP_MAX_MAPS) {
		refuse(loading, "a program has at most %d maps", BP_MAX_MAPS);
		return -E2BIG;
	}
	bp_map_get(*map);
	program->maps[program->nr_maps++] = *map;
	return 0;
}

static void set_wide(struct bp_instruction *out, uint64_t value)
{
	out[0].imm = (int32_t)value;
	out[1].imm = (int32_t)(value >> 32);
}

static int decode_wide(struct loading *loading, const struct bpf_insn *in, struct bp_instruction *out)
{
	int is_index = in->src_reg == BPF_PSEUDO_MAP_IDX || in->src_reg == BPF_PSEUDO_MAP_IDX_VALUE, error;
	struct bp_map *map;
	uint32_t index;

	switch (in->src_reg) {
	case 0:
		set_wide(out, (uint64_t)(uint32_t)in[1].imm << 32 | (uint32_t)in->imm);
		return 0;
	case BPF_PSEUDO_FUNC:
		set_wide(out, (uint64_t)BP_CALLBACK_HANDLE << 32 | (loading->at + 1 + (uint32_t)in->imm));
		return check_target(loading, (int64_t)loading->at + 1 + in->imm);
	case BPF_PSEUDO_MAP_FD:
	case BPF_PSEUDO_MAP_VALUE:
	case BPF_PSEUDO_MAP_IDX:
	case BPF_PSEUDO_MAP_IDX_VALUE:
		break;
	default:
		return refuse(loading, "variables of the kernel are not there for programs on user events");
	}
	if (is_index && (!loading->load->fd_array || in->imm < 0))
		return refuse(loading, "a map by its index, without fd_array");
	error = add_map(loading, is_index ? loading->load->fd_array[in->imm] : in->imm, &map, &index);
	if (error)
		return error;
	set_wide(out, (uint64_t)BP_MAP_HANDLE << 32 | index);
	if (in->src_reg == BPF_PSEUDO_MAP_VALUE || in->src_reg == BPF_PSEUDO_MAP_IDX_VALUE) {
		if (map->type != BPF_MAP_TYPE_ARRAY || (uint32_t)in[1].imm >= map->value_size)
			return refuse(loading, "no such address in the value of a map");
		set_wide(out, (uint64_t)(map->entries + (uint32_t)in[1].imm));
	}
	return 0;
}

static int decode_call(struct loading *loading, const struct bpf_insn *in, int *op)
{
	const char *name, *why;

	if (in->src_reg == BPF_PSEUDO_CALL) {
		*op = OP_CALL_LOCAL;
		return check_target(loading, (int64_t)loading->at + 1 + in->imm);
	}
	if (in->src_reg)
		return refuse(loading, "functions of the kernel (kfuncs) are not there for programs on user events");
	if (!bp_is_helper((uint32_t)in->imm, &name, &why))
		return refuse(loading, "unknown func %s#%d: %s", name, in->imm, why);
	return 0;
}

static int decode(struct loading *loading)
{
	const struct bpf_insn *in = loading->load->instructions + loading->at;
	struct bp_instruction *out = loading->program->instructions + loading->at;
	uint8_t class = BPF_CLASS(in->code);
	int op, error = decode_plain(loading, in, &op);

	if (error)
		return error;
	*out = (struct bp_instruction){.dst = in->dst_reg, .src = in->src_reg, .offset = in->off, .imm = in->imm};
	if (in->code == (BPF_JMP | BPF_CALL)) {
		error = decode_call(loading, in, &op);
	} else if (op == OP_LD_IMM64) {
		if (loading->at + 1 == loading->load->n || in[1].code || in[1].dst_reg || in[1].src_reg || in[1].off)
			return refuse(loading, "invalid bpf_ld_imm64 insn");
		error = decode_wide(loading, in, out);
		out[1].label = labels[OP_EXIT]; /* never reached */
		loading->at++;
	} else if ((class == BPF_JMP || class == BPF_JMP32) && op != OP_EXIT) {
		error = check_target(loading, (int64_t)loading->at + 1 + (op == OP_GOTOL ? in->imm : in->off));
	}
	out->label = labels[op];
	return error;
}

static int decode_all(struct loading *loading)
{
	struct bp_load *load = loading->load;
	uint8_t code;
	int error;

	if (!load->n)
		return refuse(loading, "a program without instructions");
	if (load->n > BP_MAX_INSTRUCTIONS)
		return -E2BIG;
	loading->program->instructions = calloc(load->n, sizeof(*loading->program->instructions));
	loading->program->maps = calloc(BP_MAX_MAPS, sizeof(*loading->program->maps));
	if (!loading->program->instructions || !loading->program->maps)
		return -ENOMEM;
	for (; loading->at < load->n; loading->at++) {
		error = decode(loading);
		if (error)
			return error;
	}
	code = load->instructions[load->n - 1].code;
	loading->at = load->n - 1;
	return code == (BPF_JMP | BPF_EXIT) || code == (BPF_JMP | BPF_JA) || code == (BPF_JMP32 | BPF_JA)
		       ? 0
		       : refuse(loading, "last insn is not an exit or jmp");
}

int bp_program_load(struct bp_program **made, struct bp_load *load)
{
	static uint32_t ids;
	struct loading loading = {load, calloc(1, sizeof(*loading.program)), 0};
	int error;

	*load->why = 0;
	if (!loading.program)
		return -ENOMEM;
	interpret(NULL, NULL, 0, 0, 0, 0);
	*loading.program = (struct bp_program){.n = load->n, .type = load->type, .id = ++ids, .references = 1};
	snprintf(loading.program->name, sizeof(loading.program->name), "%s", load->name ? load->name : "");
	error = decode_all(&loading);
	if (load->log && load->log_size)
		snprintf(load->log, load->log_size, "%s%s", load->why, *load->why ? "\n" : "");
	if (error)
		bp_program_put(loading.program);
	else
		*made = loading.program;
	return error;
}

void bp_program_get(struct bp_program *program)
{
	program->references++;
}

void bp_program_put(struct bp_program *program)
{
	if (--program->references)
		return;
	for (uint32_t i = 0; i < program->nr_maps; i++)
		bp_map_put(program->maps[i]);
	free(program->maps);
	free(program->instructions);
	free(program);
}
