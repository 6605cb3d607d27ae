/*
 * The next functions: the functions that the program would call without this library.
 *
 * They are looked up (dlsym, RTLD_NEXT) all together at the first call of any. A constructor would be too
 * late: constructors of other libraries may run earlier and open files. A call from within the lookup itself
 * (also malloc of a preloaded allocator, which opens its settings) makes the bare system call.
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

/* The variadic arguments (mode, those of ioctl and fcntl) are declared as named ones: on these machines
 * both are passed alike, and reading one that the caller did not pass does no harm. */
#define UT_NEXT_FUNCTIONS(X)                                                        \
	X(int, open, (const char *, int, mode_t))                                   \
	X(int, openat, (int, const char *, int, mode_t))                            \
	X(int, creat, (const char *, mode_t))                                       \
	X(int, __open_2, (const char *, int))                                       \
	X(int, __openat_2, (int, const char *, int))                                \
	X(FILE *, fopen, (const char *, const char *))                              \
	X(FILE *, fdopen, (int, const char *))                                      \
	X(int, ioctl, (int, unsigned long, void *))                                 \
	X(ssize_t, read, (int, void *, size_t))                                     \
	X(off_t, lseek, (int, off_t, int))                                          \
	X(ssize_t, write, (int, const void *, size_t))                              \
	X(ssize_t, pwrite, (int, const void *, size_t, off_t))                      \
	X(ssize_t, writev, (int, const struct iovec *, int))                        \
	X(ssize_t, pwritev, (int, const struct iovec *, int, off_t))                \
	X(ssize_t, pwritev2, (int, const struct iovec *, int, off_t, int))          \
	X(int, close, (int))                                                        \
	X(int, close_range, (unsigned, unsigned, int))                              \
	X(void, closefrom, (int))                                                   \
	X(int, dup, (int))                                                          \
	X(int, dup2, (int, int))                                                    \
	X(int, dup3, (int, int, int))                                               \
	X(int, fcntl, (int, int, void *))                                           \
	X(long, syscall, (long, long, long, long, long, long, long))

enum ut_next_name {
#define X(type, name, arguments) UT_NEXT_##name,
	UT_NEXT_FUNCTIONS(X)
#undef X
	UT_NEXT_COUNT
};

extern _Atomic(void *) ut_next_table[UT_NEXT_COUNT];

/* Looks all up; the answer for `name`. */
void *ut_next_find(enum ut_next_name name);

#define X(type, name, arguments) typedef type(*ut_next_type_##name) arguments;
UT_NEXT_FUNCTIONS(X)
#undef X

static inline void *ut_next(enum ut_next_name name)
{
	void *function = atomic_load_explicit(&ut_next_table[name], memory_order_relaxed);

	return __builtin_expect(function != NULL, 1) ? function : ut_next_find(name);
}

/* A system call by instruction; -1 and errno. */
long ut_system_call(long number, long a, long b, long c, long d, long e, long f);

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
