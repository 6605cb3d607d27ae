/*
 * The program's descriptors that this library makes in place of user_events_data.
 *
 * The program has a memfd named user_events_data, so all other operations on the descriptor (fstat, poll,
 * dup, fork, SCM_RIGHTS, /proc/self/fd) have a sensible result. The memfd is sealed: a write that bypasses
 * this library is EPERM and changes nothing. It contains the list of the file's registrations; another
 * process that gets the descriptor (exec, SCM_RIGHTS) recognizes it by that, and makes a connection of its
 * own with the same write indexes.
 *
 *     struct ut_data_file -> struct ut_session (the connection, session.h)
 *
 * Nothing is unmapped during a write (preload_table.h): a struct ut_data_file is only reused, and the core
 * keeps closed sessions (session.c).
 */
#ifndef UTRACEFS_PRELOAD_FILES_H
#define UTRACEFS_PRELOAD_FILES_H

#include <stdint.h>
#include <sys/uio.h>

#include "preload_table.h"
#include "session.h"

struct ut_data_file {
	struct ut_file file;
	_Atomic(struct ut_session *) session; /* NULL: closed */
	int access;                           /* O_RDONLY, O_WRONLY or O_RDWR */
	void *list; /* of the registrations, writable; NULL: not writable for us, or there is none */
	pid_t writer; /* of the list: not a child of its */
	int is_stray; /* the program has closed a descriptor without this library, and writes to another file */
	int in_use;
	struct ut_data_file *next; /* of all */
};

static inline struct ut_data_file *ut_data_file(struct ut_file *file)
{
	return (struct ut_data_file *)file;
}

/* These two are called inside of a section. */

/* Opens a file as open(2) with `flags` would, and closes `real` (-1: none) before it takes a number. The
 * descriptor; -errno; or -ENOTCONN if no daemon answers, with `real` unchanged. */
int ut_file_open(int flags, int real);

/* Adds a registration to the file's list. */
void ut_file_note(struct ut_file *file, uint32_t write_index, const char *command, uint16_t flags,
		  uint16_t event_id);

/* ---- the wrapped calls' work for such a file */

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
