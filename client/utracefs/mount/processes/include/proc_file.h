/* Reads the small text files of /proc, each at once. */
#ifndef UTRACEFS_PROC_FILE_H
#define UTRACEFS_PROC_FILE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* Its first `size` - 1 bytes, and a NUL; empty if it does not exist, or may not be read. */
static inline void pf_read(int dir, const char *path, char *text, size_t size)
{
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? -1 : read(fd, text, size - 1);

	if (fd >= 0)
		close(fd);
	text[got < 0 ? 0 : got] = 0;
}

/* State of a thread, from /proc/PID/task/TID/stat. 0: there is none. */
static inline char pf_state(int tasks, pid_t tid)
{
	char path[32], text[512], *after, state = 0;

	snprintf(path, sizeof(path), "%d/stat", tid);
	pf_read(tasks, path, text, sizeof(text));
	after = strrchr(text, ')'); /* a name may have any characters */
	return after && sscanf(after + 1, " %c", &state) == 1 ? state : 0;
}

#endif
