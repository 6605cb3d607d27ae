/* The daemon's sockets: where they are, and connecting to them. */
#ifndef UTRACEFS_CONNECTING_H
#define UTRACEFS_CONNECTING_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "descriptor.h"

static inline uint64_t ut_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A path that fits a socket's address. */
#define UT_DIRECTORY 108

/* The directories of the sockets, best first; "" for none. A directory that is not NULL is used in
 * place of the environment's. */
void ut_choose_directories(char directories[2][UT_DIRECTORY], const char *directory);
/* Makes a connected socket: 0, or -errno: of several errors the first other than "there is nothing". `name`
 * is the socket's. */
int ut_connect(struct ut_descriptor *made, const char directories[2][UT_DIRECTORY], const char *name);
/* recv(2) without waiting: the bytes, 0 at the end, or -errno; -EMFILE: not all descriptors beside them were
 * received. They are in `fds`, which the caller then owns. */
#define UT_MOST_FDS 3
struct ut_fds {
	int fds[UT_MOST_FDS];
	unsigned count;
};
ssize_t ut_receive(int socket, void *data, size_t size, struct ut_fds *fds);

#endif
