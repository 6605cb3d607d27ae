/* All processes whose stack begins at an address: relatives of one exec, and few others. In C, since it
 * checks all processes of the machine: some 5 us each. */
#ifndef UTRACEFS_PROCESS_LIST_H
#define UTRACEFS_PROCESS_LIST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* Field 28 of /proc/PID/stat; 0 without such a process, or without permission. */
static inline uint64_t pl_start_stack(int proc, const char *pid)
{
	char path[32], text[1024], *at;
	int field, fd;
	ssize_t got;

	snprintf(path, sizeof(path), "%.20s/stat", pid);
	fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
	got = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (fd >= 0)
		close(fd);
	text[got < 0 ? 0 : got] = 0;
	at = strrchr(text, ')'); /* a name may have any characters; it is field 2 */
	for (field = 2; at && field < 28; field++)
		at = strchr(at + 1, ' ');
	return at ? strtoull(at, NULL, 10) : 0;
}

/* Their number, of which the first `room` are in `pids`; or -1. */
static inline int pl_find(uint64_t start_stack, pid_t *pids, int room)
{
	struct dirent *entry;
	DIR *dir = opendir("/proc");
	int found = 0;

	if (!dir)
		return -1;
	while ((entry = readdir(dir)))
		if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
		    pl_start_stack(dirfd(dir), entry->d_name) == start_stack) {
			if (found < room)
				pids[found] = atoi(entry->d_name);
			found++;
		}
	closedir(dir);
	return found;
}

#endif
