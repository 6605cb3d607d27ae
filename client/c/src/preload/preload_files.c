/* The files of user_events_data of this process: see preload_files.h. */
#include "preload_files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
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

static struct ut_data_file *all; /* guarded by the table's lock, like everything below */

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

/* The entry of this index in the first `end` bytes; NULL: there is none. Trusts nothing in it: another
 * process may have written it. */
static const struct entry *find_entry(const struct list *list, uint32_t end, uint32_t write_index,
				      uint32_t *length)
{
	for (uint32_t at = sizeof(*list); at + sizeof(struct entry) <= end; at += padded(*length)) {
		const struct entry *entry = (const void *)((const char *)list + at);

		*length = *(const volatile uint16_t *)&entry->length;
		if (*length > UT_MAX_COMMAND || at + padded(*length) > end)
			return NULL;
		if (entry->write_index == write_index)
			return entry;
	}
	return NULL;
}

void ut_file_note(struct ut_file *file, uint32_t write_index, const char *command, uint16_t flags,
		  uint16_t event_id)
{
	const uint32_t length = (uint32_t)strlen(command);
	struct list *list;
	uint32_t end, known;

	pthread_mutex_lock(&ut_file_lock);
	list = ut_data_file(file)->list;
	if (list && ut_data_file(file)->writer == getpid()) {
		end = atomic_load_explicit(&list->end, memory_order_relaxed);
		/* (It is there if it is registered again.) */
		if (!find_entry(list, end, write_index, &known) && end + padded(length) <= LIST_SIZE) {
			struct entry *entry = (void *)((char *)list + end);

			entry->write_index = write_index;
			entry->flags = flags;
			entry->length = (uint16_t)length;
			entry->event_id = event_id;
			memcpy(entry->command, command, length);
			atomic_store_explicit(&list->end, end + padded(length), memory_order_release);
		}
	}
	pthread_mutex_unlock(&ut_file_lock);
}

/* Registers the events of a list, in the order of its indexes, and waits after the last one. */
static void replay(struct ut_session *session, const struct list *list, uint64_t until)
{
	uint32_t end = atomic_load_explicit(&list->end, memory_order_acquire), length, index = 0;
	const struct entry *entry, *next;

	if (end > LIST_SIZE)
		end = LIST_SIZE;
	for (entry = find_entry(list, end, 0, &length); entry; entry = next) {
		char command[UT_MAX_COMMAND + 1];

		memcpy(command, entry->command, length);
		command[length] = '\0';
		next = find_entry(list, end, index + 1, &length);
		if (ut_session_repeat(session, index++, command, entry->flags, entry->event_id, next ? 0 : until))
			return;
	}
}

/* ---- files */

/* One with a reference, not in the table yet; NULL: no memory. With the lock held. */
static struct ut_data_file *make(struct ut_session *session)
{
	struct ut_data_file *file = all;

	while (file && file->in_use)
		file = file->next;
	if (!file) {
		file = calloc(1, sizeof(*file));
		if (!file)
			return NULL;
		file->next = all;
		all = file;
	}
	file->file = (struct ut_file){ .references = 1 };
	file->in_use = 1;
	file->access = O_RDWR;
	file->list = NULL;
	file->is_stray = 0;
	atomic_store(&file->session, session);
	return file;
}

void ut_file_released(struct ut_file *last)
{
	struct ut_data_file *file = ut_data_file(last);

	ut_session_close(atomic_exchange(&file->session, NULL), file->is_stray ? ut_emit_until() : 0);
	if (file->list)
		munmap(file->list, LIST_SIZE);
	pthread_mutex_lock(&ut_file_lock);
	file->in_use = 0;
	pthread_mutex_unlock(&ut_file_lock);
}

/* The file of this inode, with one reference more; NULL: there is none. With the lock held. */
static struct ut_data_file *find(const struct stat *status)
{
	struct ut_data_file *file = all;

	while (file && !(file->file.references && file->file.ino == status->st_ino &&
			 file->file.dev == status->st_dev))
		file = file->next;
	if (file)
		file->file.references++;
	return file;
}

/* The same file, opened once more. -1: there is no /proc. */
static int open_again(int fd, int access)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return NEXT(open)(path, access | O_CLOEXEC, 0);
}

/* A memfd for `file`, with a list if there is space for one. The descriptor, or -errno. */
static int make_descriptor(struct ut_data_file *file, int flags)
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
		file->writer = getpid();
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
	file->file.dev = status.st_dev;
	file->file.ino = status.st_ino;
	return fd;
}

int ut_file_open(int flags, int real)
{
	struct ut_session *session;
	struct ut_data_file *file;
	int fd;

	ut_file_begin();
	if (ut_session_open(&session, 0) < 0)
		return -ENOTCONN;
	if (real >= 0)
		NEXT(close)(real);
	pthread_mutex_lock(&ut_file_lock);
	file = make(session);
	pthread_mutex_unlock(&ut_file_lock);
	if (!file) {
		ut_session_close(session, 0);
		return -ENOMEM;
	}
	fd = make_descriptor(file, flags);
	if (fd < 0)
		ut_file_put(&file->file);
	else if (!ut_file_add(fd, &file->file))
		fd = -EMFILE;
	return fd;
}

/* A descriptor that came from another process, by exec or over a socket, or was copied without this
 * library. By its first write, too, so it waits no longer than an emit. */
struct ut_file *ut_file_adopt(int fd)
{
	const uint64_t until = ut_emit_until();
	const int seals = fcntl(fd, F_GET_SEALS);
	struct ut_session *session;
	struct ut_data_file *file;
	const struct list *list;
	struct stat now;
	int access;

	if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &now) < 0 || now.st_size != LIST_SIZE)
		return NULL;
	ut_file_begin();
	pthread_mutex_lock(&ut_file_lock);
	file = find(&now);
	pthread_mutex_unlock(&ut_file_lock);
	if (file)
		return &file->file;
	list = mmap(NULL, LIST_SIZE, PROT_READ, MAP_SHARED, fd, 0);
	if (list == MAP_FAILED) { /* opened for writing only */
		const int readable = open_again(fd, O_RDONLY);

		list = mmap(NULL, LIST_SIZE, PROT_READ, MAP_SHARED, readable, 0);
		if (readable >= 0)
			NEXT(close)(readable);
	}
	if (list == MAP_FAILED)
		return NULL;
	if (list->magic == LIST_MAGIC && ut_session_open(&session, until) == 0) {
		replay(session, list, until);
		access = fcntl(fd, F_GETFL) & O_ACCMODE;
		pthread_mutex_lock(&ut_file_lock);
		file = find(&now); /* Another thread may have adopted it meanwhile, and written records to it. */
		if (!file) {
			file = make(session);
			if (file) {
				file->file.dev = now.st_dev;
				file->file.ino = now.st_ino;
				file->access = access;
				session = NULL;
			}
		}
		pthread_mutex_unlock(&ut_file_lock);
		if (session)
			ut_session_close(session, until);
	}
	munmap((void *)(uintptr_t)list, LIST_SIZE);
	return file ? &file->file : NULL;
}
