/*
 * The wrapped calls that close and copy descriptors: they keep the table (preload_table.h) in step with the
 * process. Calls on other descriptors are passed on after one load and a branch.
 */
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload_next.h"
#include "preload_table.h"

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2u
#endif

/* The entry is removed before the descriptor is closed: its number may be reused at once. */
static struct ut_file *take(int fd)
{
	struct ut_section section;
	struct ut_file *file = NULL;

	if (__builtin_expect(!ut_file_at(fd), 1))
		return NULL;
	ut_section_begin(&section);
	if (ut_file_here())
		file = ut_file_take(fd, NULL);
	ut_section_end(&section);
	return file;
}

static void put(struct ut_file *file)
{
	struct ut_section section;

	if (__builtin_expect(!file, 1))
		return;
	ut_section_begin(&section);
	ut_file_put(file);
	ut_section_end(&section);
}

WRAP(int, close, (int fd))
{
	struct ut_file *file = take(fd);
	const int result = NEXT(close)(fd);

	put(file);
	return result;
}

static void put_all(unsigned first, unsigned last)
{
	int fd;

	while ((fd = ut_file_from(first)) >= 0 && (unsigned)fd <= last && ut_file_here()) {
		put(take(fd));
		first = (unsigned)fd + 1;
	}
}

WRAP(int, close_range, (unsigned first, unsigned last, int flags))
{
	if (first <= last && !((unsigned)flags & ~CLOSE_RANGE_UNSHARE))
		put_all(first, last);
	return NEXT(close_range)(first, last, flags);
}

WRAP(void, closefrom, (int first))
{
	put_all(first < 0 ? 0 : (unsigned)first, ~0u);
	NEXT(closefrom)(first);
}

/* `to` is a copy of `fd` now, or to < 0. Its former entry is removed. */
static int copied(int fd, int to)
{
	struct ut_section section;
	struct ut_file *file;

	if (to < 0 || __builtin_expect(!ut_file_at(fd) && !ut_file_at(to), 1))
		return to;
	ut_section_begin(&section);
	if (ut_file_here()) {
		file = ut_file_at(fd) ? ut_file_get(fd) : NULL;
		if (file)
			ut_file_set(to, file);
		else
			file = ut_file_take(to, NULL);
		ut_file_put(file);
	}
	ut_section_end(&section);
	return to;
}

WRAP(int, dup, (int fd))
{
	return copied(fd, NEXT(dup)(fd));
}

WRAP(int, dup2, (int fd, int to))
{
	const int result = NEXT(dup2)(fd, to);

	return fd == to ? result : copied(fd, result);
}

WRAP(int, dup3, (int fd, int to, int flags))
{
	return copied(fd, NEXT(dup3)(fd, to, flags));
}

WRAP(int, fcntl, (int fd, int command, void *argument))
{
	const int result = NEXT(fcntl)(fd, command, argument);

	return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? copied(fd, result) : result;
}
ALIAS(int, fcntl64, fcntl, (int fd, int command, void *argument))

long ut_descriptor_call(int *mine, long number, long a, long b, long c)
{
	*mine = 1;
	switch (number) {
	case SYS_close:
		return ut_wrap_close((int)a);
#ifdef SYS_close_range
	case SYS_close_range:
		return ut_wrap_close_range((unsigned)a, (unsigned)b, (int)c);
#endif
	case SYS_dup:
		return ut_wrap_dup((int)a);
#ifdef SYS_dup2
	case SYS_dup2:
		return ut_wrap_dup2((int)a, (int)b);
#endif
	case SYS_dup3:
		return ut_wrap_dup3((int)a, (int)b, (int)c);
	case SYS_fcntl:
		return ut_wrap_fcntl((int)a, (int)b, (void *)c);
	}
	*mine = 0;
	return 0;
}
