/* facts TREE [NAME] - facts that neither the kernel's own tests of user_events nor transcripts show: flags,
 * odd commands, children, threads and descriptors. Each fact uses events of its own.
 */
#define _GNU_SOURCE
#include "abi.h"

#include <pthread.h>

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

int main(int argc, char **argv)
{
	static const struct fact facts[] = {
	    {"flags_persist", flags_persist},
	    {"flags_multi_format", flags_multi_format},
	    {"odd_commands", odd_commands},
	    {"forks", forks},
	    {"threads", threads},
	    {"descriptors", descriptors},
	    {"closed_file", closed_file},
	};

	return check_facts(facts, sizeof(facts) / sizeof(*facts), argc, argv);
}
