/*
 * write(2) of a record: the errors of the kernel's user_events_write, in its order (docs/protocol.md section
 * 3.5; linux/ kernel/trace/trace_events_user.c), at the cost of an emit.
 *
 * The kernel answers EFAULT for an invalid pointer. A check by the kernel costs a system call, so a thread
 * remembers which pages are readable, and checks each once. That knowledge can become outdated: a program
 * that unmaps its buffer and then writes from there gets the SIGSEGV that it would get from an access. This
 * needs an earlier record from the same page, less than UT_TRUSTED writes ago: after that many writes
 * everything is checked again.
 *
 * The descriptor is checked as often. A program may close one of our descriptors without this library (by
 * instruction: in libc only the closing of FILEs and of descriptors in children bypasses it), open another
 * file under the number, and write to it. Then at most UT_TRUSTED - 1 writes that begin with the index of an
 * enabled event are taken for records. All others are errors, and the descriptor is checked before an error
 * is returned.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "memory.h"
#include "preload_files.h"

#define UT_TRUSTED 1024u
#define KNOWN_PAGES 16u
#define INDEX_SIZE 4u

static __thread struct {
	unsigned writes;
	uintptr_t readable[KNOWN_PAGES]; /* address of the page + 1, indexed by its number */
} here __attribute__((tls_model("initial-exec")));

static inline int is_readable(const void *data, size_t size)
{
	const uintptr_t first = (uintptr_t)data & ~(uintptr_t)(UT_PAGE - 1);
	const uintptr_t last = ((uintptr_t)data + size - 1) & ~(uintptr_t)(UT_PAGE - 1);
	uintptr_t page;

	if (size == 0)
		return 1;
	if (__builtin_expect(last < first, 0))
		return 0;
	for (page = first; page <= last; page += UT_PAGE) {
		uintptr_t *known = &here.readable[page / UT_PAGE % KNOWN_PAGES];

		if (__builtin_expect(*known == page + 1, 1))
			continue;
		if (!ut_is_readable((const void *)page))
			return 0;
		*known = page + 1;
	}
	return 1;
}

/* The result if some of the record is unreadable: the payload is checked last. */
static int judge_unreadable(struct ut_session *session, const struct iovec *iov, int count, size_t total)
{
	unsigned char bytes[INDEX_SIZE];
	unsigned got = 0;
	int32_t write_index;
	int error, i;

	for (i = 0; i < count && got < INDEX_SIZE; i++) {
		const size_t left = INDEX_SIZE - got;
		const size_t size = iov[i].iov_len < left ? iov[i].iov_len : left;

		if (!is_readable(iov[i].iov_base, size))
			return -EFAULT;
		memcpy(bytes + got, iov[i].iov_base, size);
		got += (unsigned)size;
	}
	memcpy(&write_index, bytes, sizeof(write_index));
	error = ut_session_judge(session, write_index, total - INDEX_SIZE);
	return error ? error : -EFAULT;
}

static int is_still(int fd, struct ut_file *file)
{
	struct ut_section section;
	int is;

	ut_section_begin(&section);
	is = ut_file_is(file, fd);
	if (!is) {
		ut_data_file(file)->is_stray = 1; /* no write waits longer than an emit */
		ut_file_put(ut_file_take(fd, file));
	}
	ut_section_end(&section);
	return is;
}

/* The return value of the call for `done`: 0 or more, or negative errno. 0: pass the call on. */
static int answer(int fd, struct ut_file *file, ssize_t done, ssize_t *result)
{
	if (done <= 0 && !is_still(fd, file))
		return 0;
	if (done < 0)
		errno = (int)-done;
	*result = done < 0 ? -1 : done;
	return 1;
}

/* `iov` is readable, its lengths are valid, and there is at least one piece. */
static inline __attribute__((always_inline)) int record(int fd, struct ut_file *file, const struct iovec *iov,
							int count, size_t total, int readable, ssize_t *result)
{
	struct ut_session *session = atomic_load_explicit(&ut_data_file(file)->session, memory_order_acquire);
	ssize_t done;

	if (__builtin_expect(!session, 0))
		return 0;
	if (__builtin_expect(++here.writes % UT_TRUSTED == 0, 0)) {
		memset(here.readable, 0, sizeof(here.readable));
		if (!is_still(fd, file))
			return 0;
	}
	if (__builtin_expect(ut_data_file(file)->access == O_RDONLY, 0))
		done = -EBADF;
	else if (__builtin_expect(total < INDEX_SIZE, 0))
		done = -EFAULT;
	else if (__builtin_expect(!readable, 0))
		done = judge_unreadable(session, iov, count, total);
	else
		done = ut_session_write(session, iov, count, total);
	if (__builtin_expect(done < 0, 0))
		return answer(fd, file, done, result);
	*result = done;
	return 1;
}

int ut_record_piece(int fd, struct ut_file *file, const void *data, size_t size, ssize_t *result)
{
	const struct iovec piece = { (void *)(uintptr_t)data, size };

	pthread_testcancel();
	if (__builtin_expect((ssize_t)size < 0, 0))
		return answer(fd, file, ut_data_file(file)->access == O_RDONLY ? -EBADF : -EINVAL, result);
	return record(fd, file, &piece, 1, size, is_readable(data, size), result);
}

int ut_record(int fd, struct ut_file *file, const struct iovec *iov, int count, ssize_t *result)
{
	size_t total = 0;
	intptr_t lengths = 0, addresses = 0;
	int readable = 1;
	int error = 0;
	int i;

	pthread_testcancel();
	if (__builtin_expect((unsigned)count > IOV_MAX, 0)) {
		error = EINVAL;
	} else if (__builtin_expect(!is_readable(iov, (size_t)count * sizeof(*iov)), 0)) {
		error = EFAULT;
	} else {
		for (i = 0; i < count; i++) {
			lengths |= (intptr_t)iov[i].iov_len;
			addresses |= (intptr_t)iov[i].iov_base;
			total += iov[i].iov_len;
			readable &= is_readable(iov[i].iov_base, iov[i].iov_len);
		}
		if (__builtin_expect((lengths | addresses) < 0, 0)) /* the upper half of the addresses is
								     * the kernel's */
			error = lengths < 0 ? EINVAL : EFAULT;
	}
	if (__builtin_expect(error || total == 0, 0))
		return answer(fd, file, ut_data_file(file)->access == O_RDONLY ? -EBADF : -error, result);
	return record(fd, file, iov, count, total, readable, result);
}
