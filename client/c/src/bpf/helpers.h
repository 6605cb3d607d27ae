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

/* Programs know maps and callbacks by numbers that are no addresses: these, and an index or instruction. */
#define BP_MAP_HANDLE 0xbad0a9u
#define BP_CALLBACK_HANDLE 0xbad0cbu

struct bp_run {
	struct bp_program *program;
	const struct bp_record *record;
	uint64_t context, context_size;
	uint64_t stack, stack_size; /* the frames in use */
	/* The part of a map or the reservation that the last access hit; a guess for the next one. */
	uint64_t part, part_size;
	int part_is_read_only;
	int depth;
	int64_t budget;
	const char *why; /* set: the run ends; "" for the access below */
	uint64_t bad_address, bad_size;
	int bad_is_write;
	int nr_reservations;
	struct bp_reservation {
		struct bp_map *map;
		void *sample;
		uint64_t size;
	} reservations[BP_RESERVATIONS];
};

extern struct bp_frame bp_frames[BP_FRAMES];

static inline int bp_inside(uint64_t address, uint64_t size, uint64_t start, uint64_t start_size)
{
	uint64_t offset = address - start;

	return offset < start_size && size <= start_size - offset;
}

/* Looks through all maps and reservations. If it returns 0, `part` is not the one. */
int bp_find_part(struct bp_run *run, uint64_t address, uint64_t size, int is_write);
/* Ends the run for this access; 0. */
int bp_refuse(struct bp_run *run, uint64_t address, uint64_t size, int is_write);

static inline int bp_may(struct bp_run *run, uint64_t address, uint64_t size, int is_write)
{
	return (!is_write && bp_inside(address, size, run->context, run->context_size)) ||
	       (bp_inside(address, size, run->part, run->part_size) && !(is_write && run->part_is_read_only)) ||
	       bp_inside(address, size, run->stack, run->stack_size) ||
	       bp_find_part(run, address, size, is_write);
}

/* r0 = the function(r1 .. r5). */
typedef uint64_t (*bp_helper)(struct bp_run *run, const uint64_t *r);

/* By number; NULL: there is none. */
extern const bp_helper bp_helpers[];
/* Whether there is one; if not, `why` says why, and name is "bpf_NAME", or "unknown". */
int bp_is_helper(uint32_t number, const char **name, const char **why);

/* A callback of a program, with up to 4 arguments. Look at run->why afterwards. */
uint64_t bp_call_back(struct bp_run *run, uint64_t handle, uint64_t a, uint64_t b, uint64_t c, uint64_t d);

#endif
