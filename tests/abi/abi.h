/* Common to the programs of this folder: registering, and checks that report their findings.
 *
 * A check that fails prints `not ok NAME: file:line: ...` and ends its fact; a program continues
 * with its next fact and ends with 1.
 */
#ifndef UTRACEFS_TESTS_ABI_H
#define UTRACEFS_TESTS_ABI_H

#include <linux/user_events.h>

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL

static const char *tree;
static const char *fact;
static int failures;
static uint32_t own_words[64] __attribute__((unused));
static size_t fact_number __attribute__((unused));
#define word (own_words[fact_number]) /* each fact has one of its own: what one leaves harms no other */

#define CHECK(condition)                                                                                     \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			int failed_with = errno;                                                             \
			printf("not ok %s: %s:%d: %s (errno %d)\n", fact, __FILE_NAME__, __LINE__,           \
			       #condition, failed_with);                                                     \
			failures++;                                                                          \
			return;                                                                              \
		}                                                                                            \
	} while (0)

/* `call` fails with `number`. */
#define FAILS(number, call)                                                                                  \
	do {                                                                                                 \
		errno = 0;                                                                                   \
		long returned = (long)(call);                                                                \
		if (returned != -1 || errno != (number)) {                                                   \
			printf("not ok %s: %s:%d: %s: %ld, %s instead of %s\n", fact, __FILE_NAME__,         \
			       __LINE__, #call, returned, strerrorname_np(errno) ?: "0",                     \
			       strerrorname_np(number));                                                     \
			failures++;                                                                          \
			return;                                                                              \
		}                                                                                            \
	} while (0)

struct fact {
	const char *name;
	void (*check)(void);
};

/* A whole program, TREE [NAME]: of all facts those whose name begins so, each with its line. Returns the
 * status to end with. */
static inline int check_facts(const struct fact *facts, size_t count, int argc, char **argv)
{
	const char *wanted = argc > 2 ? argv[2] : "";

	if (argc < 2) {
		fprintf(stderr, "%s TREE [NAME]\n", argv[0]);
		return 2;
	}
	tree = argv[1];
	for (size_t i = 0; i < count; i++) {
		int before = failures;

		if (strncmp(facts[i].name, wanted, strlen(wanted)))
			continue;
		fact = facts[i].name;
		fact_number = i;
		facts[i].check();
		if (failures == before)
			printf("ok %s\n", fact);
		fflush(stdout);
	}
	return failures != 0;
}

static inline double now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static inline void sleep_ms(long ms)
{
	struct timespec span = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&span, NULL);
}

static inline int open_data(void)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/user_events_data", tree);
	return open(path, O_RDWR);
}

static inline struct user_reg reg_of(const char *command, volatile void *addr, unsigned size, unsigned bit)
{
	struct user_reg reg = {
	    .size = sizeof(reg),
	    .enable_bit = (__u8)bit,
	    .enable_size = (__u8)size,
	    .enable_addr = (uintptr_t)addr,
	    .name_args = (uintptr_t)command,
	    .write_index = 0xdeadbeef,
	};

	return reg;
}

/* Returns the write_index, or -1 with errno. */
static inline long reg_event(int fd, const char *command, volatile void *addr, unsigned size, unsigned bit)
{
	struct user_reg reg = reg_of(command, addr, size, bit);

	return ioctl(fd, DIAG_IOCSREG, &reg) < 0 ? -1 : (long)reg.write_index;
}

static inline int unreg_word(int fd, volatile void *addr, unsigned bit)
{
	struct user_unreg unreg = {.size = sizeof(unreg), .disable_bit = (__u8)bit, .disable_addr = (uintptr_t)addr};

	return ioctl(fd, DIAG_IOCSUNREG, &unreg);
}

/* write_index and payload in one writev. */
static inline ssize_t write_record(int fd, long index, const void *payload, size_t size)
{
	int32_t first = (int32_t)index;
	struct iovec parts[] = {{&first, 4}, {(void *)payload, size}};

	return writev(fd, parts, 2);
}

/* Puts `text` into TREE/path; 0 or -1. */
static inline int put_text(const char *path, const char *text)
{
	char full[4096];
	int fd;
	ssize_t written;

	snprintf(full, sizeof(full), "%s/%s", tree, path);
	fd = open(full, O_WRONLY);
	if (fd < 0)
		return -1;
	written = write(fd, text, strlen(text));
	close(fd);
	return written < 0 ? -1 : 0;
}

static inline int enable_in(const char *system, const char *event, int on)
{
	char path[512];

	snprintf(path, sizeof(path), "events/%s/%s/enable", system, event);
	return put_text(path, on ? "1\n" : "0\n");
}

static inline int enable(const char *event, int on)
{
	return enable_in("user_events", event, on);
}

/* The bytes of TREE/path, NUL-terminated; "" where it cannot be read. */
static inline const char *text_of(const char *path)
{
	static char text[1 << 18];
	char full[4096];
	size_t n = 0;
	ssize_t got;
	int fd;

	snprintf(full, sizeof(full), "%s/%s", tree, path);
	fd = open(full, O_RDONLY);
	while (fd >= 0 && n < sizeof(text) - 1 && (got = read(fd, text + n, sizeof(text) - 1 - n)) > 0)
		n += (size_t)got;
	if (fd >= 0)
		close(fd);
	text[n] = '\0';
	return text;
}

/* Waits up to 5 s, for a machine that is busy; what is right at once is not asked twice. */
#define EVENTUALLY(condition)                                                                                \
	({                                                                                                   \
		double until = now_ms() + 5000;                                                              \
		int holds;                                                                                   \
		while (!(holds = !!(condition)) && now_ms() < until)                                         \
			sleep_ms(1);                                                                         \
		holds;                                                                                       \
	})

static inline uint64_t bits_of(volatile void *addr, unsigned size)
{
	return size == 4 ? *(volatile uint32_t *)addr : *(volatile uint64_t *)addr;
}

/* Runs `body` in a child; 0 if it returned 0. */
static inline int in_child(int (*body)(void))
{
	int status = -1;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (!child) {
		int answer = body();

		fflush(stdout);
		_exit(answer);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#endif
