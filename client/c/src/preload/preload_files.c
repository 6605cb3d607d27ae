/* The files of user_events_data of this process: see preload_files.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "preload_files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "preload_next.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u
#endif
#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE)

#define FILES 64u /* made together */

_Atomic(_Atomic(struct ut_file *) *) ut_table[UT_TABLE_PAGES];
_Atomic unsigned ut_table_used;

/* Never held during a call of the core, nor one that may block. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pid_t process;
static struct ut_file *unused; /* linked by next; guarded by `lock`, like everything below */
static struct files {
	struct files *next;
	struct ut_file file[FILES];
} *all;

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

/* ---- fork */

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&lock);
}

/* The core handles the sessions. Lists written by the parent remain the parent's. */
static void after_fork_in_child(void)
{
	struct files *files;
	unsigned i;

	process = getpid();
	for (files = all; files; files = files->next)
		for (i = 0; i < FILES; i++)
			files->file[i].list = NULL;
	pthread_mutex_unlock(&lock);
}

static void begin(void)
{
	process = getpid();
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- the list in the memfd */

#define LIST_SIZE (256u << 10) /* two thousand events of a hundred bytes; further ones are not passed on */
#define LIST_MAGIC 0x3274736c66637475u /* "utcflst2" */

struct list {
	uint64_t magic;
	_Atomic uint32_t end; /* bytes used, this header included; stored when everything before it is
			       * written */
	uint32_t reserved;
	unsigned char entries[];
};

struct entry { /* at a multiple of 4; in the order of registration */
	uint32_t write_index;
	uint16_t flags;
	uint16_t length; /* of the command string that follows, without NUL */
	uint16_t event_id; /* of ut_session_register */
	uint16_t reserved;
	char command[];
};

static uint32_t padded(uint32_t length)
{
	return (uint32_t)sizeof(struct entry) + ((length + 3) & ~3u);
}

void ut_file_note(struct ut_file *file, uint32_t write_index, const char *command, uint16_t flags,
		  uint16_t event_id)
{
	const uint32_t length = (uint32_t)strlen(command);
	struct list *list;
	uint32_t at, end;

	pthread_mutex_lock(&lock);
	list = file->list;
	if (list) {
		end = atomic_load_explicit(&list->end, memory_order_relaxed);
		for (at = sizeof(*list); at < end;) {
			const struct entry *entry = (const void *)((char *)list + at);

			if (entry->write_index == write_index)
				break; /* registered again */
			at += padded(entry->length);
		}
		if (at == end && end + padded(length) <= LIST_SIZE) {
			struct entry *entry = (void *)((char *)list + end);

			entry->write_index = write_index;
			entry->flags = flags;
			entry->length = (uint16_t)length;
			entry->event_id = event_id;
			memcpy(entry->command, command, length);
			atomic_store_explicit(&list->end, end + padded(length), memory_order_release);
		}
	}
	pthread_mutex_unlock(&lock);
}

/* Registers the events of a list, in the order of its indexes. Trusts nothing in it: another process wrote
 * it. */
static void replay(struct ut_session *session, const struct list *list)
{
	uint32_t end = atomic_load_explicit(&list->end, memory_order_acquire);
	uint32_t index, at;

	if (end > LIST_SIZE)
		end = LIST_SIZE;
	for (index = 0;; index++) {
		char command[UT_MAX_COMMAND + 1];
		uint32_t got;
		int found = 0;

		for (at = sizeof(*list); at + sizeof(struct entry) <= end && !found;) {
			const struct entry *entry = (const void *)((const char *)list + at);
			const uint32_t length = entry->length;

			if (length >= sizeof(command) || at + padded(length) > end)
				break;
			if (entry->write_index == index) {
				uint16_t event_id = entry->event_id;

				memcpy(command, entry->command, length);
				command[length] = '\0';
				found = ut_session_register(session, command, entry->flags, &event_id, &got) == 0 &&
					got == index;
				if (!found)
					return;
			}
			at += padded(length);
		}
		if (!found)
			return;
	}
}

/* ---- files */

/* One with a reference, not in the table yet; NULL: no memory. With `lock` held. */
static struct ut_file *make(struct ut_session *session)
{
	struct ut_file *file;
	unsigned i;

	if (!unused) {
		struct files *files = mmap(NULL, sizeof(*files), PROT_READ | PROT_WRITE,
					   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (files == MAP_FAILED)
			return NULL;
		files->next = all;
		all = files;
		for (i = 0; i < FILES; i++) {
			files->file[i].next = unused;
			unused = &files->file[i];
		}
	}
	file = unused;
	unused = file->next;
	file->references = 1;
	file->access = O_RDWR;
	file->dev = 0;
	file->ino = 0;
	file->list = NULL;
	atomic_store(&file->session, session);
	return file;
}

void ut_file_put(struct ut_file *file)
{
	void *list;
	int last;

	if (!file)
		return;
	pthread_mutex_lock(&lock);
	last = --file->references == 0;
	pthread_mutex_unlock(&lock);
	if (!last)
		return;
	ut_session_close(atomic_exchange(&file->session, NULL));
	list = file->list;
	if (list)
		munmap(list, LIST_SIZE);
	pthread_mutex_lock(&lock);
	file->list = NULL;
	file->next = unused;
	unused = file;
	pthread_mutex_unlock(&lock);
}

int ut_file_is(const struct ut_file *file, int fd)
{
	struct stat now;

	return fstat(fd, &now) == 0 && now.st_ino == file->ino && now.st_dev == file->dev;
}

/* The entry of `fd`, to be changed; NULL: a descriptor beyond the table, or no memory. With `lock` held. */
static _Atomic(struct ut_file *) *place(int fd)
{
	_Atomic(_Atomic(struct ut_file *) *) *page;
	void *memory;

	if ((unsigned)fd >= UT_TABLE_PAGE * UT_TABLE_PAGES)
		return NULL;
	page = &ut_table[(unsigned)fd / UT_TABLE_PAGE];
	if (!atomic_load(page)) {
		memory = mmap(NULL, UT_TABLE_PAGE * sizeof(**page), PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED)
			return NULL;
		atomic_store(page, memory);
	}
	return &atomic_load(page)[(unsigned)fd % UT_TABLE_PAGE];
}

/* Puts `file` there, which may be NULL; returns the previous one. With `lock` held. 0 as *done: no space. */
static struct ut_file *exchange(int fd, struct ut_file *file, int *done)
{
	_Atomic(struct ut_file *) *entry;
	struct ut_file *old;

	*done = 1;
	if (!file && !ut_file_at(fd))
		return NULL;
	entry = place(fd);
	if (!entry) {
		*done = 0;
		return NULL;
	}
	old = atomic_exchange(entry, file);
	if (file && !old)
		atomic_fetch_add(&ut_table_used, 1);
	if (!file && old)
		atomic_fetch_sub(&ut_table_used, 1);
	return old;
}

struct ut_file *ut_file_take(int fd)
{
	struct ut_file *old;
	int done;

	pthread_mutex_lock(&lock);
	old = exchange(fd, NULL, &done);
	pthread_mutex_unlock(&lock);
	return old;
}

void ut_file_forget(int fd, const struct ut_file *file)
{
	struct ut_file *old = NULL;
	int done;

	pthread_mutex_lock(&lock);
	if (ut_file_at(fd) == file)
		old = exchange(fd, NULL, &done);
	pthread_mutex_unlock(&lock);
	ut_file_put(old);
}

void ut_file_set(int fd, struct ut_file *file)
{
	struct ut_file *old;
	int done;

	pthread_mutex_lock(&lock);
	old = exchange(fd, file, &done);
	if (file && done)
		file->references++;
	pthread_mutex_unlock(&lock);
	ut_file_put(old);
}

int ut_file_from(unsigned fd)
{
	for (; fd < UT_TABLE_PAGE * UT_TABLE_PAGES; fd++) {
		if (!atomic_load(&ut_table[fd / UT_TABLE_PAGE]))
			fd |= UT_TABLE_PAGE - 1;
		else if (ut_file_at((int)fd))
			return (int)fd;
	}
	return -1;
}

/* The same file, opened once more. -1: there is no /proc. */
static int open_again(int fd, int access)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return NEXT(open)(path, access | O_CLOEXEC, 0);
}

/* A memfd for `file`, with a list if there is space for one. The descriptor, or -errno. */
static int make_descriptor(struct ut_file *file, int flags)
{
	const unsigned how = MFD_ALLOW_SEALING | (flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
	struct rlimit largest;
	struct stat status;
	void *list = MAP_FAILED;
	int fd = memfd_create("user_events_data", how | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
		fd = memfd_create("user_events_data", how);
	if (fd < 0)
		return -errno;
	/* A file larger than the limit causes a signal. */
	if (getrlimit(RLIMIT_FSIZE, &largest) == 0 && largest.rlim_cur >= LIST_SIZE &&
	    ftruncate(fd, LIST_SIZE) == 0)
		list = mmap(NULL, LIST_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (list != MAP_FAILED) {
		file->list = list;
		((struct list *)list)->magic = LIST_MAGIC;
		atomic_store(&((struct list *)list)->end, sizeof(struct list));
	}
	file->access = flags & O_ACCMODE;
	if (fcntl(fd, F_ADD_SEALS, SEALS) < 0 || fstat(fd, &status) < 0) {
		const int error = errno;

		NEXT(close)(fd);
		return -error;
	}
	if (file->access != O_RDWR) { /* so that fcntl(F_GETFL) returns it; impossible without /proc */
		const int again = open_again(fd, file->access);

		if (again >= 0) {
			NEXT(dup3)(again, fd, flags & O_CLOEXEC);
			NEXT(close)(again);
		}
	}
	if (flags & (O_NONBLOCK | O_APPEND))
		fcntl(fd, F_SETFL, flags & (O_NONBLOCK | O_APPEND));
	file->dev = status.st_dev;
	file->ino = status.st_ino;
	return fd;
}

int ut_file_open(int flags, int real)
{
	struct ut_session *session;
	struct ut_file *file, *old;
	int fd, done;

	pthread_once(&once, begin);
	if (ut_session_open(&session, UT_WAIT) < 0)
		return -ENOTCONN;
	if (real >= 0)
		NEXT(close)(real);
	pthread_mutex_lock(&lock);
	file = make(session);
	pthread_mutex_unlock(&lock);
	if (!file) {
		ut_session_close(session);
		return -ENOMEM;
	}
	fd = make_descriptor(file, flags);
	if (fd >= 0) {
		pthread_mutex_lock(&lock);
		old = exchange(fd, file, &done); /* takes ownership of the reference */
		pthread_mutex_unlock(&lock);
		ut_file_put(old); /* closed without this library */
		if (done)
			return fd;
		NEXT(close)(fd);
		fd = -EMFILE;
	}
	ut_file_put(file);
	return fd;
}

/* A descriptor that came from another process, by exec or over a socket, or was copied without this
 * library. */
static struct ut_file *adopt(int fd)
{
	const int seals = fcntl(fd, F_GET_SEALS);
	struct ut_session *session;
	struct ut_file *file = NULL;
	const struct list *list;
	struct files *files;
	struct stat now;
	unsigned i;

	if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &now) < 0 || now.st_size != LIST_SIZE)
		return NULL;
	pthread_once(&once, begin);
	pthread_mutex_lock(&lock);
	for (files = all; files && !file; files = files->next)
		for (i = 0; i < FILES && !file; i++)
			if (files->file[i].references && files->file[i].ino == now.st_ino &&
			    files->file[i].dev == now.st_dev) {
				file = &files->file[i];
				file->references++;
			}
	pthread_mutex_unlock(&lock);
	if (file)
		return file;
	list = mmap(NULL, LIST_SIZE, PROT_READ, MAP_SHARED, fd, 0);
	if (list == MAP_FAILED) { /* opened for writing only */
		const int readable = open_again(fd, O_RDONLY);

		list = mmap(NULL, LIST_SIZE, PROT_READ, MAP_SHARED, readable, 0);
		if (readable >= 0)
			NEXT(close)(readable);
	}
	if (list == MAP_FAILED)
		return NULL;
	if (list->magic == LIST_MAGIC && ut_session_open(&session, UT_WAIT) == 0) {
		replay(session, list);
		pthread_mutex_lock(&lock);
		file = make(session);
		pthread_mutex_unlock(&lock);
		if (file) {
			file->dev = now.st_dev;
			file->ino = now.st_ino;
			file->access = fcntl(fd, F_GETFL) & O_ACCMODE;
		} else {
			ut_session_close(session);
		}
	}
	munmap((void *)(uintptr_t)list, LIST_SIZE);
	return file;
}

struct ut_file *ut_file_get(int fd)
{
	struct ut_file *file;

	pthread_mutex_lock(&lock);
	file = ut_file_at(fd);
	if (file)
		file->references++;
	pthread_mutex_unlock(&lock);
	if (file && !ut_file_is(file, fd)) {
		ut_file_forget(fd, file);
		ut_file_put(file);
		file = NULL;
	}
	if (!file) {
		file = adopt(fd);
		if (file)
			ut_file_set(fd, file);
	}
	return file;
}
