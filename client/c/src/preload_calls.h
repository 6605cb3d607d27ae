/* What the wrapped calls do for a descriptor that is ours: between preload.c and the files of each. */
#ifndef UTRACEFS_PRELOAD_CALLS_H
#define UTRACEFS_PRELOAD_CALLS_H

#include <stdio.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "preload_files.h"

#define UT_VISIBLE __attribute__((visibility("default")))

/* write and writev of a record to the file that the table has at `fd`. 1: done, *result is what to return,
 * and errno is set. 0: `fd` is another file by now; pass the call on. From signal handlers, too; allocates
 * nothing and takes no lock (but where it finds out that a descriptor is not ours any more). */
int ut_record(int fd, struct ut_file *file, const struct iovec *iov, int count, ssize_t *result);

/* write(2)'s arguments: as one piece, and of 0 bytes it is EFAULT. */
int ut_record_piece(int fd, struct ut_file *file, const void *data, size_t size, ssize_t *result);

/* DIAG_IOCSREG, DIAG_IOCSDEL, DIAG_IOCSUNREG: 0 or -errno. Inside of a section. */
long ut_ioctl(struct ut_file *file, unsigned long request, void *argument);
int ut_is_ioctl(unsigned long request);

/* A stream whose write is ours (libc's own writes are not to be wrapped). `fd` is closed with it. NULL:
 * errno. */
FILE *ut_stream(int fd, const char *mode);

#endif
