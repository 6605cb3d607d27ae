/*
 * A program whose memory is looked at and written to from outside, and which tells what happened to it.
 *
 * Around each word lie a known pattern and, in front of and behind its pages, pages that may not be touched.
 * It takes one command a line and answers each with one line:
 *
 *     where       NAME=ADDRESS ... of the words and of places that are wrong in some way
 *     check       `ok` and the words' values, or `BAD` and where a byte is not as it was
 *     fork N      pids of N children, which wait for the end of this program
 *     orphan      pid of a grandchild whose parent is gone
 *     vfork       pid of a child that has the same address space, until `vend`
 *     threads N   N more threads, which stay
 *     exec        the same program anew, in this process
 *     (another)   `ok`
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATTERN = 0xa5, WORD_AT = 2048, ZONES = 3 };

static long page;
static int alive[2]; /* children read from it until nobody can write */

/* Three pages: guard, pattern with the word in the middle, guard. */
static struct zone {
	const char *name;
	unsigned char *base;
} zones[ZONES] = {{"private", NULL}, {"shared", NULL}, {"memfd", NULL}};

static uint64_t in_bss;

static void die(const char *what)
{
	perror(what);
	exit(2);
}

static uint64_t *word_of(const struct zone *z)
{
	return (uint64_t *)(z->base + page + WORD_AT);
}

static void make_zone(struct zone *z)
{
	int fd = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS;

	z->base = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (strcmp(z->name, "shared") == 0)
		flags = MAP_SHARED | MAP_ANONYMOUS;
	if (strcmp(z->name, "memfd") == 0) {
		flags = MAP_SHARED;
		fd = memfd_create("canary", MFD_CLOEXEC);
		if (fd < 0 || ftruncate(fd, page) < 0)
			die("memfd");
	}
	if (z->base == MAP_FAILED ||
	    mmap(z->base + page, page, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) == MAP_FAILED)
		die("mmap");
	memset(z->base + page, PATTERN, page);
	*word_of(z) = 0;
}

/* The ring of a perf event: pages that are no memory to the kernel (VM_PFNMAP), like those of a device. NULL
 * where there is none. */
static unsigned char *device(void)
{
	struct perf_event_attr what = {.type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_DUMMY};
	int fd;
	void *at;

	what.size = sizeof(what);
	what.exclude_kernel = 1;
	fd = syscall(SYS_perf_event_open, &what, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	at = fd < 0 ? MAP_FAILED : mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return at == MAP_FAILED ? NULL : at;
}

static void where(void)
{
	static const char text[] = "u32 a; u32 b";
	unsigned char *readonly = mmap(NULL, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *hole, *secret = NULL;
	int fd = -1, i;

	/* The last text of a page ends with it, without a NUL. */
	memcpy(zones[0].base + 2 * page - 4, "tail", 4);
#ifdef SYS_memfd_secret
	fd = syscall(SYS_memfd_secret, 0);
	if (fd >= 0 && ftruncate(fd, page) == 0) {
		secret = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (secret == MAP_FAILED)
			secret = NULL;
	}
#endif
	hole = mmap(NULL, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(hole, page);
	printf("pid=%d", getpid());
	for (i = 0; i < ZONES; i++)
		printf(" %s=%lu", zones[i].name, (unsigned long)word_of(&zones[i]));
	printf(" bss=%lu text=%lu readonly=%lu hole=%lu none=%lu tail=%lu code=%lu secret=%lu device=%lu\n",
	       (unsigned long)&in_bss, (unsigned long)text, (unsigned long)readonly, (unsigned long)hole,
	       (unsigned long)zones[0].base, (unsigned long)zones[0].base + 2 * page - 4, (unsigned
	       long)&where, (unsigned long)secret, (unsigned long)device());
}

static void check(void)
{
	int i;
	long j;

	for (i = 0; i < ZONES; i++)
		for (j = 0; j < page; j++) {
			if ((j >= WORD_AT && j < WORD_AT + 8) || (i == 0 && j >= page - 4))
				continue;
			if (zones[i].base[page + j] != PATTERN) {
				printf("BAD %s+%ld is %02x\n", zones[i].name, j - WORD_AT, zones[i].base[page
				+ j]); return;
			}
		}
	printf("ok");
	for (i = 0; i < ZONES; i++)
		printf(" %s=%lu", zones[i].name, __atomic_load_n(word_of(&zones[i]), __ATOMIC_SEQ_CST));
	printf(" bss=%lu\n", __atomic_load_n(&in_bss, __ATOMIC_SEQ_CST));
}

static void wait_for_the_end(void)
{
	char byte;

	close(alive[1]);
	while (read(alive[0], &byte, 1) > 0) {
	}
	_exit(0);
}

static void do_fork(int count)
{
	int i;

	for (i = 0; i < count; i++) {
		pid_t child = fork();
		if (child < 0)
			die("fork");
		if (child == 0)
			wait_for_the_end();
		printf("%d ", child);
	}
	printf("\n");
}

static void orphan(void)
{
	int told[2];
	pid_t child, grandchild = 0;

	if (pipe2(told, O_CLOEXEC) < 0)
		die("pipe");
	child = fork();
	if (child == 0) {
		grandchild = fork();
		if (grandchild == 0)
			wait_for_the_end();
		if (write(told[1], &grandchild, sizeof(grandchild)) < 0)
			_exit(1);
		_exit(0);
	}
	if (read(told[0], &grandchild, sizeof(grandchild)) < 0)
		die("read");
	waitpid(child, NULL, 0);
	close(told[0]);
	close(told[1]);
	printf("%d\n", grandchild);
}

static char vfork_stack[65536] __attribute__((aligned(16)));
static pid_t vforked;
static int vfork_pipe[2];

static int vfork_main(void *unused)
{
	char byte;

	(void)unused;
	return read(vfork_pipe[0], &byte, 1) != 1;
}

/* As vfork, but this program runs on: the address space is shared, nothing else. */
static void do_vfork(void)
{
	if (pipe2(vfork_pipe, O_CLOEXEC) < 0)
		die("pipe");
	vforked = clone(vfork_main, vfork_stack + sizeof(vfork_stack), CLONE_VM | SIGCHLD, NULL);
	if (vforked < 0)
		die("clone");
	printf("%d\n", vforked);
}

static void vend(void)
{
	if (write(vfork_pipe[1], "", 1) != 1)
		die("write");
	waitpid(vforked, NULL, 0);
	printf("ok\n");
}

static void *thread_main(void *unused)
{
	pause();
	return unused;
}

static void threads(int count)
{
	pthread_t thread;

	while (count--)
		if (pthread_create(&thread, NULL, thread_main, NULL))
			die("pthread_create");
	printf("ok\n");
}

int main(int argc, char **argv)
{
	char line[256];
	int i, number;

	setvbuf(stdout, NULL, _IOLBF, 0);
	setvbuf(stdin, NULL, _IONBF, 0);
	/* The tester may be a process that Yama would refuse. */
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	page = sysconf(_SC_PAGESIZE);
	if (pipe2(alive, O_CLOEXEC) < 0)
		die("pipe");
	for (i = 0; i < ZONES; i++)
		make_zone(&zones[i]);
	if (argc > 1)
		printf("ok\n"); /* after exec */
	while (fgets(line, sizeof(line), stdin)) {
		if (strncmp(line, "where", 5) == 0)
			where();
		else if (strncmp(line, "check", 5) == 0)
			check();
		else if (sscanf(line, "fork %d", &number) == 1)
			do_fork(number);
		else if (strncmp(line, "orphan", 6) == 0)
			orphan();
		else if (strncmp(line, "vfork", 5) == 0)
			do_vfork();
		else if (strncmp(line, "vend", 4) == 0)
			vend();
		else if (sscanf(line, "threads %d", &number) == 1)
			threads(number);
		else if (strncmp(line, "exec", 4) == 0)
			execl("/proc/self/exe", argv[0], "again", (char *)NULL);
		else
			printf("ok\n");
	}
	return 0;
}
