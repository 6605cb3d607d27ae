/*
 * The program's descriptors that this library makes in place of user_events_data.
 *
 * The program has a memfd named user_events_data, so all other operations on the descriptor (fstat, poll,
 * dup, fork, SCM_RIGHTS, /proc/self/fd) have a sensible result. The memfd is sealed: a write that bypasses
 * this library is EPERM and changes nothing. It contains the list of the file's registrations; another
 * process that gets the descriptor (exec, SCM_RIGHTS) recognizes it by that, and makes a connection of its
 * own with the same write indexes.
 *
 *     descriptor -> table -> struct ut_file -> struct ut_session (the connection, session.h)
 *
 * The table has an entry for each descriptor; dup'ed ones share a file. It is changed under a lock, with
 * signals blocked, and read without one by write, which a signal handler may call and which takes
 * nanoseconds. If another thread closes the descriptor during a write, the write may use a file that is
 * closed or replaced; in the kernel, too, it would find another file under its number. Nothing is unmapped
 * during a write: a struct ut_file is only reused, and the core keeps closed sessions (session.c).
 *
 * A number does not identify a file: the program may have closed it without this library (a system call by
 * instruction, fclose inside of libc). ut_file_is compares the inode; a writer calls it before it returns an
 * error, and otherwise once in many writes (preload_write.c).
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
	unsigned references;                  /* table entries, and calls in progress */
	int access;                           /* O_RDONLY, O_WRONLY or O_RDWR */
	dev_t dev;                            /* of the memfd */
	ino_t ino;
	void *list; /* of the registrations, writable; NULL: not writable for us, or there is none */
	struct ut_file *next;
};

extern _Atomic(_Atomic(struct ut_file *) *) ut_table[UT_TABLE_PAGES];
extern _Atomic unsigned ut_table_used; /* entries */

/* The file at `fd`, or NULL. If there is none among 1,024 descriptors this is one load and a branch. */
static inline struct ut_file *ut_file_at(int fd)
{
	_Atomic(struct ut_file *) *page;

	if ((unsigned)fd >= UT_TABLE_PAGE * UT_TABLE_PAGES)
		return NULL;
	page = atomic_load_explicit(&ut_table[(unsigned)fd / UT_TABLE_PAGE], memory_order_acquire);
	return page ? atomic_load_explicit(&page[(unsigned)fd % UT_TABLE_PAGE], memory_order_acquire) : NULL;
}

/* Around all code that may take a lock: blocks signals (a handler may call wrapped functions) and
 * cancellation (the lock would stay locked), and preserves errno. */
struct ut_section {
	sigset_t signals;
	int cancel;
	int error;
};

void ut_section_begin(struct ut_section *section);
void ut_section_end(const struct ut_section *section);

/* All of these are called inside of a section. */

/* Opens a file as open(2) with `flags` would, and closes `real` (-1: none) before it takes a number. The
 * descriptor; -errno; or -ENOTCONN if no daemon answers, with `real` unchanged. */
int ut_file_open(int flags, int real);

/* The file at `fd`, referenced: release it with ut_file_put. Recognizes one that another process made.
 * NULL: not a file of this library. */
struct ut_file *ut_file_get(int fd);
void ut_file_put(struct ut_file *file);

/* Whether `fd` (still) refers to that file. */
int ut_file_is(const struct ut_file *file, int fd);

/* Removes the entry of `fd`, before the descriptor is closed. Returns the entry's reference, for
 * ut_file_put, or NULL. */
struct ut_file *ut_file_take(int fd);

/* Removes the entry if it is still that of `file`. */
void ut_file_forget(int fd, const struct ut_file *file);

/* Makes `fd` another descriptor of `file`; NULL: of none. */
void ut_file_set(int fd, struct ut_file *file);

/* The first descriptor from `fd` on that has an entry, or -1. */
int ut_file_from(unsigned fd);

/* Adds a registration to the file's list. */
void ut_file_note(struct ut_file *file, uint32_t write_index, const char *command, uint16_t flags,
		  uint16_t event_id);

/* Whether this process has the table of descriptors that ours describes. False in a child of vfork, which
 * has our memory and its own descriptors. */
int ut_file_here(void);

#endif
