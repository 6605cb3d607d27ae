/* Between the interpreter (engine.c) and the helper functions (helpers.c): a run, and what it may access. */
#ifndef UTRACEFS_BPF_HELPERS_H
#define UTRACEFS_BPF_HELPERS_H

#include "engine.h"

/* Newer than the headers of some distributions. */
#ifndef BPF_ATOMIC /* Linux 5.12 */
#define BPF_ATOMIC 0xc0
#define BPF_FETCH 0x01
#define BPF_XCHG (0xe0 | BPF_FETCH)
#define BPF_CMPXCHG (0xf0 | BPF_FETCH)
#endif
#ifndef BPF_PSEUDO_BTF_ID /* 5.10 */
#define BPF_PSEUDO_BTF_ID 3
#endif
#ifndef BPF_PSEUDO_FUNC /* 5.13 */
#define BPF_PSEUDO_FUNC 4
#endif
#ifndef BPF_PSEUDO_MAP_IDX /* 5.14 */
#define BPF_PSEUDO_MAP_IDX 5
#define BPF_PSEUDO_MAP_IDX_VALUE 6
#endif
#ifndef BPF_MEMSX /* 6.6 */
#define BPF_MEMSX 0x80
#endif

#define BP_FRAMES 8 /* MAX_CALL_FRAMES */
#define BP_RESERVATIONS 8

struct bp_instruction {
	const void *label; /* where the interpreter has its code */
	uint8_t dst, src;
	int16_t offset;
	int32_t imm;
};

struct bp_frame {
	uint64_t key; /* of an array, for the callback that has this frame */
	uint8_t stack[512];
};

/* Programs know maps and callbacks by numbers that are no addresses: these plus an index or instruction. */
#define BP_MAP_HANDLE (0xbad0a9ull << 32)
#define BP_CALLBACK_HANDLE (0xbad0cbull << 32)

/* The guess is the part of a map that the last access hit. */
enum { BP_CONTEXT, BP_GUESS, BP_STACK_PART, BP_RESERVED, BP_PARTS = BP_RESERVED + BP_RESERVATIONS };

struct bp_run {
	struct bp_program *program;
	const struct bp_record *record;
	int64_t budget;
	const char *why; /* set: the run ends */
	const struct bp_instruction *ended; /* where it does */
	int depth, nr_reservations;
	struct bp_part parts[BP_PARTS];
	struct bp_map *reserved_in[BP_RESERVATIONS];
};

extern struct bp_frame bp_frames[BP_FRAMES];

static inline int bp_inside(uint64_t address, uint64_t size, const struct bp_part *part)
{
	uint64_t offset = address - part->start;

	return offset < part->size && size <= part->size - offset;
}

/* Looks through all maps, for a guess, and reservations. */
int bp_find_part(struct bp_run *run, uint64_t address, uint64_t size, int is_write);
/* Ends the run for this access; 0. */
int bp_refuse(struct bp_run *run, uint64_t address, uint64_t size, int is_write);

static inline int bp_may(struct bp_run *run, uint64_t address, uint64_t size, int is_write)
{
	const struct bp_part *parts = run->parts;

	return (!is_write && bp_inside(address, size, &parts[BP_CONTEXT])) ||
	       (bp_inside(address, size, &parts[BP_GUESS]) && !(is_write && parts[BP_GUESS].is_read_only)) ||
	       bp_inside(address, size, &parts[BP_STACK_PART]) || bp_find_part(run, address, size, is_write);
}

/* r0 = the function(r1 .. r5). */
typedef uint64_t (*bp_helper)(struct bp_run *run, const uint64_t *r);

/* By number; NULL: there is none. */
extern const bp_helper bp_helpers[];
/* Whether there is one; if not, `why` says why, and name is "bpf_NAME", or "unknown". */
int bp_is_helper(uint32_t number, const char **name, const char **why);

/* A function of a program, with these r1 to r5. Look at run->why afterwards. */
uint64_t bp_call_back(struct bp_run *run, uint64_t handle, const uint64_t *r);

#endif
