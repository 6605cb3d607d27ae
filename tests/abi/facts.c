/* facts TREE [NAME] - facts that the kernel's own tests of user_events check: registering, writing,
 * validating, flags, bits in words of both sizes, children and threads. Each fact uses events of its own.
 */
#define _GNU_SOURCE
#include "abi.h"

#include <pthread.h>
#include <sched.h>

static uint64_t wide;

static int event_exists(const char *name)
{
	char line[256];

	snprintf(line, sizeof(line), "\nu:%s", name);
	const char *text = text_of("dynamic_events");
	const char *found = strncmp(text, line + 1, strlen(line) - 1) ? strstr(text, line) : text - 1;

	return found && strchr(" \n", found[strlen(line)]);
}

static int delete(int fd, const char *name)
{
	return ioctl(fd, DIAG_IOCSDEL, name);
}

static void register_events(void)
{
	uint32_t other = 0;
	int fd = open_data(), second = open_data();

	CHECK(fd >= 0 && second >= 0);
	CHECK(reg_event(fd, "r_event u32 field1; u32 field2", &word, 4, 31) == 0);
	CHECK(word == 0);
	/* The same bit twice; another bit or word gives the same index. */
	FAILS(EADDRINUSE, reg_event(fd, "r_event u32 field1; u32 field2", &word, 4, 31));
	CHECK(reg_event(fd, "r_event u32 field1;u32 field2;", &word, 4, 30) == 0);
	CHECK(reg_event(fd, "r_event u32 field1; u32 field2", &other, 4, 31) == 0);
	CHECK(reg_event(fd, "r_other", &other, 4, 0) == 1);
	CHECK(reg_event(second, "r_other", &other, 4, 1) == 0);
	FAILS(EADDRINUSE, reg_event(fd, "r_event u32 field1", &other, 4, 2));
	FAILS(EINVAL, reg_event(fd, "r_bad badtype field", &other, 4, 2));
	FAILS(EBUSY, delete(fd, "r_event"));
	CHECK(unreg_word(fd, &word, 31) == 0);
	FAILS(ENOENT, unreg_word(fd, &word, 31));
	CHECK(unreg_word(second, &word, 30) == 0); /* any descriptor: the word is the process's */
	CHECK(unreg_word(fd, &other, 31) == 0);
	CHECK(unreg_word(fd, &other, 0) == 0);
	CHECK(unreg_word(fd, &other, 1) == 0);
	FAILS(EBUSY, delete(second, "r_event")); /* the file holds it */
	close(fd);
	CHECK(EVENTUALLY(!event_exists("r_event")));
	CHECK(event_exists("r_other")); /* the second file does */
	close(second);
	CHECK(EVENTUALLY(!event_exists("r_other")));
}

static void write_events(void)
{
	uint32_t payload[2] = {0x11, 0x22};
	int fd = open_data();
	long index;

	FAILS(ENOENT, write_record(fd, 0, payload, 8));
	index = reg_event(fd, "w_event u32 a; u32 b", &word, 4, 0);
	CHECK(index == 0);
	FAILS(EBADF, write_record(fd, index, payload, 8));
	CHECK(enable("w_event", 1) == 0);
	CHECK(EVENTUALLY(word == 1));
	CHECK(strstr(text_of("user_events_status"), "w_event # Used by ftrace\n"));
	CHECK(write_record(fd, index, payload, 8) == 12);
	FAILS(EINVAL, write_record(fd, -1, payload, 8));
	FAILS(ENOENT, write_record(fd, 1, payload, 8));
	FAILS(EINVAL, write_record(fd, index, payload, 7));
	FAILS(EFAULT, write(fd, payload, 3));
	CHECK(strstr(text_of("trace"), "w_event: a=0x11 (17) b=0x22 (34)\n"));
	CHECK(enable("w_event", 0) == 0);
	CHECK(EVENTUALLY(word == 0));
	FAILS(EBADF, write_record(fd, index, payload, 8));
	CHECK(unreg_word(fd, &word, 0) == 0);
	close(fd);
}

/* There is no other position than 0. */
static void write_position(void)
{
	uint32_t record[2] = {0, 5};
	int fd = open_data();

	CHECK(reg_event(fd, "wp_event u32 a", &word, 4, 0) == 0);
	CHECK(enable("wp_event", 1) == 0 && EVENTUALLY(word == 1));
	CHECK(pwrite(fd, record, 8, 0) == 8);
	CHECK(write(fd, record, 8) == 8 && write(fd, record, 8) == 8);
	FAILS(EFAULT, pwrite(fd, record, 8, 4));
	CHECK(enable("wp_event", 0) == 0 && unreg_word(fd, &word, 0) == 0);
	close(fd);
}

static void write_empty_events(void)
{
	int fd = open_data();
	uint32_t index = (uint32_t)reg_event(fd, "we_event", &word, 4, 0);

	CHECK(index == 0);
	CHECK(enable("we_event", 1) == 0);
	CHECK(EVENTUALLY(word == 1));
	CHECK(write(fd, &index, 4) == 4);
	CHECK(strstr(text_of("trace"), "we_event:No fields found\n"));
	CHECK(enable("we_event", 0) == 0 && unreg_word(fd, &word, 0) == 0);
	close(fd);
}

static void write_fault(void)
{
	unsigned char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = open_data();
	long index = reg_event(fd, "wf_event u64 a", &word, 4, 0);

	CHECK(index == 0 && enable("wf_event", 1) == 0 && EVENTUALLY(word == 1));
	/* Untouched pages read as zeros, also after they were returned. */
	CHECK(write_record(fd, index, pages, 8) == 12);
	pages[0] = 1;
	madvise(pages, PAGE, MADV_DONTNEED);
	CHECK(write_record(fd, index, pages, 8) == 12);
	CHECK(write_record(fd, index, pages + PAGE - 4, 8) == 12);
	CHECK(!strstr(text_of("trace"), "wf_event: a=0x1 "));
	CHECK(enable("wf_event", 0) == 0 && unreg_word(fd, &word, 0) == 0);
	munmap(pages, 2 * PAGE);
	close(fd);
}

static void write_validator(void)
{
	struct {
		uint32_t loc;
		char text[8];
	} rel = {.loc = 6 << 16, .text = "hello"};
	int fd = open_data();
	long index = reg_event(fd, "wv_event __rel_loc char[] data", &word, 4, 0);
	long absolute = reg_event(fd, "wv_data __data_loc char[] data", &word, 4, 1);

	CHECK(index == 0 && absolute == 1);
	CHECK(enable("wv_event", 1) == 0 && enable("wv_data", 1) == 0 && EVENTUALLY(word == 3));
	CHECK(write_record(fd, index, &rel, 10) == 14);
	CHECK(write_record(fd, index, &rel, 12) == 16);
	FAILS(EFAULT, write_record(fd, index, &rel, 9)); /* ends behind the record */
	rel.loc = 5 << 16;
	FAILS(EFAULT, write_record(fd, index, &rel, 12)); /* no NUL at its end */
	rel.loc = 6 << 16 | 0xffff;
	FAILS(EFAULT, write_record(fd, index, &rel, 12));
	FAILS(EINVAL, write_record(fd, index, &rel, 3));
	rel.loc = 6 << 16 | 12; /* counted from the record's header of 8 */
	CHECK(write_record(fd, absolute, &rel, 12) == 16);
	rel.loc = 6 << 16 | 15;
	FAILS(EFAULT, write_record(fd, absolute, &rel, 12));
	CHECK(enable("wv_event", 0) == 0 && enable("wv_data", 0) == 0 && EVENTUALLY(word == 0));
	CHECK(unreg_word(fd, &word, 0) == 0 && unreg_word(fd, &word, 1) == 0);
	close(fd);
}

static void print_fmt(void)
{
	static const char *const cases[][2] = {
	    {"pf_a char a", "print fmt: \"a=%d\", REC->a\n"},
	    {"pf_b unsigned char a", "print fmt: \"a=%u\", REC->a\n"},
	    {"pf_c s64 a; u64 b", "print fmt: \"a=%lld b=%llu\", REC->a, REC->b\n"},
	    {"pf_d char[20] a", "print fmt: \"a=%s\", REC->a\n"},
	    {"pf_e __rel_loc char[] a", "print fmt: \"a=%s\", __get_rel_str(a)\n"},
	    {"pf_f __data_loc char[] a", "print fmt: \"a=%s\", __get_str(a)\n"},
	    {"pf_g struct custom a 20", "print fmt: \"a=%llu\", REC->a\n"},
	    {"pf_h", "print fmt: \"\"\n"},
	};
	int fd = open_data();

	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char path[64];

		CHECK(reg_event(fd, cases[i][0], &word, 4, i) == i);
		snprintf(path, sizeof(path), "events/user_events/%.4s/format", cases[i][0]);
		CHECK(strstr(text_of(path), cases[i][1]));
		CHECK(unreg_word(fd, &word, i) == 0);
	}
	close(fd);
}

static void flags_persist(void)
{
	struct user_reg reg = reg_of("fp_event u32 a", &word, 4, 0);
	int fd = open_data();

	reg.flags = USER_EVENT_REG_PERSIST;
	CHECK(ioctl(fd, DIAG_IOCSREG, &reg) == 0 && reg.write_index == 0);
	CHECK(unreg_word(fd, &word, 0) == 0);
	close(fd);
	sleep_ms(300); /* others are gone by then */
	CHECK(event_exists("fp_event"));
	fd = open_data();
	CHECK(EVENTUALLY(delete(fd, "fp_event") == 0));
	CHECK(!event_exists("fp_event"));
	FAILS(ENOENT, delete(fd, "fp_event"));
	close(fd);
}

static void flags_multi_format(void)
{
	struct user_reg reg = reg_of("mf_event u32 a", &word, 4, 0);
	uint32_t payload[2] = {7, 8};
	int fd = open_data();

	reg.flags = USER_EVENT_REG_MULTI_FORMAT;
	CHECK(ioctl(fd, DIAG_IOCSREG, &reg) == 0 && reg.write_index == 0);
	reg.name_args = (uintptr_t)"mf_event u32 a; u32 b";
	reg.enable_bit = 1;
	CHECK(ioctl(fd, DIAG_IOCSREG, &reg) == 0 && reg.write_index == 1);
	reg.name_args = (uintptr_t)"mf_event u32 a";
	reg.enable_bit = 2;
	CHECK(ioctl(fd, DIAG_IOCSREG, &reg) == 0 && reg.write_index == 0);
	CHECK(reg_event(fd, "mf_event u32 a", &word, 4, 3) == 2); /* one of a single format beside them */
	CHECK(enable_in("user_events_multi", "mf_event.1", 1) == 0);
	CHECK(EVENTUALLY(word == 2));
	CHECK(write_record(fd, 1, payload, 8) == 12);
	CHECK(strstr(text_of("trace"), "mf_event.1: a=0x7 (7) b=0x8 (8)\n"));
	CHECK(enable_in("user_events_multi", "mf_event.1", 0) == 0);
	for (unsigned bit = 0; bit < 4; bit++)
		CHECK(unreg_word(fd, &word, bit) == 0);
	close(fd);
}

/* Commands that make an event and then do not match it: nobody else finds it, but this one is whole. */
static void odd_commands(void)
{
	static const char *const odd[] = {
	    "oc0 u32 ",		   "oc1 u32 a;; u32 b",	    "oc2 ;", "oc3 ; u32 a",
	    "oc4 struct foo a +8", "oc5 __rel_loc char[] ", "oc6 ;u32 a; u32 a",
	};
	struct user_reg multi = reg_of("om u32 a;; u32 b", &word, 4, 2);
	uint32_t payload[2] = {0};
	char name[4] = "oc0", newest[32];
	const char *found;
	int fd;

	for (; name[2] < '7'; name[2]++) {
		const char *command = odd[name[2] - '0'];

		fd = open_data();
		CHECK(reg_event(fd, command, &word, 4, 0) == 0);
		FAILS(EADDRINUSE, reg_event(fd, command, &word, 4, 1));
		CHECK(enable(name, 1) == 0 && EVENTUALLY(word == 1));
		CHECK(write_record(fd, 0, payload, 8) == 12);
		CHECK(enable(name, 0) == 0 && EVENTUALLY(word == 0));
		CHECK(unreg_word(fd, &word, 0) == 0);
		close(fd);
	}
	/* Of several formats each makes another one. */
	fd = open_data();
	multi.flags = USER_EVENT_REG_MULTI_FORMAT;
	CHECK(ioctl(fd, DIAG_IOCSREG, &multi) == 0 && multi.write_index == 0);
	multi.enable_bit = 3;
	CHECK(ioctl(fd, DIAG_IOCSREG, &multi) == 0 && multi.write_index == 1);
	found = strstr(text_of("available_events"), "user_events_multi:om."); /* the newest is the first */
	CHECK(found && sscanf(found, "user_events_multi:%31[^\n]", newest) == 1);
	CHECK(enable_in("user_events_multi", newest, 1) == 0 && EVENTUALLY(word == 8));
	FAILS(EBADF, write_record(fd, 0, payload, 8));
	CHECK(write_record(fd, 1, payload, 8) == 12);
	CHECK(enable_in("user_events_multi", newest, 0) == 0 && EVENTUALLY(word == 0));
	CHECK(unreg_word(fd, &word, 2) == 0 && unreg_word(fd, &word, 3) == 0);
	close(fd);
}

static void bit_sizes(void)
{
	int fd = open_data();

	CHECK(reg_event(fd, "bs_event", &wide, 4, 0) == 0 && unreg_word(fd, &wide, 0) == 0);
	CHECK(reg_event(fd, "bs_event", &wide, 4, 31) == 0 && unreg_word(fd, &wide, 31) == 0);
	CHECK(reg_event(fd, "bs_event", &wide, 8, 63) == 0 && unreg_word(fd, &wide, 63) == 0);
	FAILS(EINVAL, reg_event(fd, "bs_event", &wide, 4, 32));
	FAILS(EINVAL, reg_event(fd, "bs_event", &wide, 8, 64));
	for (unsigned size = 0; size < 17; size++)
		if (size != 4 && size != 8)
			FAILS(EINVAL, reg_event(fd, "bs_event", &wide, size, 0));
	CHECK(wide == 0);
	close(fd);
}

/* On, off, on, and out while on: nothing but the bit changes, and nothing once it was taken out. */
static void enablement(const char *event, volatile void *addr, unsigned size, unsigned bit)
{
	const uint64_t around = 0x5a5a5a5a5a5a5a5aULL & ~(1ULL << bit) & (size == 4 ? 0xffffffffULL : ~0ULL);
	const uint64_t with = around | 1ULL << bit;
	int fd = open_data();

	memcpy((void *)addr, &around, size);
	CHECK(reg_event(fd, event, addr, size, bit) == 0);
	CHECK(bits_of(addr, size) == around);
	for (int i = 0; i < 3; i++) {
		CHECK(enable(event, 1) == 0 && EVENTUALLY(bits_of(addr, size) == with));
		CHECK(enable(event, 0) == 0 && EVENTUALLY(bits_of(addr, size) == around));
	}
	CHECK(enable(event, 1) == 0 && EVENTUALLY(bits_of(addr, size) == with));
	CHECK(unreg_word(fd, addr, bit) == 0);
	CHECK(bits_of(addr, size) == around);
	/* The bit of an enabled event is set before the ioctl returns. */
	CHECK(reg_event(fd, event, addr, size, bit) == 0);
	CHECK(bits_of(addr, size) == with);
	CHECK(unreg_word(fd, addr, bit) == 0);
	CHECK(enable(event, 0) == 0 && enable(event, 1) == 0 && enable(event, 0) == 0);
	sleep_ms(20);
	CHECK(bits_of(addr, size) == around);
	close(fd);
}

static void enablement_32(void)
{
	enablement("en_a", &word, 4, 0);
	enablement("en_b", &word, 4, 17);
	enablement("en_c", &word, 4, 31);
	word = 0;
}

static void enablement_64(void)
{
	enablement("en_d", &wide, 8, 0);
	enablement("en_e", &wide, 8, 31);
	enablement("en_f", &wide, 8, 63);
	wide = 0;
}

static int fork_fd;
static atomic_int *seen; /* shared with the child */

static int child_of_forks(void)
{
	if (!EVENTUALLY(word == 1)) /* its own copy of the page */
		return 1;
	if (unreg_word(fork_fd, &word, 0))
		return 2;
	if (word != 0)
		return 3;
	/* The file is shared: indexes and references are its own matter. */
	if (write_record(fork_fd, 0, NULL, 0) != 4)
		return 4;
	return 0;
}

static int child_stays(void)
{
	if (!EVENTUALLY(word == 0))
		return 1;
	*seen = 1;
	return EVENTUALLY(word == 1) ? 0 : 2;
}

static void forks(void)
{
	int status;
	pid_t child;

	seen = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	fork_fd = open_data();
	CHECK(reg_event(fork_fd, "fk_event", &word, 4, 0) == 0);
	CHECK(enable("fk_event", 1) == 0 && EVENTUALLY(word == 1));
	CHECK(in_child(child_of_forks) == 0);
	CHECK(word == 1);
	/* A child's bits change like its parent's. */
	fflush(stdout);
	child = fork();
	if (!child)
		_exit(child_stays());
	CHECK(enable("fk_event", 0) == 0 && EVENTUALLY(word == 0));
	CHECK(EVENTUALLY(*seen));
	CHECK(enable("fk_event", 1) == 0 && EVENTUALLY(word == 1));
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(unreg_word(fork_fd, &word, 0) == 0);
	CHECK(enable("fk_event", 0) == 0);
	close(fork_fd);
	CHECK(EVENTUALLY(!event_exists("fk_event"))); /* the children's references went with them */
}

static void *register_in_thread(void *fd)
{
	return (void *)reg_event(*(int *)fd, "th_event", &word, 4, 5);
}

static void threads(void)
{
	pthread_t thread;
	void *index = (void *)-1;
	int fd = open_data();

	CHECK(pthread_create(&thread, NULL, register_in_thread, &fd) == 0);
	pthread_join(thread, &index);
	CHECK(index == (void *)0);
	FAILS(EADDRINUSE, reg_event(fd, "th_event", &word, 4, 5));
	CHECK(enable("th_event", 1) == 0 && EVENTUALLY(word == 1 << 5));
	CHECK(unreg_word(fd, &word, 5) == 0 && word == 0);
	CHECK(enable("th_event", 0) == 0);
	close(fd);
}

static int register_in_clone(void *fd)
{
	return (int)reg_event(*(int *)fd, "cl_event", &word, 4, 6);
}

/* A process that shares the memory: the word stays registered when it ends. */
static void clones(void)
{
	static char stack[1 << 18] __attribute__((aligned(16)));
	int fd = open_data(), status = -1;
	pid_t child = clone(register_in_clone, stack + sizeof(stack), CLONE_VM | SIGCHLD, &fd);

	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(enable("cl_event", 1) == 0 && EVENTUALLY(word == 1 << 6));
	CHECK(enable("cl_event", 0) == 0 && EVENTUALLY(word == 0));
	CHECK(unreg_word(fd, &word, 6) == 0);
	close(fd);
}

static void descriptors(void)
{
	uint32_t payload = 1;
	int fd = open_data(), copy, moved;
	long index = reg_event(fd, "fd_event u32 a", &word, 4, 0);

	CHECK(index == 0 && enable("fd_event", 1) == 0 && EVENTUALLY(word == 1));
	copy = dup(fd);
	moved = fcntl(fd, F_DUPFD_CLOEXEC, 200);
	CHECK(copy >= 0 && moved >= 200);
	close(fd);
	CHECK(write_record(copy, index, &payload, 4) == 8);
	CHECK(write_record(moved, index, &payload, 4) == 8);
	CHECK(reg_event(moved, "fd_other", &word, 4, 1) == 1);
	FAILS(EBADF, write_record(copy, 1, NULL, 0)); /* the same file: an index of its own, not enabled */
	CHECK(dup2(moved, copy) == copy);
	close(moved);
	CHECK(write_record(copy, index, &payload, 4) == 8);
	CHECK(enable("fd_event", 0) == 0 && unreg_word(copy, &word, 0) == 0 && unreg_word(copy, &word, 1) == 0);
	close(copy);
	CHECK(EVENTUALLY(!event_exists("fd_event")));
	FAILS(EBADF, write_record(copy, index, &payload, 4));
}

/* The word outlives the file; the event lives as long as one of them. */
static void closed_file(void)
{
	int fd = open_data(), second;

	CHECK(reg_event(fd, "cf_event", &word, 4, 0) == 0);
	close(fd);
	sleep_ms(300);
	CHECK(event_exists("cf_event"));
	CHECK(enable("cf_event", 1) == 0 && EVENTUALLY(word == 1));
	CHECK(enable("cf_event", 0) == 0 && EVENTUALLY(word == 0));
	second = open_data();
	FAILS(EADDRINUSE, reg_event(second, "cf_event", &word, 4, 0));
	CHECK(unreg_word(second, &word, 0) == 0);
	CHECK(EVENTUALLY(!event_exists("cf_event")));
	close(second);
}

static void unknown_requests(void)
{
	int fd = open_data();

	FAILS(ENOTTY, ioctl(fd, _IOW('*', 3, char *), &wide));
	FAILS(ENOTTY, ioctl(fd, _IOWR('*', 0, char[28]), &wide));
	FAILS(ENOTTY, ioctl(fd, 0x5401, &word));
	FAILS(ENOTTY, ioctl(fd, 0, &wide));
	close(fd);
}

int main(int argc, char **argv)
{
	static const struct fact facts[] = {
	    {"register_events", register_events},
	    {"write_events", write_events},
	    {"write_position", write_position},
	    {"write_empty_events", write_empty_events},
	    {"write_fault", write_fault},
	    {"write_validator", write_validator},
	    {"print_fmt", print_fmt},
	    {"flags_persist", flags_persist},
	    {"flags_multi_format", flags_multi_format},
	    {"odd_commands", odd_commands},
	    {"bit_sizes", bit_sizes},
	    {"enablement_32", enablement_32},
	    {"enablement_64", enablement_64},
	    {"forks", forks},
	    {"threads", threads},
	    {"clones", clones},
	    {"descriptors", descriptors},
	    {"closed_file", closed_file},
	    {"unknown_requests", unknown_requests},
	};

	return check_facts(facts, sizeof(facts) / sizeof(*facts), argc, argv);
}
