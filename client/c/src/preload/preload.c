/*
 * libutracefs-preload.so: programs that use the kernel's user_events ABI, unchanged.
 *
 * With this library in LD_PRELOAD a program that opens /sys/kernel/tracing/user_events_data, registers events
 * by ioctl and writes records gets a connection to the daemon and a data ring instead. If no daemon answers,
 * it gets the kernel's file, or the kernel's errno if that does not exist.
 *
 * This file and preload_descriptors.c have the wrapped symbols; no other is exported (preload.map). Each
 * passes on calls for other files: calls on descriptors after one load and a branch (ut_file_at), open after
 * the call itself. Variadic arguments are declared as named ones: preload_next.h says why.
 *
 * The path is read only after the real open: the kernel has then found that it is a string (not EFAULT), and
 * a program's system calls are the same with and without this library.
 *
 * Not wrapped: exec (the next program, if it has this library, recognizes the descriptor by its content),
 * vfork and posix_spawn (their children close and dup descriptors of their own, so ours are left alone:
 * ut_file_here).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "preload_files.h"
#include "preload_next.h"

/* ---- open */

#define FILE_NAME "user_events_data"
#define TRACEFS 0x74726163
#define DEBUGFS 0x64626720
#define FUSE 0x65735546

static int is_named(const char *path)
{
	const size_t length = strlen(path), name = sizeof(FILE_NAME) - 1;

	return length >= name && memcmp(path + length - name, FILE_NAME, name) == 0 &&
	       (length == name || path[length - name - 1] == '/');
}

/* Whether the result of open allows that this is tracefs' file: it is missing or forbidden, or it is
 * tracefs' or our mount's own. */
static int may_be_ours(const char *path, int real)
{
	const int saved = errno;
	struct stat status;
	struct statfs system;
	int may = 0;

	if (real < 0) {
		switch (saved) {
		case ENOENT:
		case ENOTDIR:
		case EACCES:
		case EPERM:
		case ENODEV:
		case ENOTCONN: /* a mount whose server has ended, or that takes no events */
		case EOPNOTSUPP:
			may = is_named(path);
		}
	} else if (is_named(path) && fstat(real, &status) == 0 && S_ISREG(status.st_mode) &&
		   fstatfs(real, &system) == 0) {
		may = system.f_type == TRACEFS || system.f_type == DEBUGFS || system.f_type == FUSE;
	}
	errno = saved;
	return may;
}

/* One of our files as open would make it with `flags`, in place of `real`, or -1 and errno. If no daemon
 * answers: `real`, with errno unchanged. */
static int take_over(int flags, int real)
{
	struct ut_section section;
	int fd;

	/* Errors in the kernel as well, or not for us. */
	if (flags & (O_PATH | O_DIRECTORY) || (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL))
		return real;
	ut_section_begin(&section);
	fd = ut_file_open(flags, real);
	if (fd == -ENOTCONN) {
		fd = real;
	} else if (fd < 0) {
		section.error = -fd;
		fd = -1;
	}
	ut_section_end(&section);
	return fd;
}

static inline int opened(const char *path, int flags, int real)
{
	return __builtin_expect(may_be_ours(path, real), 0) ? take_over(flags, real) : real;
}

WRAP(int, open, (const char *path, int flags, mode_t mode))
{
	return opened(path, flags, NEXT(open)(path, flags, mode));
}
ALIAS(int, open64, open, (const char *path, int flags, mode_t mode))

WRAP(int, openat, (int folder, const char *path, int flags, mode_t mode))
{
	return opened(path, flags, NEXT(openat)(folder, path, flags, mode));
}
ALIAS(int, openat64, openat, (int folder, const char *path, int flags, mode_t mode))

WRAP(int, creat, (const char *path, mode_t mode))
{
	return opened(path, O_CREAT | O_WRONLY | O_TRUNC, NEXT(creat)(path, mode));
}
ALIAS(int, creat64, creat, (const char *path, mode_t mode))

/* _FORTIFY_SOURCE calls this for an open without a mode. */
WRAP(int, __open_2, (const char *path, int flags))
{
	return opened(path, flags, NEXT(__open_2)(path, flags));
}
ALIAS(int, __open64_2, __open_2, (const char *path, int flags))

WRAP(int, __openat_2, (int folder, const char *path, int flags))
{
	return opened(path, flags, NEXT(__openat_2)(folder, path, flags));
}
ALIAS(int, __openat64_2, __openat_2, (int folder, const char *path, int flags))

/* ---- FILEs
 *
 * libc's own FILEs call write inside of libc, past any wrapper. So this is a stream with its own functions
 * (fopencookie): it buffers like any other (setvbuf, fflush, fclose), and each flush writes one record, as
 * the kernel's file would see it. fileno() returns the descriptor, for ioctl and for writing without a
 * buffer: libstdc++'s std::ofstream does that. */

static ssize_t stream_write(void *cookie, const char *data, size_t size)
{
	/* By name: `fd` may be another file by now. fopencookie reports errors as 0. */
	const ssize_t done = write((int)(intptr_t)cookie, data, size);

	return done < 0 ? 0 : done;
}

static ssize_t stream_read(void *cookie, char *data, size_t size)
{
	return read((int)(intptr_t)cookie, data, size);
}

static int stream_close(void *cookie)
{
	return close((int)(intptr_t)cookie);
}

/* It closes `fd` with itself. NULL: errno. */
static FILE *stream(int fd, const char *mode)
{
	const cookie_io_functions_t functions = { .read = stream_read,
						  .write = stream_write,
						  .close = stream_close };
	FILE *made = fopencookie((void *)(intptr_t)fd, mode, functions);

#ifdef __GLIBC__
	/* fileno reads these: a member that glibc shows, and the flag of streams with a descriptor
	 * (_IO_IS_FILEBUF, part of its ABI). */
	if (made) {
		made->_fileno = fd;
		made->_flags |= 0x2000;
	}
#endif
	return made;
}

static int flags_of_mode(const char *mode)
{
	int flags = *mode == 'r' ? O_RDONLY : *mode == 'a' ? O_WRONLY | O_APPEND : O_WRONLY;

	for (mode++; *mode && *mode != ','; mode++) {
		if (*mode == '+')
			flags = (flags & ~O_ACCMODE) | O_RDWR;
		else if (*mode == 'e')
			flags |= O_CLOEXEC;
		else if (*mode == 'x')
			flags |= O_CREAT | O_EXCL;
	}
	return flags;
}

WRAP(FILE *, fopen, (const char *path, const char *mode))
{
	FILE *real = NEXT(fopen)(path, mode), *ours;
	const int saved = errno;
	int fd;

	if (__builtin_expect(!may_be_ours(path, real ? fileno(real) : -1), 1))
		return real;
	fd = take_over(flags_of_mode(mode), -1);
	if (fd < 0)
		return real;
	ours = stream(fd, mode);
	if (!ours) {
		close(fd);
		return real;
	}
	if (real)
		fclose(real);
	errno = saved;
	return ours;
}
ALIAS(FILE *, fopen64, fopen, (const char *path, const char *mode))

WRAP(FILE *, fdopen, (int fd, const char *mode))
{
	if (__builtin_expect(!ut_file_at(fd), 1))
		return NEXT(fdopen)(fd, mode);
	return stream(fd, mode);
}

/* ---- write */

/* A real write has failed. EPERM comes from the seals of our memfd, so this is one from another process. */
static int is_new(int fd)
{
	struct ut_section section;
	struct ut_file *file;

	if (__builtin_expect(errno != EPERM, 1))
		return 0;
	ut_section_begin(&section);
	file = ut_file_get(fd);
	ut_file_put(file);
	ut_section_end(&section);
	return file != NULL;
}

WRAP(ssize_t, write, (int fd, const void *data, size_t size))
{
	struct ut_file *file = ut_file_at(fd);
	ssize_t result;

	if (__builtin_expect(file != NULL, 0) && ut_record_piece(fd, file, data, size, &result))
		return result;
	result = NEXT(write)(fd, data, size);
	if (__builtin_expect(result < 0, 0) && is_new(fd) && (file = ut_file_at(fd)))
		(void)ut_record_piece(fd, file, data, size, &result);
	return result;
}

WRAP(ssize_t, writev, (int fd, const struct iovec *iov, int count))
{
	struct ut_file *file = ut_file_at(fd);
	ssize_t result;

	if (__builtin_expect(file != NULL, 0) && ut_record(fd, file, iov, count, &result))
		return result;
	result = NEXT(writev)(fd, iov, count);
	if (__builtin_expect(result < 0, 0) && is_new(fd) && (file = ut_file_at(fd)))
		(void)ut_record(fd, file, iov, count, &result);
	return result;
}

/* Only offset 0 can be written; the position is checked before the record. */
static ssize_t elsewhere(off_t offset)
{
	errno = offset < 0 ? EINVAL : EFAULT;
	return -1;
}

WRAP(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t offset))
{
	if (__builtin_expect(!ut_file_at(fd), 1))
		return NEXT(pwrite)(fd, data, size, offset);
	return offset ? elsewhere(offset) : ut_wrap_write(fd, data, size);
}
ALIAS(ssize_t, pwrite64, pwrite, (int fd, const void *data, size_t size, off_t offset))

WRAP(ssize_t, pwritev, (int fd, const struct iovec *iov, int count, off_t offset))
{
	if (__builtin_expect(!ut_file_at(fd), 1))
		return NEXT(pwritev)(fd, iov, count, offset);
	return offset ? elsewhere(offset) : ut_wrap_writev(fd, iov, count);
}
ALIAS(ssize_t, pwritev64, pwritev, (int fd, const struct iovec *iov, int count, off_t offset))

WRAP(ssize_t, pwritev2, (int fd, const struct iovec *iov, int count, off_t offset, int flags))
{
	if (__builtin_expect(!ut_file_at(fd), 1))
		return NEXT(pwritev2)(fd, iov, count, offset, flags);
	if (flags & ~(RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_APPEND)) {
		errno = EOPNOTSUPP;
		return -1;
	}
	return offset && offset != -1 ? elsewhere(offset) : ut_wrap_writev(fd, iov, count);
}
ALIAS(ssize_t, pwritev64v2, pwritev2, (int fd, const struct iovec *iov, int count, off_t offset, int flags))

/* ---- other operations */

WRAP(int, ioctl, (int fd, unsigned long request, void *argument))
{
	struct ut_section section;
	struct ut_file *file;
	long result;

	/* One that came from another process has no entry yet. */
	if (__builtin_expect(!ut_is_ioctl(request), 1))
		return NEXT(ioctl)(fd, request, argument);
	ut_section_begin(&section);
	file = ut_file_get(fd);
	result = file ? ut_ioctl(file, request, argument) : 0;
	if (result < 0)
		section.error = (int)-result;
	ut_file_put(file);
	ut_section_end(&section);
	if (!file)
		return NEXT(ioctl)(fd, request, argument);
	return result < 0 ? -1 : 0;
}

/* The kernel's file has nothing to read, and no position. */
WRAP(ssize_t, read, (int fd, void *data, size_t size))
{
	struct ut_file *file = ut_file_at(fd);

	if (__builtin_expect(!file, 1) || ut_data_file(file)->access == O_WRONLY)
		return NEXT(read)(fd, data, size);
	errno = EINVAL;
	return -1;
}

WRAP(off_t, lseek, (int fd, off_t offset, int whence))
{
	if (__builtin_expect(!ut_file_at(fd), 1))
		return NEXT(lseek)(fd, offset, whence);
	errno = ESPIPE;
	return -1;
}
ALIAS(off_t, lseek64, lseek, (int fd, off_t offset, int whence))

/* ---- syscall */

/* The calls above, by number. `mine`: whether it is one of them. */
static __attribute__((noinline)) long by_number(int *mine, long number, long a, long b, long c, long d,
						 long e, long f)
{
	const long result = ut_descriptor_call(mine, number, a, b, c);

	if (*mine)
		return result;
	*mine = 1;
	switch (number) {
#ifdef SYS_open
	case SYS_open:
		return ut_wrap_open((const char *)a, (int)b, (mode_t)c);
	case SYS_creat:
		return ut_wrap_creat((const char *)a, (mode_t)b);
#endif
	case SYS_openat:
		return ut_wrap_openat((int)a, (const char *)b, (int)c, (mode_t)d);
#ifdef SYS_openat2
	case SYS_openat2: {
		const int real = (int)NEXT(syscall)(number, a, b, c, d, e, f);

		/* Not EFAULT, so the struct exists. */
		return may_be_ours((const char *)b, real) ?
			       take_over((int)((const struct open_how *)c)->flags, real) :
			       real;
	}
#endif
	case SYS_ioctl:
		return ut_wrap_ioctl((int)a, (unsigned long)b, (void *)c);
	case SYS_read:
		return ut_wrap_read((int)a, (void *)b, (size_t)c);
	case SYS_lseek:
		return ut_wrap_lseek((int)a, b, (int)c);
	case SYS_write:
		return ut_wrap_write((int)a, (const void *)b, (size_t)c);
	case SYS_writev:
		return ut_wrap_writev((int)a, (const struct iovec *)b, (int)c);
	case SYS_pwrite64:
		return ut_wrap_pwrite((int)a, (const void *)b, (size_t)c, d);
	case SYS_pwritev:
		return ut_wrap_pwritev((int)a, (const struct iovec *)b, (int)c, d);
	case SYS_pwritev2:
		return ut_wrap_pwritev2((int)a, (const struct iovec *)b, (int)c, d, (int)f);
	default:
		*mine = 0;
		return 0;
	}
}

/* All other calls are passed on at the end, by a jump: a call that returns twice or on another stack
 * (clone) does not return to here. */
WRAP(long, syscall, (long number, long a, long b, long c, long d, long e, long f))
{
	int mine;
	const long result = by_number(&mine, number, a, b, c, d, e, f);

	return mine ? result : NEXT(syscall)(number, a, b, c, d, e, f);
}
