/*
 * A table of the program's descriptors that a preload library has made, and the wrapped calls that change it
 * (preload_descriptors.c).
 *
 *     descriptor -> table -> struct ut_file, the head of the library's own struct
 *
 * The table has an entry for each descriptor; dup'ed ones share a file. It is changed under a lock, with
 * signals blocked, and read without one by write, which a signal handler may call and which takes
 * nanoseconds. If another thread closes the descriptor during a write, the write may use a file that is
 * closed or replaced; in the kernel, too, it would find another file under its number.
 *
 * A number does not identify a file: the program may have closed it without this library (a system call by
 * instruction, fclose inside of libc). ut_file_is compares the inode; a writer calls it before it returns an
 * error, and otherwise once in many writes (preload_write.c).
 */
#ifndef UTRACEFS_PRELOAD_TABLE_H
#define UTRACEFS_PRELOAD_TABLE_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>

#define UT_TABLE_SIZE (1u << 20) /* descriptors: the kernel's nr_open unless it was raised */

struct ut_file {
	unsigned references; /* table entries, and calls in progress */
	dev_t dev;
	ino_t ino;
};

extern _Atomic(struct ut_file *) *ut_table; /* [UT_TABLE_SIZE] */
extern _Atomic unsigned ut_table_end; /* entries from here on were never used. 0: there is no table yet */

/* Never held during a call of the core, nor one that may block. */
extern pthread_mutex_t ut_file_lock;

/* The file at `fd`, or NULL. Beyond the last file that the program had this is one load and a branch. */
static inline struct ut_file *ut_file_at(int fd)
{
	if ((unsigned)fd >= atomic_load_explicit(&ut_table_end, memory_order_acquire))
		return NULL;
	return atomic_load_explicit(&ut_table[fd], memory_order_acquire);
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

/* A library with this table defines these. `ut_file_released`: the last reference to `file` is gone.
 * `ut_file_adopt`: `fd` is not in the table, and perhaps a file that another process made; referenced, or
 * NULL. */
void ut_file_released(struct ut_file *file);
struct ut_file *ut_file_adopt(int fd);

/* All of these are called inside of a section. */

/* Before the first file is made. */
void ut_file_begin(void);

/* Puts a new file, with one reference, at `fd`. 0: there is no space; `fd` is closed, and the file
 * released. */
int ut_file_add(int fd, struct ut_file *file);

/* The file at `fd`, referenced: release it with ut_file_put. Recognizes one that another process made.
 * NULL: not a file of this library. */
struct ut_file *ut_file_get(int fd);
void ut_file_put(struct ut_file *file);

/* Whether `fd` (still) refers to that file. */
int ut_file_is(const struct ut_file *file, int fd);

/* Removes the entry of `fd`, before the descriptor is closed, if it is that of `only` (NULL: of any). Returns
 * the entry's reference, for ut_file_put, or NULL. */
struct ut_file *ut_file_take(int fd, const struct ut_file *only);

/* Makes `fd` another descriptor of `file`. 0: there is no space. */
int ut_file_set(int fd, struct ut_file *file);

/* The first descriptor from `fd` on that has an entry, or -1. */
int ut_file_from(unsigned fd);

/* Whether this process has the table of descriptors that ours describes. False in a child of vfork, which
 * has our memory and its own descriptors. */
int ut_file_here(void);

/* The wrapped calls of preload_descriptors.c by number. `mine`: whether it is one of them. */
long ut_descriptor_call(int *mine, long number, long a, long b, long c);

#endif
