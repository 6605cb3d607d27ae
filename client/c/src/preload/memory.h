/*
 * Access to memory of the program that may be unmapped.
 *
 * The kernel's user_events answers EFAULT or ENOMEM for an invalid pointer. In the program itself such a
 * pointer is a SIGSEGV, so no pointer is followed here: the kernel makes each access to memory of a caller,
 * in a system call that reports EFAULT.
 *
 *     ut_copy_in       reads bytes
 *     ut_copy_out      writes bytes
 *     ut_is_readable   tests one byte
 *
 * The kernel also sets enable bits (enable_bits.c).
 */
#ifndef UTRACEFS_MEMORY_H
#define UTRACEFS_MEMORY_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Pages are at least this large, so a test of one byte holds for the 4096 around it. */
#define UT_PAGE 4096u

/* Whether the byte at `address` can be read. Keeps errno. By rt_sigprocmask with an invalid command: it
 * copies a mask from there before it checks the command. That is cheaper than process_vm_readv, and
 * allowed everywhere. */
static inline int ut_is_readable(const void *address)
{
	const int saved = errno;
	const uintptr_t mask = (uintptr_t)address & ~(uintptr_t)7;
	const int readable = syscall(SYS_rt_sigprocmask, -1, mask, NULL, 8) == 0 || errno != EFAULT;

	errno = saved;
	return mask ? readable : 0; /* a null mask is no mask */
}

/* If process_vm_readv is forbidden (seccomp): through a pipe, whose write and read also report EFAULT. At
 * most UT_PAGE bytes. */
static inline int ut_copy_by_pipe(void *to, const void *from, size_t size)
{
	int ends[2];
	int result = 0;

	if (syscall(SYS_pipe2, ends, 02000000 | 04000) < 0) /* O_CLOEXEC, O_NONBLOCK */
		return -errno;
	if (syscall(SYS_write, ends[1], from, size) != (long)size ||
	    syscall(SYS_read, ends[0], to, size) != (long)size)
		result = -EFAULT;
	syscall(SYS_close, ends[0]);
	syscall(SYS_close, ends[1]);
	return result;
}

static inline int ut_copied(long done, void *to, const void *from, size_t size, int saved)
{
	int result = done == (long)size ? 0 : -EFAULT;

	if (done < 0 && (errno == ENOSYS || errno == EPERM))
		result = ut_copy_by_pipe(to, from, size);
	errno = saved;
	return result;
}

/* As memcpy, at most UT_PAGE bytes. 0, or -EFAULT, with a part of it copied. Keeps errno. */
static inline int ut_copy_in(void *to, const void *from, size_t size)
{
	const int saved = errno;
	struct iovec local = { to, size }, remote = { (void *)(uintptr_t)from, size };

	return ut_copied(syscall(SYS_process_vm_readv, getpid(), &local, 1ul, &remote, 1ul, 0ul), to, from, size,
			 saved);
}

/* The other direction: read-only memory is -EFAULT, too, and unchanged. */
static inline int ut_copy_out(void *to, const void *from, size_t size)
{
	const int saved = errno;
	struct iovec local = { (void *)(uintptr_t)from, size }, remote = { to, size };

	return ut_copied(syscall(SYS_process_vm_writev, getpid(), &local, 1ul, &remote, 1ul, 0ul), to, from, size,
			 saved);
}

#endif
