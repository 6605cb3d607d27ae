/* The table of a preload library's descriptors: see preload_table.h. */
#include "preload_table.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "preload_next.h"

_Atomic(struct ut_file *) *ut_table;
_Atomic unsigned ut_table_end;
pthread_mutex_t ut_file_lock = PTHREAD_MUTEX_INITIALIZER;

static pid_t process;

void ut_section_begin(struct ut_section *section)
{
	sigset_t all_signals;

	section->error = errno;
	sigfillset(&all_signals);
	pthread_sigmask(SIG_SETMASK, &all_signals, &section->signals);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &section->cancel);
}

void ut_section_end(const struct ut_section *section)
{
	pthread_setcancelstate(section->cancel, NULL);
	pthread_sigmask(SIG_SETMASK, &section->signals, NULL);
	errno = section->error;
}

int ut_file_here(void)
{
	return process == getpid();
}

static void before_fork(void)
{
	pthread_mutex_lock(&ut_file_lock);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&ut_file_lock);
}

static void after_fork_in_child(void)
{
	process = getpid();
	pthread_mutex_unlock(&ut_file_lock);
}

static void begin(void)
{
	void *table = mmap(NULL, UT_TABLE_SIZE * sizeof(*ut_table), PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (table != MAP_FAILED)
		ut_table = table;
	process = getpid();
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* As pthread_once(3), which ends a program whose sandbox refuses futex(2). A child that was forked meanwhile
 * begins itself. */
void ut_file_begin(void)
{
	static _Atomic pid_t beginner;
	static atomic_int has_begun;

	while (!atomic_load(&has_begun)) {
		pid_t other = atomic_load(&beginner), here = getpid();

		if (other != here && atomic_compare_exchange_strong(&beginner, &other, here)) {
			begin();
			atomic_store(&has_begun, 1);
		} else {
			sched_yield();
		}
	}
}

void ut_file_put(struct ut_file *file)
{
	int last;

	if (!file)
		return;
	pthread_mutex_lock(&ut_file_lock);
	last = --file->references == 0;
	pthread_mutex_unlock(&ut_file_lock);
	if (last)
		ut_file_released(file);
}

int ut_file_is(const struct ut_file *file, int fd)
{
	struct stat now;

	return fstat(fd, &now) == 0 && now.st_ino == file->ino && now.st_dev == file->dev;
}

struct ut_file *ut_file_take(int fd, const struct ut_file *only)
{
	struct ut_file *file;

	pthread_mutex_lock(&ut_file_lock);
	file = ut_file_at(fd);
	if (only && file != only)
		file = NULL;
	if (file)
		atomic_store(&ut_table[fd], NULL);
	pthread_mutex_unlock(&ut_file_lock);
	return file;
}

int ut_file_set(int fd, struct ut_file *file)
{
	const int has_space = ut_table && (unsigned)fd < UT_TABLE_SIZE;
	struct ut_file *old = NULL;

	pthread_mutex_lock(&ut_file_lock);
	if (has_space) {
		if ((unsigned)fd >= atomic_load(&ut_table_end))
			atomic_store(&ut_table_end, (unsigned)fd + 1);
		file->references++;
		old = atomic_exchange(&ut_table[fd], file);
	}
	pthread_mutex_unlock(&ut_file_lock);
	ut_file_put(old); /* closed without this library */
	return has_space;
}

int ut_file_from(unsigned fd)
{
	for (; fd < atomic_load(&ut_table_end); fd++)
		if (ut_file_at((int)fd))
			return (int)fd;
	return -1;
}

int ut_file_add(int fd, struct ut_file *file)
{
	const int done = ut_file_set(fd, file);

	if (!done)
		NEXT(close)(fd);
	ut_file_put(file); /* now the table has one, or nobody */
	return done;
}

struct ut_file *ut_file_get(int fd)
{
	struct ut_file *file;

	pthread_mutex_lock(&ut_file_lock);
	file = ut_file_at(fd);
	if (file)
		file->references++;
	pthread_mutex_unlock(&ut_file_lock);
	if (file && !ut_file_is(file, fd)) {
		ut_file_put(ut_file_take(fd, file));
		ut_file_put(file);
		file = NULL;
	}
	if (!file) {
		file = ut_file_adopt(fd);
		if (file)
			ut_file_set(fd, file);
	}
	return file;
}
