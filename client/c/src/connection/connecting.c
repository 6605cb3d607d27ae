/*
 * The daemon's sockets: where they are, connecting, and receiving bytes with descriptors.
 *
 * Directories are chosen once, from the environment or by a binding, best first (utracefs_protocol/places.py
 * has the rule): a user's own daemon comes before the system's. One in /tmp could be anybody's, so its owner
 * is checked before each attempt. Nothing waits: a full queue is -EAGAIN, and so is a socket that the
 * program has just closed, or put a file over; the caller decides when to try again. If not all descriptors
 * of a message arrived, the others are closed.
 */
#include "connecting.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Every user may make a directory in /tmp: this one must be ours, without access for others. 0 or -errno. */
static int check_owner(const char *directory)
{
	const size_t length = strlen("/tmp/utracefs-");
	const char *at;
	struct stat found;
	uint64_t user = 0;

	if (strncmp(directory, "/tmp/utracefs-", length))
		return 0;
	/* (Not by strtoul or printf, of which the first in a forked child takes two or four page faults.) */
	for (at = directory + length; *at >= '0' && *at <= '9'; at++)
		user = user * 10 + (uint64_t)(*at - '0');
	if (user != geteuid() || *at)
		return 0;
	if (lstat(directory, &found) < 0)
		return -errno;
	return S_ISDIR(found.st_mode) && found.st_uid == geteuid() && !(found.st_mode & 077) ? 0 : -EPERM;
}

static void set_directory(char *at, const char *folder, const char *below)
{
	/* A directory too long for a socket's address counts as none. */
	if ((size_t)snprintf(at, UT_DIRECTORY, "%s%s", folder, below) >= UT_DIRECTORY)
		at[0] = 0;
}

void ut_choose_directories(char directories[2][UT_DIRECTORY], const char *directory)
{
	const char *chosen = directory ? directory : secure_getenv("UTRACEFS_DIR");
	const char *folder = secure_getenv("XDG_RUNTIME_DIR");
	char here[UT_DIRECTORY];

	directories[0][0] = directories[1][0] = 0;
	if (chosen && chosen[0]) {
		/* Absolute: the program may change its working directory before it connects again. */
		if (chosen[0] != '/' && getcwd(here, sizeof(here) - 1))
			set_directory(directories[0], strcat(here, "/"), chosen);
		if (!directories[0][0])
			set_directory(directories[0], chosen, "");
		return;
	}
	if (folder && folder[0] == '/')
		set_directory(directories[0], folder, "/utracefs");
	else
		snprintf(directories[0], UT_DIRECTORY, "/tmp/utracefs-%u", (unsigned)geteuid());
	set_directory(directories[1], "/run/utracefs", "");
}

int ut_connect(struct ut_descriptor *made, const char directories[2][UT_DIRECTORY], const char *name)
{
	int worst = -ENOENT;

	for (int i = 0; i < 2; i++) {
		struct sockaddr_un address = {.sun_family = AF_UNIX};
		const char *directory = directories[i];
		size_t length = strlen(directory);
		int error;

		if (!length || length + 1 + strlen(name) >= sizeof(address.sun_path))
			continue;
		memcpy(address.sun_path, directory, length);
		address.sun_path[length] = '/';
		strcpy(address.sun_path + length + 1, name);
		error = check_owner(directory);
		if (!error) {
			error = ut_take(made, socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), S_IFSOCK);
			if (error)
				return error == -EBADF ? -EAGAIN : error;
			if (connect(made->fd, (struct sockaddr *)&address, sizeof(address)) == 0)
				return 0;
			error = -errno;
			ut_close(made);
			if (error == -EBADF || error == -ENOTSOCK)
				return -EAGAIN;
		}
		if (worst == -ENOENT)
			worst = error;
	}
	return worst;
}

ssize_t ut_receive(int socket, void *data, size_t size, struct ut_fds *fds)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(UT_MOST_FDS * sizeof(int))];
	} control;
	struct iovec iov = {data, size};
	/* (CMSG_SPACE has room for a fourth descriptor, which the kernel would use.) */
	struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
				.msg_controllen = CMSG_LEN(UT_MOST_FDS * sizeof(int))};
	ssize_t got;

	fds->count = 0;
	do
		got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	if (got <= 0)
		return got < 0 ? -errno : 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
			fds->count = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(fds->fds, CMSG_DATA(c), fds->count * sizeof(int));
		}
	if (!(header.msg_flags & MSG_CTRUNC))
		return got;
	while (fds->count)
		close(fds->fds[--fds->count]);
	return -EMFILE;
}
