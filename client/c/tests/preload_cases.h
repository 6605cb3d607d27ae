/* Shared parts of programs that test the preload library: registration by the kernel's ABI, and checks
 * that print their place. */
#ifndef PRELOAD_CASES_H
#define PRELOAD_CASES_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <linux/user_events.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PATH "/sys/kernel/tracing/user_events_data"
#define WORK "work u32 who; u32 number"

#define CHECK(what)                                                                                   \
	do {                                                                                          \
		if (!(what)) {                                                                        \
			fprintf(stderr, "%s:%d: %s: errno %d\n", __FILE__, __LINE__, #what, errno); \
			_exit(1);                                                                     \
		}                                                                                     \
	} while (0)
#define FAILS(what, error) CHECK((errno = 0, (what) == -1) && errno == (error))

static _Atomic uint32_t word;

static inline struct user_reg request(const char *command, void *address, unsigned bit)
{
	return (struct user_reg){ .size = sizeof(struct user_reg),
				  .enable_bit = (uint8_t)bit,
				  .enable_size = 4,
				  .enable_addr = (uintptr_t)address,
				  .name_args = (uintptr_t)command };
}

/* The write index. */
static inline int reg(int fd, const char *command, unsigned bit)
{
	struct user_reg r = request(command, &word, bit);

	CHECK(ioctl(fd, DIAG_IOCSREG, &r) == 0);
	return (int)r.write_index;
}

static inline int unreg(int fd, void *address, unsigned bit)
{
	struct user_unreg r = { .size = sizeof(r), .disable_bit = (uint8_t)bit, .disable_addr = (uintptr_t)address };

	return ioctl(fd, DIAG_IOCSUNREG, &r);
}

struct record {
	int32_t index;
	uint32_t who, number;
};

static inline ssize_t emit(int fd, int index, unsigned who, unsigned number)
{
	struct record record = { index, who, number };

	return write(fd, &record, sizeof(record));
}

/* A file with WORK as index 0 and its state in bit 0 of `word`; the event is on. */
static inline int open_work(void)
{
	const int fd = open(PATH, O_RDWR);

	CHECK(fd >= 0);
	CHECK(reg(fd, WORK, 0) == 0);
	CHECK(word & 1);
	return fd;
}

static inline int wait_until(int (*done)(void))
{
	const struct timespec pause = { 0, 1000000 };
	int i;

	for (i = 0; i < 20000 && !done(); i++)
		nanosleep(&pause, NULL);
	return done();
}

struct test_case {
	const char *name;
	void (*run)(int argc, char **argv);
};

static inline int run_case(const struct test_case *cases, int argc, char **argv)
{
	for (; argc > 1 && cases->name; cases++) {
		if (!strcmp(cases->name, argv[1])) {
			cases->run(argc, argv);
			return 0;
		}
	}
	fprintf(stderr, "no such case\n");
	return 2;
}

#endif
