/* Connecting to the daemon's socket; utracefs_protocol/places.py has the rule of directories. */
#include <stdio.h>
#include <sys/un.h>

#include "connection.h"

/* Every user may make a directory in /tmp: this one must be ours, without access for others. 0 or -errno. */
static int check_owner(const char *directory)
{
	char temporary[sizeof("/tmp/utracefs-4294967295")];
	struct stat found;

	snprintf(temporary, sizeof(temporary), "/tmp/utracefs-%u", (unsigned)geteuid());
	if (strcmp(directory, temporary))
		return 0;
	if (lstat(directory, &found) < 0)
		return -errno;
	return S_ISDIR(found.st_mode) && found.st_uid == geteuid() && !(found.st_mode & 077) ? 0 : -EPERM;
}

int ut_connect(const struct ut_settings *settings)
{
	int worst = -ENOENT;

	for (int i = 0; i < 2; i++) {
		struct sockaddr_un address = {.sun_family = AF_UNIX};
		const char *directory = settings->directories[i];
		int error, fd;

		if (!directory[0] ||
		    (size_t)snprintf(address.sun_path, sizeof(address.sun_path), "%s/user_events_data", directory) >=
			    sizeof(address.sun_path))
			continue;
		error = check_owner(directory);
		if (!error) {
			fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
			if (fd < 0)
				return -errno;
			if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
				return fd;
			error = -errno;
			close(fd);
		}
		if (worst == -ENOENT)
			worst = error;
	}
	return worst;
}
