/* The same record and the same loop as ring.c's, written as a program for the kernel does: open, ioctl and
 * writev on `user_events_data`, here with libutracefs-preload.so. A line of stdin, a line of figures. */
#include "clock.h"

#include <fcntl.h>
#include <linux/user_events.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

static uint32_t enabled;

int main(void)
{
	struct user_reg reg = {sizeof(reg), 0, sizeof(enabled), 0, (uint64_t)(uintptr_t)&enabled,
			       (uint64_t)(uintptr_t) "c_preload u64 i; u64 five", 0};
	int fd = open("/sys/kernel/tracing/user_events_data", O_RDWR);
	char line[64];

	if (fd < 0 || ioctl(fd, DIAG_IOCSREG, &reg) < 0)
		return 1;
	while (fgets(line, sizeof(line), stdin)) {
		uint64_t count = strtoull(line, NULL, 10);
		uint64_t wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);
		uint64_t refused = 0;

		for (uint64_t i = 0; i < count; i++) {
			uint64_t payload[2] = {i, 5};
			struct iovec iov[2] = {{&reg.write_index, sizeof(reg.write_index)}, {payload, sizeof(payload)}};

			refused += !enabled || writev(fd, iov, 2) != 20;
		}
		cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
		wall = now(CLOCK_MONOTONIC) - wall;
		printf("%.2f %.2f %lu\n", (double)cpu / (double)count, (double)wall / (double)count,
		       (unsigned long)refused);
		fflush(stdout);
	}
	return 0;
}
