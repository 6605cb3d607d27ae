/* short_lived CPU [FILE]: 300 threads and 150 processes, on that cpu, each with a name of its own, which
 * write one record of the event c_short and end. With -DKERNEL_ABI by FILE, which is a user_events_data;
 * else by utracefs.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef KERNEL_ABI
#include <fcntl.h>
#include <linux/user_events.h>
#include <sys/ioctl.h>

static uint32_t enabled;
static int fd;
static struct user_reg reg = {.size = sizeof(reg), .enable_bit = 31, .enable_size = sizeof(enabled)};

static void begin(const char *file)
{
	fd = open(file, O_RDWR);
	reg.enable_addr = (uintptr_t)&enabled;
	reg.name_args = (uintptr_t)"c_short u32 n";
	if (fd < 0 || ioctl(fd, DIAG_IOCSREG, &reg) < 0) {
		perror(file);
		exit(1);
	}
}

static int is_on(void)
{
	return *(volatile uint32_t *)&enabled != 0;
}

static void emit(uint32_t n)
{
	uint32_t record[2] = {reg.write_index, n};

	if (write(fd, record, sizeof(record)) != sizeof(record))
		perror("write");
}
#else
#include <utracefs.h>

UTRACEFS_EVENT(c_short, (u32, n));

static void begin(const char *file)
{
	(void)file;
}

static int is_on(void)
{
	return utracefs_enabled(&c_short);
}

static void emit(uint32_t n)
{
	UTRACEFS_EMIT(c_short, n);
}
#endif

static void say(char kind, uint32_t n)
{
	char name[16];

	snprintf(name, sizeof(name), "%c%u", kind, n);
	prctl(PR_SET_NAME, name, 0, 0, 0);
	emit(n);
}

static void *thread(void *n)
{
	say('t', (uint32_t)(uintptr_t)n);
	return NULL;
}

int main(int argc, char **argv)
{
	const struct timespec turn = {0, 1000000};
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(argc > 1 ? atoi(argv[1]) : 0, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	begin(argc > 2 ? argv[2] : NULL);
	for (int turns = 0; !is_on(); turns++) {
		if (turns == 20000)
			return 2;
		nanosleep(&turn, NULL);
	}
	for (uintptr_t n = 0; n < 300; n++) {
		pthread_t id;

		if (pthread_create(&id, NULL, thread, (void *)n))
			return 3;
		pthread_join(id, NULL);
	}
	for (uint32_t n = 0; n < 150; n++) {
		pid_t pid = fork();

		if (pid < 0)
			return 4;
		if (pid == 0) {
			say('p', n);
			exit(0); /* not _exit: over the socket a record is on its way for a moment */
		}
		waitpid(pid, NULL, 0);
	}
	return 0;
}
