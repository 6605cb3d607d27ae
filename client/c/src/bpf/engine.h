/*
 * An interpreter of eBPF (RFC 9669) for programs on the records of events, without a verifier. Loading checks
 * what an instruction alone tells; running checks that each access is inside the context (read only), the
 * stack, a map's key (read only) or value, or a ring buffer's reservation of this run. A program that does
 * anything else, or runs too long, ends with a message in `fault`. Calls under bp_lock().
 */
#ifndef UTRACEFS_BPF_ENGINE_H
#define UTRACEFS_BPF_ENGINE_H

#include "maps.h"

/* Of one run, some 5 ms: backward jumps cost the instructions that they go back, calls 16 and one for each
 * 16 bytes that a helper function handles. */
extern int32_t bp_budget;
/* The kernel's BPF_COMPLEXITY_LIMIT_INSNS. */
#define BP_MAX_INSTRUCTIONS 1000000u

/* Without a record (BEGIN, END, interval, PROG_TEST_RUN): the tool's own process and the present time. */
struct bp_record {
	uint64_t time_ns; /* CLOCK_MONOTONIC; bpf_ktime_get_ns(), bpf_jiffies64() */
	uint64_t boot_ns; /* CLOCK_BOOTTIME; bpf_ktime_get_boot_ns() */
	int32_t pid, tid; /* of the writer; pid is the process (tgid) */
	uint32_t cpu;
	char comm[16];
};

struct bp_load {
	const struct bpf_insn *instructions;
	uint32_t n;
	uint32_t type;	       /* BPF_PROG_TYPE_; only told in messages */
	const char *name;      /* for messages */
	const int32_t *fd_array; /* of BPF_PROG_LOAD, or NULL */
	/* The map of a descriptor of the tool, or NULL. */
	struct bp_map *(*map_of)(int fd);
	/* Set if loading failed: one sentence, like those of the kernel's verifier, without a newline. */
	char why[256];
};

struct bp_program {
	uint32_t n, type, id, references;
	char name[BPF_OBJ_NAME_LEN];
	uint64_t runs, faults;
	char fault[256]; /* why the first run that did so ended early, without a newline; "" */
	struct bp_map **maps;
	uint32_t nr_maps;
	struct bp_instruction *instructions;
};

/* One reference. 0; -EINVAL or -EBADF (see why), -E2BIG, -ENOMEM. */
int bp_program_load(struct bp_program **program, struct bp_load *load);
void bp_program_put(struct bp_program *program);

/* The value of r0; 0 if it ended early. The context is only read, and aligned to 8 bytes. */
uint64_t bp_program_run(struct bp_program *program, const void *context, size_t size,
			const struct bp_record *record);

#endif
