/*
 * FILEs on a file of user_events_data.
 *
 * libc's own FILEs call write inside of libc, past any wrapper. So this is a stream with its own functions
 * (fopencookie): it buffers like any other (setvbuf, fflush, fclose), and each flush writes one record, as
 * the kernel's file would see it. fileno() returns the descriptor, for ioctl and for writing without a
 * buffer: libstdc++'s std::ofstream does that.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "preload_calls.h"

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

FILE *ut_stream(int fd, const char *mode)
{
	const cookie_io_functions_t functions = { .read = stream_read,
						  .write = stream_write,
						  .close = stream_close };
	FILE *stream = fopencookie((void *)(intptr_t)fd, mode, functions);

#ifdef __GLIBC__
	/* fileno reads these: a member that glibc shows, and the flag of streams with a descriptor
	 * (_IO_IS_FILEBUF, part of its ABI). */
	if (stream) {
		stream->_fileno = fd;
		stream->_flags |= 0x2000;
	}
#endif
	return stream;
}
