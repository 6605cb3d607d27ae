/* The wrapped calls' work for a file of user_events_data: between preload.c and the files of each. */
#ifndef UTRACEFS_PRELOAD_CALLS_H
#define UTRACEFS_PRELOAD_CALLS_H

#include <sys/types.h>
#include <sys/uio.h>

#include "preload_files.h"

/* write and writev of a record to the file that the table has at `fd`. 1: done, *result is the return
 * value, and errno is set. 0: `fd` is another file now; pass the call on. Allowed in signal handlers;
 * allocates nothing and takes no lock (unless it finds that a descriptor was replaced). */
int ut_record(int fd, struct ut_file *file, const struct iovec *iov, int count, ssize_t *result);

/* write(2)'s arguments: as one piece, and of 0 bytes it is EFAULT. */
int ut_record_piece(int fd, struct ut_file *file, const void *data, size_t size, ssize_t *result);

/* DIAG_IOCSREG, DIAG_IOCSDEL, DIAG_IOCSUNREG: 0 or -errno. Inside of a section. */
long ut_ioctl(struct ut_file *file, unsigned long request, void *argument);
int ut_is_ioctl(unsigned long request);

#endif
