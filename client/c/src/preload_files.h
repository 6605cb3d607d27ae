/*
 * Which descriptors of the program are files of user_events_data that this library stands for.
 *
 * What the program holds is a memfd named user_events_data, so everything else that one does with a
 * descriptor (fstat, poll, dup, fork, passing it on, /proc/self/fd) does something sane. It is sealed: a
 * write that does not come by here is EPERM and changes nothing. It holds the list of the file's
 * registrations, by which another process that gets the descriptor (exec, SCM_RIGHTS) knows it, and makes
 * a connection of its own with the same write indexes.
 *
 *     descriptor -> table -> struct ut_file -> struct ut_session (the connection, session.h)
 *
 * The table has an entry for each descriptor; dup'ed ones share a file. It is changed under a lock, with
 * signals blocked, and read without one: by write, which a signal handler may call and which takes
 * nanoseconds. A write that is overtaken by the close of its descriptor may look at a file that is closed,
 * or another one by now, as it would find another file under its number in the kernel. Nothing is unmapped
 * under it: a struct ut_file is only used again, and the core keeps sessions that were closed (session.c).
 *
 * The number of a descriptor says nothing about what was done to it without us (a system call by
 * instruction, fclose inside of libc). ut_file_is asks for the inode; who writes asks before it gives an
 * error back, and now and then otherwise (preload_write.c).
 */
#ifndef UTRACEFS_PRELOAD_FILES_H
#define UTRACEFS_PRELOAD_FILES_H

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stddef.h>
#include <sys/types.h>

#include "session.h"

#define UT_TABLE_PAGE 1024u
#define UT_TABLE_PAGES 1024u /* descriptors up to 2^20, the kernel's nr_open unless it was raised */

struct ut_file {
	_Atomic(struct ut_session *) session; /* NULL: closed */
	unsigned references;                  /* entries of the table, and calls that are under way */
	int access;                           /* O_RDONLY, O_WRONLY or O_RDWR */
	dev_t dev;                            /* of the memfd */
	ino_t ino;
	void *list; /* of the registrations, writable; NULL: not ours to write, or there is none */
	struct ut_file *next;
};

extern _Atomic(_Atomic(struct ut_file *) *) ut_table[UT_TABLE_PAGES];
extern _Atomic unsigned ut_table_used; /* entries */

/* The file at `fd`, or NULL. Where there is none among 1,024 descriptors this is one load and a branch. */
static inline struct ut_file *ut_file_at(int fd)
{
	_Atomic(struct ut_file *) *page;

	if ((unsigned)fd >= UT_TABLE_PAGE * UT_TABLE_PAGES)
		return NULL;
	page = atomic_load_explicit(&ut_table[(unsigned)fd / UT_TABLE_PAGE], memory_order_acquire);
	return page ? atomic_load_explicit(&page[(unsigned)fd % UT_TABLE_PAGE], memory_order_acquire) : NULL;
}

/* Around all that may take a lock: signals blocked (a handler may call us), no cancellation (the lock
 * would stay locked), errno as it was. */
struct ut_section {
	sigset_t signals;
	int cancel;
	int error;
};

void ut_section_begin(struct ut_section *section);
void ut_section_end(const struct ut_section *section);

/* All of these are called inside of a section. */

/* Opens a file as open(2) with `flags` would, and closes `real` (-1: none) before it takes a number. The
 * descriptor; -errno; or -ENOTCONN when no daemon answers, and `real` is as it was. */
int ut_file_open(int flags, int real);

/* The file at `fd`, referenced: give it back with ut_file_put. Knows one that another process made. NULL:
 * not ours. */
struct ut_file *ut_file_get(int fd);
void ut_file_put(struct ut_file *file);

/* Whether `fd` is (still) that file. */
int ut_file_is(const struct ut_file *file, int fd);

/* Takes the entry of `fd` away, before the descriptor goes. It is the file's reference: NULL, or to be
 * put. */
struct ut_file *ut_file_take(int fd);

/* Takes it away if it is still that of `file`. */
void ut_file_forget(int fd, const struct ut_file *file);

/* Makes `fd` another descriptor of `file`; NULL: of nothing of ours. */
void ut_file_set(int fd, struct ut_file *file);

/* The first descriptor from `fd` on that has an entry, or -1. */
int ut_file_from(unsigned fd);

/* Notes a registration in the file's list. */
void ut_file_note(struct ut_file *file, uint32_t write_index, const char *command, uint16_t flags,
		  uint16_t event_id);

/* Whether this is the process whose table of descriptors ours describes, and not a child of vfork, which
 * has our memory and descriptors of its own. */
int ut_file_here(void);

#endif
