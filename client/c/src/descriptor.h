/*
 * The client library's descriptors in the program's process.
 *
 * The table of descriptors belongs to the program: it may close all of them (closefrom, closerange, a
 * daemon's first action) and open its own under the same numbers, or dup2 over one. So a number identifies
 * nothing. Our descriptors are identified by device and inode of their file, checked by fstat before each
 * write, send or close; a descriptor that is no longer ours is not touched.
 *
 * An eventfd has no inode of its own: all of them share one. It counts as ours while its number refers to
 * such a file and the descriptor received with it (`beside`) is ours.
 *
 * Between the check and its use another thread may replace the descriptor. That cannot be prevented, and
 * takes nanoseconds.
 */
#ifndef UTRACEFS_DESCRIPTOR_H
#define UTRACEFS_DESCRIPTOR_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

/* NULL for MAP_FAILED. */
static inline void *ut_mapped(void *at)
{
	return at == MAP_FAILED ? NULL : at;
}

static inline void ut_unmap(void *at, size_t bytes)
{
	if (at)
		munmap(at, bytes);
}

/* Our numbers begin here, if possible: so they do not collide with programs that choose numbers (dup2 to
 * 0, 1 and 2, a supervisor's 3 and 4), nor change the numbers that a program gets. Below 64, so that the
 * kernel's table of a small process need not grow. */
#define UT_FIRST_FD 40

struct ut_descriptor {
	int fd; /* -1: none */
	dev_t dev;
	ino_t ino;
	const struct ut_descriptor *beside;
};

static inline int ut_is_ours(const struct ut_descriptor *d)
{
	int fd = __atomic_load_n(&d->fd, __ATOMIC_RELAXED); /* another thread may close it */
	struct stat now;

	return fd >= 0 && fstat(fd, &now) == 0 && now.st_ino == d->ino && now.st_dev == d->dev &&
	       (!d->beside || ut_is_ours(d->beside));
}

/* The number to use for a new descriptor: at once, for a program may at any time write to the number that it
 * got, close it, or dup2 over it. -errno with `fd` closed; `fd` < 0: -errno of what did not make it. */
static inline int ut_out_of_the_way(int fd)
{
	int moved, error;

	if (fd < 0)
		return -errno;
	if (fd >= UT_FIRST_FD)
		return fd;
	moved = fcntl(fd, F_DUPFD_CLOEXEC, UT_FIRST_FD);
	if (moved < 0 && errno == EBADF)
		return -EBADF; /* the program has closed it */
	if (moved < 0 && fd > 2)
		return fd;
	if (moved < 0)
		moved = fcntl(fd, F_DUPFD_CLOEXEC, 3); /* never standard input, output or error */
	error = -errno;
	close(fd);
	return moved < 0 ? error : moved;
}

/* Takes ownership of `made`, like ut_out_of_the_way. `type`: S_IFMT of its file, 0 of an eventfd, or UT_ANY:
 * one of another type is a file that the program has put over the number. 0, or -errno with `made` closed. */
#define UT_ANY S_IFMT
static inline int ut_take(struct ut_descriptor *d, int made, mode_t type)
{
	int fd = ut_out_of_the_way(made);
	struct stat now;

	d->fd = -1;
	d->beside = NULL;
	if (fd < 0)
		return fd;
	if (fstat(fd, &now) < 0) {
		int error = -errno;
		close(fd);
		return error;
	}
	if (type != UT_ANY && (now.st_mode & S_IFMT) != type) {
		if (fd != made) /* a second number of that file */
			close(fd);
		return -EBADF;
	}
	d->fd = fd;
	d->dev = now.st_dev;
	d->ino = now.st_ino;
	return 0;
}

/* Closes it if it still refers to our file. Clears it first, so that later readers do not get a number
 * that may be reused. */
static inline void ut_close(struct ut_descriptor *d)
{
	int fd = ut_is_ours(d) ? d->fd : -1;

	__atomic_store_n(&d->fd, -1, __ATOMIC_RELAXED);
	if (fd >= 0)
		close(fd);
}

/* Wakes a thread in poll(2): the thread polls `near`, others send to `far`. A pair of sockets and not an
 * eventfd or a pipe: each has an inode of its own, `near` hangs up when `far` is closed, and no send causes
 * SIGPIPE. Its messages are empty: if the number is that of another file after the check, as of a stream to
 * the daemon, nothing is sent there, and nothing received. */
struct ut_bell {
	struct ut_descriptor near_end;
	struct ut_descriptor far_end;
};

static inline void ut_bell_close(struct ut_bell *b)
{
	ut_close(&b->near_end);
	ut_close(&b->far_end);
}

/* 0, also when it is open already; or -errno with nothing open. */
static inline int ut_bell_open(struct ut_bell *b)
{
	int ends[2];
	int error, other;

	if (ut_is_ours(&b->near_end) && ut_is_ours(&b->far_end))
		return 0;
	ut_bell_close(b);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) < 0)
		return -errno;
	error = ut_take(&b->near_end, ends[0], S_IFSOCK);
	other = ut_take(&b->far_end, ends[1], S_IFSOCK);
	if (error || other)
		ut_bell_close(b);
	return error ? error : other;
}

/* Fails only if enough rings are pending, or the bell is closed. */
static inline void ut_bell_ring(const struct ut_bell *b)
{
	int fd = __atomic_load_n(&b->far_end.fd, __ATOMIC_RELAXED);

	if (ut_is_ours(&b->far_end) && send(fd, "", 0, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
	}
}

static inline void ut_bell_silence(const struct ut_bell *b)
{
	/* (Not without end: if the other end is closed an empty message always comes.) */
	for (int rung = 0; rung < 64 && ut_is_ours(&b->near_end); rung++)
		if (recv(b->near_end.fd, NULL, 0, MSG_DONTWAIT) < 0)
			break;
}

#endif
