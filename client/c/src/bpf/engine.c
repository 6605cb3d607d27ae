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
	struct bp_part part;

	for (uint32_t i = 0; i < program->nr_maps; i++) {
		if (bp_map_part(program->maps[i], address, &part))
			continue;
		if (!bp_inside(address, size, &part) || (is_write && part.is_read_only))
			return 0;
		run->parts[BP_GUESS] = part;
		return 1;
	}
	/* Never the guess: they end with their submission. */
	for (int i = 0; i < run->nr_reservations; i++)
		if (bp_inside(address, size, &run->parts[BP_RESERVED + i]))
			return 1;
	return 0;
}

int bp_refuse(struct bp_run *run, uint64_t address, uint64_t size, int is_write)
{
	static char text[160];

	run->why = text;
	if (!run->program->faults) /* else nobody reads it */
		snprintf(text, sizeof(text), "a %s of %llu bytes at %#llx, %s", is_write ? "write" : "read",
			 (unsigned long long)size, (unsigned long long)address,
			 address < 4096 ? "a pointer that is NULL"
			 : is_write	? "outside of the stack and the values of maps"
					: "outside of the record, the stack and the values of maps");
	return 0;
}

#define OP(name, ...) OP_##name,
enum op {
#include "instructions.h"
	NR_OPS
};

#define FUSED 253 /* variants of no instruction */
#define STACK 254
#define BACK 255
#define UNALIGNED "an atomic operation at an address that is not aligned"
#define TOO_LONG "it ran too long"
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
/* Only this and calls cost something: without them a run is as long as its program. */
#define GO_BACK(distance)                    \
	do {                                 \
		run->budget += (distance);   \
		if (run->budget < 0)         \
			goto ended;          \
		x += (distance);             \
	} while (0)

static const void *const *labels;
static const struct bp_instruction *last; /* of a function that has returned */

#ifdef __clang__
#define BP_THREADED __attribute__((noinline))
#else
/* As gcc's manual advises for programs with computed gotos. */
#define BP_THREADED __attribute__((noinline, noclone, optimize("no-gcse")))
#endif

/* Direct threading: each instruction knows the place of its code. Without a run it only sets these places,
 * which are known only inside. */
BP_THREADED static uint64_t interpret(struct bp_run *run, const struct bp_instruction *x, uint64_t r1,
				      uint64_t r2, uint64_t r3, uint64_t r4, uint64_t r5)
{
#define OP(name, ...) [OP_##name] = &&name,
	static const void *const places[] = {
#include "instructions.h"
	};
	uint64_t r[11];

	if (!run) {
		labels = places;
		return 0;
	}
	/* One by one: gcc's way to clear an array takes as long as ten instructions. */
	r[0] = r[6] = r[7] = r[8] = r[9] = 0;
	r[1] = r1, r[2] = r2, r[3] = r3, r[4] = r4, r[5] = r5;
	r[10] = (uint64_t)(bp_frames[run->depth].stack + BP_STACK);
	RUN;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-local-typedefs"
#pragma GCC diagnostic ignored "-Wunused-variable"
#define OP(name, code, variant, ...) name: __VA_ARGS__
#include "instructions.h"
#pragma GCC diagnostic pop
ended:
	if (!run->why)
		run->why = TOO_LONG;
	if (!run->ended)
		run->ended = x;
	return 0;
}

static void set_depth(struct bp_run *run, int depth)
{
	run->depth = depth;
	run->parts[BP_STACK_PART].size = (uint64_t)(depth + 1) * sizeof(struct bp_frame);
}

uint64_t bp_call_back(struct bp_run *run, uint64_t handle, const uint64_t *r)
{
	const struct bp_instruction *begin;
	uint64_t value = 0;

	run->budget -= 16;
	if (handle - BP_CALLBACK_HANDLE >= run->program->n) {
		run->why = "a callback that is none of its functions";
	} else if (run->depth + 1 == BP_FRAMES) {
		run->why = "calls of functions are nested deeper than 8";
	} else if (run->budget < 0) {
		run->why = TOO_LONG;
	} else {
		begin = run->program->instructions + (handle - BP_CALLBACK_HANDLE);
		set_depth(run, run->depth + 1);
		value = interpret(run, begin, r[1], r[2], r[3], r[4], r[5]);
		/* Forward jumps cost nothing, but a function may be called often. */
		if (!run->why)
			run->budget -= last - begin;
		set_depth(run, run->depth - 1);
	}
	return value;
}

uint64_t bp_program_run(struct bp_program *program, const void *context, size_t size,
			const struct bp_record *record)
{
	struct bp_run run;
	uint64_t value;

	run.program = program;
	run.record = record;
	run.parts[BP_CONTEXT] = (struct bp_part){(uint64_t)context, size, 1};
	run.parts[BP_GUESS].size = 0;
	run.parts[BP_STACK_PART] = (struct bp_part){(uint64_t)bp_frames, 0, 0};
	run.budget = bp_budget;
	run.why = NULL;
	run.ended = NULL;
	run.nr_reservations = 0;
	set_depth(&run, 0);
	program->runs++;
	value = interpret(&run, program->instructions, (uint64_t)context, 0, 0, 0, 0);
	while (run.nr_reservations) {
		const int i = --run.nr_reservations;

		bp_ringbuf_commit(run.reserved_in[i], (void *)run.parts[BP_RESERVED + i].start, 0, 1);
		if (!run.why) {
			run.why = "a reservation in a ring buffer that is neither submitted nor discarded";
			run.ended = last;
		}
	}
	if (run.why && !program->faults++)
		snprintf(program->fault, sizeof(program->fault), "instruction %u: %s",
			 (uint32_t)(run.ended - program->instructions), run.why);
	return run.why ? 0 : value;
}

/* ---- loading */

#define OP(name, code, variant, ...) [OP_##name] = {code, variant},
static const struct {
	uint8_t code, variant;
} rows[] = {
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

/* The target of a jump or call. Second halves of BPF_LD_IMM64 have the code 0, which no instruction has. */
static int check_target(struct loading *loading, int64_t distance)
{
	int64_t target = loading->at + 1 + distance;

	if (target < 0 || target >= loading->load->n)
		return refuse(loading, "jump out of range to %lld", (long long)target);
	if (loading->load->instructions[target].code == 0)
		return refuse(loading, "jump into the middle of an instruction, to %lld", (long long)target);
	return 0;
}

/* Whether an operation does it together with those behind it, which are checked when their turn comes. */
static int is_fused(const struct bpf_insn *in, uint32_t count)
{
	const uint8_t to = in->dst_reg, mov = BPF_ALU64 | BPF_MOV | BPF_K;

	if (count < 2)
		return 0;
	if (in->code == (BPF_JMP | BPF_JGT | BPF_K))
		return in->off == 1 && in[1].code == mov;
	if (in->off)
		return 0;
	if (in->code == (BPF_ALU64 | BPF_MOV | BPF_X))
		return in[1].code == (BPF_ALU64 | BPF_ADD | BPF_K) && in[1].dst_reg == to;
	return count >= 5 && in->code == mov && in->imm == 1 &&
	       in[1].code == (BPF_JMP | BPF_JGT | BPF_K) && in[1].off == 1 && in[1].dst_reg != to &&
	       in[2].code == in->code && in[2].dst_reg == to && in[2].imm == 0 &&
	       in[3].code == (BPF_ALU64 | BPF_LSH | BPF_K) && in[3].dst_reg == to &&
	       in[4].code == (BPF_ALU64 | BPF_RSH | BPF_X) && in[4].src_reg == to && in[4].dst_reg == in[1].dst_reg;
}

/* Chooses the operation, with all checks of a single instruction but those of its target. -EINVAL. */
static int choose(struct loading *loading, const struct bpf_insn *in)
{
	static const uint8_t sizes[] = {[BPF_W >> 3] = 4, [BPF_H >> 3] = 2, [BPF_B >> 3] = 1, [BPF_DW >> 3] = 8};
	uint8_t class = BPF_CLASS(in->code), writes = 0, size = sizes[BPF_SIZE(in->code) >> 3];
	int is_store = class == BPF_ST || class == BPF_STX, is_access = is_store || class == BPF_LDX;
	int is_atomic = class == BPF_STX && BPF_MODE(in->code) == BPF_ATOMIC;
	int is_call = in->code == (BPF_JMP | BPF_CALL), is_jump = class == BPF_JMP || class == BPF_JMP32;
	int of_stack = is_access && (is_store ? in->dst_reg : in->src_reg) == 10, op = 0, variant = 0;

	if (is_atomic)
		variant = in->imm;
	else if (is_access)
		variant = of_stack ? STACK : 0;
	else if (is_call)
		variant = in->src_reg;
	else if (is_jump && (in->code == (BPF_JMP32 | BPF_JA) ? in->imm : in->off) < 0)
		variant = BACK;
	else if (is_fused(in, loading->load->n - loading->at))
		variant = FUSED;
	else if (class == BPF_ALU || class == BPF_ALU64)
		variant = BPF_OP(in->code) == BPF_END ? in->imm : in->off;
	if (is_call && in->src_reg > BPF_PSEUDO_CALL)
		return refuse(loading, "functions of the kernel (kfuncs) are not there for programs on user events");
	while (op < NR_OPS && (rows[op].code != in->code || rows[op].variant != variant))
		op++;
	if (op == NR_OPS)
		return refuse(loading, "unknown opcode %02x (offset %d, immediate %d)", in->code, in->off, in->imm);
	if (in->dst_reg > 10 || in->src_reg > 10)
		return refuse(loading, "R%u is invalid", in->dst_reg > 10 ? in->dst_reg : in->src_reg);
	if (is_atomic)
		writes = in->imm & BPF_FETCH && in->imm != BPF_CMPXCHG ? in->src_reg : 0;
	else if (!is_store && !is_jump)
		writes = in->dst_reg;
	if (writes == 10)
		return refuse(loading, "frame pointer is read only");
	if (of_stack && (in->off < -BP_STACK || in->off + size > 0))
		return refuse(loading, "the stack has %d bytes", BP_STACK);
	if (is_atomic && of_stack && in->off % size)
		return refuse(loading, UNALIGNED);
	return op;
}

/* The program's index of a map. -EBADF, -E2BIG. */
static int index_of(struct loading *loading, int fd)
{
	struct bp_program *program = loading->program;
	struct bp_map *map = loading->load->map_of ? loading->load->map_of(fd) : NULL;
	uint32_t i = 0;

	if (!map) {
		refuse(loading, "fd %d is not pointing to valid bpf_map", fd);
		return -EBADF;
	}
	while (i < program->nr_maps && program->maps[i] != map)
		i++;
	if (i == BP_MAX_MAPS) {
		refuse(loading, "a program has at most %d maps", BP_MAX_MAPS);
		return -E2BIG;
	}
	if (i == program->nr_maps) {
		map->references++;
		program->maps[program->nr_maps++] = map;
	}
	return (int)i;
}

/* BPF_LD_IMM64 of two instructions. */
static int decode_wide(struct loading *loading, const struct bpf_insn *in, uint64_t *value)
{
	int is_index = in->src_reg == BPF_PSEUDO_MAP_IDX || in->src_reg == BPF_PSEUDO_MAP_IDX_VALUE, i;
	const struct bp_map *map;

	if (loading->at + 1 == loading->load->n || in[1].code || in[1].dst_reg || in[1].src_reg || in[1].off)
		return refuse(loading, "invalid bpf_ld_imm64 insn");
	*value = (uint64_t)(uint32_t)in[1].imm << 32 | (uint32_t)in->imm;
	if (in->src_reg == 0)
		return 0;
	if (in->src_reg == BPF_PSEUDO_FUNC) {
		*value = BP_CALLBACK_HANDLE + loading->at + 1 + (uint32_t)in->imm;
		return check_target(loading, in->imm);
	}
	if (in->src_reg == BPF_PSEUDO_BTF_ID || in->src_reg > BPF_PSEUDO_MAP_IDX_VALUE)
		return refuse(loading, "variables of the kernel are not there for programs on user events");
	if (is_index && (!loading->load->fd_array || in->imm < 0))
		return refuse(loading, "a map by its index, without fd_array");
	i = index_of(loading, is_index ? loading->load->fd_array[in->imm] : in->imm);
	if (i < 0)
		return i;
	*value = BP_MAP_HANDLE + (uint64_t)i;
	if (in->src_reg == BPF_PSEUDO_MAP_FD || in->src_reg == BPF_PSEUDO_MAP_IDX)
		return 0;
	map = loading->program->maps[i];
	if (map->type != BPF_MAP_TYPE_ARRAY || (uint32_t)in[1].imm >= map->value_size)
		return refuse(loading, "no such address in the value of a map");
	*value = (uint64_t)(map->entries + (uint32_t)in[1].imm);
	return 0;
}

static int decode(struct loading *loading)
{
	const struct bpf_insn *in = loading->load->instructions + loading->at;
	struct bp_instruction *out = loading->program->instructions + loading->at;
	const char *name, *why;
	int op = choose(loading, in), error = 0;
	uint64_t value = 0;

	if (op < 0)
		return op;
	*out = (struct bp_instruction){labels[op], in->dst_reg, in->src_reg, in->off, in->imm};
	if (op == OP_CALL) {
		if (!bp_is_helper((uint32_t)in->imm, &name, &why))
			return refuse(loading, "unknown func %s#%d: %s", name, in->imm, why);
	} else if (op == OP_LD_IMM64) {
		error = decode_wide(loading, in, &value);
		if (!error) /* else there may be no second one */
			out[1].label = (const void *)value;
		loading->at += !error;
	} else if (op != OP_EXIT && (BPF_CLASS(in->code) == BPF_JMP || BPF_CLASS(in->code) == BPF_JMP32)) {
		error = check_target(loading, op == OP_CALL_LOCAL || in->code == (BPF_JMP32 | BPF_JA) ? in->imm : in->off);
	}
	return error;
}

static int decode_all(struct loading *loading)
{
	struct bp_load *load = loading->load;
	uint8_t code;
	int error = 0;

	if (!load->n)
		return refuse(loading, "a program without instructions");
	if (load->n > BP_MAX_INSTRUCTIONS)
		return -E2BIG;
	loading->program->instructions = calloc(load->n, sizeof(*loading->program->instructions));
	loading->program->maps = calloc(BP_MAX_MAPS, sizeof(*loading->program->maps));
	if (!loading->program->instructions || !loading->program->maps)
		return -ENOMEM;
	for (; loading->at < load->n && !error; loading->at += !error)
		error = decode(loading);
	if (error)
		return error;
	code = load->instructions[--loading->at].code;
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
	interpret(NULL, NULL, 0, 0, 0, 0, 0);
	*loading.program = (struct bp_program){.n = load->n, .type = load->type, .id = ++ids, .references = 1};
	snprintf(loading.program->name, sizeof(loading.program->name), "%s", load->name ? load->name : "");
	error = decode_all(&loading);
	if (error)
		bp_program_put(loading.program);
	else
		*made = loading.program;
	return error;
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
