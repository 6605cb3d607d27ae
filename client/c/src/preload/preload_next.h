/*
 * The next functions: the functions that the program would call without this library.
 *
 * They are looked up (dlsym, RTLD_NEXT) all together at the first call of any: constructors of other
 * libraries may run before ours, and open files. Else our constructor does it: later the caller may hold a
 * lock for which another thread waits in a constructor of dlopen(3), under the loader's lock, which dlsym
 * takes. A call from within the lookup itself (also malloc of a preloaded allocator, which opens its
 * settings) makes the bare system call.
 */
#ifndef UTRACEFS_PRELOAD_NEXT_H
#define UTRACEFS_PRELOAD_NEXT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>
#include <sys/uio.h>

#if !defined(__LP64__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "libutracefs-preload is for 64-bit little-endian machines, where open64 is open"
#endif

/* A system call by instruction; -1 and errno. */
long ut_system_call(long number, long a, long b, long c, long d, long e, long f);

/* The same with the arguments that the call has. */
#define UT_CALL(...) UT_CALL_(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)
#define UT_CALL_(number, a, b, c, d, e, f, ...) \
	ut_system_call(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* Each with its bare system call.
 *
 * The variadic arguments (mode, those of ioctl and fcntl) are declared as named ones: on these machines
 * both are passed alike, and reading one that the caller did not pass does no harm. */
#define UT_NEXT_FUNCTIONS(X) \
	X(int, open, (const char *path, int flags, mode_t mode), \
	  UT_CALL(SYS_openat, AT_FDCWD, path, flags, mode)) \
	X(int, openat, (int folder, const char *path, int flags, mode_t mode), \
	  UT_CALL(SYS_openat, folder, path, flags, mode)) \
	X(int, creat, (const char *path, mode_t mode), \
	  UT_CALL(SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode)) \
	X(int, __open_2, (const char *path, int flags), UT_CALL(SYS_openat, AT_FDCWD, path, flags)) \
	X(int, __openat_2, (int folder, const char *path, int flags), \
	  UT_CALL(SYS_openat, folder, path, flags)) \
	X(FILE *, fopen, (const char *path, const char *mode), ((void)path, (void)mode, errno = ENOMEM, NULL)) \
	X(FILE *, fdopen, (int fd, const char *mode), ((void)fd, (void)mode, errno = ENOMEM, NULL)) \
	X(int, ioctl, (int fd, unsigned long request, void *argument), \
	  UT_CALL(SYS_ioctl, fd, request, argument)) \
	X(ssize_t, read, (int fd, void *data, size_t size), UT_CALL(SYS_read, fd, data, size)) \
	X(off_t, lseek, (int fd, off_t offset, int whence), UT_CALL(SYS_lseek, fd, offset, whence)) \
	X(ssize_t, write, (int fd, const void *data, size_t size), UT_CALL(SYS_write, fd, data, size)) \
	X(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t offset), \
	  UT_CALL(SYS_pwrite64, fd, data, size, offset)) \
	X(ssize_t, writev, (int fd, const struct iovec *iov, int count), \
	  UT_CALL(SYS_writev, fd, iov, count)) \
	X(ssize_t, pwritev, (int fd, const struct iovec *iov, int count, off_t offset), \
	  UT_CALL(SYS_pwritev, fd, iov, count, offset)) \
	X(ssize_t, pwritev2, (int fd, const struct iovec *iov, int count, off_t offset, int flags), \
	  UT_CALL(SYS_pwritev2, fd, iov, count, offset, 0, flags)) \
	X(int, close, (int fd), UT_CALL(SYS_close, fd)) \
	X(int, close_range, (unsigned first, unsigned last, int flags), \
	  UT_CALL(SYS_close_range, first, last, flags)) \
	X(void, closefrom, (int first), UT_CALL(SYS_close_range, first < 0 ? 0 : first, ~0u)) \
	X(int, dup, (int fd), UT_CALL(SYS_dup, fd)) \
	X(int, dup2, (int fd, int to), \
	  fd != to ? UT_CALL(SYS_dup3, fd, to) : UT_CALL(SYS_fcntl, fd, F_GETFD) < 0 ? -1 : to) \
	X(int, dup3, (int fd, int to, int flags), UT_CALL(SYS_dup3, fd, to, flags)) \
	X(int, fcntl, (int fd, int command, void *argument), UT_CALL(SYS_fcntl, fd, command, argument)) \
	X(long, syscall, (long number, long a, long b, long c, long d, long e, long f), \
	  ut_system_call(number, a, b, c, d, e, f))

enum ut_next_name {
#define X(type, name, arguments, bare) UT_NEXT_##name,
	UT_NEXT_FUNCTIONS(X)
#undef X
	UT_NEXT_COUNT
};

extern _Atomic(void *) ut_next_table[UT_NEXT_COUNT];

/* Looks all up; the answer for `name`. */
void *ut_next_find(enum ut_next_name name);

#define X(type, name, arguments, bare) typedef type(*ut_next_type_##name) arguments;
UT_NEXT_FUNCTIONS(X)
#undef X

static inline void *ut_next(enum ut_next_name name)
{
	void *function = atomic_load_explicit(&ut_next_table[name], memory_order_relaxed);

	return __builtin_expect(function != NULL, 1) ? function : ut_next_find(name);
}

/* NEXT(open)(path, flags, mode) */
#define NEXT(name) ((ut_next_type_##name)ut_next(UT_NEXT_##name))

#define UT_VISIBLE __attribute__((visibility("default")))

/* WRAP(int, open, (const char *path, ...)) defines `open` under a name that does not clash with libc's
 * declaration. */
#define WRAP(type, name, arguments)                       \
	UT_VISIBLE type ut_wrap_##name arguments __asm__(#name); \
	UT_VISIBLE type ut_wrap_##name arguments
#define ALIAS(type, name, of, arguments) \
	UT_VISIBLE type ut_wrap_##name arguments __asm__(#name) __attribute__((alias(#of)));

#endif
