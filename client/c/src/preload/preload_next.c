/* The next functions: see preload_next.h. */
#include "preload_next.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>

_Atomic(void *) ut_next_table[UT_NEXT_COUNT];

/* By instruction: libc's syscall(2) would have to be looked up like the others, and the lookup would find
 * ours. */
long ut_system_call(long number, long a, long b, long c, long d, long e, long f)
{
	long result;
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	result = x0;
#elif defined(__riscv)
	register long a7 __asm__("a7") = number;
	register long a0 __asm__("a0") = a;
	register long a1 __asm__("a1") = b;
	register long a2 __asm__("a2") = c;
	register long a3 __asm__("a3") = d;
	register long a4 __asm__("a4") = e;
	register long a5 __asm__("a5") = f;

	__asm__ volatile("ecall"
			 : "+r"(a0)
			 : "r"(a7), "r"(a1), "r"(a2), "r"(a3), "r"(a4), "r"(a5)
			 : "memory");
	result = a0;
#else
#error "libutracefs-preload needs the system call instruction of this machine"
#endif
	if (result < 0 && result >= -4095) {
		errno = (int)-result;
		return -1;
	}
	return result;
}

#define X(type, name, arguments, bare)      \
	static type bare_##name arguments   \
	{                                   \
		return (type)(bare);        \
	}
UT_NEXT_FUNCTIONS(X)
#undef X

static const struct {
	const char *name;
	void *bare;
} functions[UT_NEXT_COUNT] = {
#define X(type, name, arguments, bare) { #name, (void *)bare_##name },
	UT_NEXT_FUNCTIONS(X)
#undef X
};

static __thread int looking __attribute__((tls_model("initial-exec")));

void *ut_next_find(enum ut_next_name name)
{
	const int saved = errno;
	int i;

	if (looking)
		return functions[name].bare;
	looking = 1;
	for (i = 0; i < UT_NEXT_COUNT; i++) {
		void *next = dlsym(RTLD_NEXT, functions[i].name);

		/* Some C libraries are older than close_range and closefrom. */
		atomic_store_explicit(&ut_next_table[i], next ? next : functions[i].bare,
				      memory_order_relaxed);
	}
	looking = 0;
	errno = saved;
	return atomic_load_explicit(&ut_next_table[name], memory_order_relaxed);
}

__attribute__((constructor)) static void find_at_start(void)
{
	ut_next(UT_NEXT_close);
}

/* ---- the same for the core (PAST_WRAPPERS in the Makefile) */

int ut_behind_close(int fd)
{
	return NEXT(close)(fd);
}

int ut_behind_fcntl(int fd, int command, void *argument)
{
	return NEXT(fcntl)(fd, command, argument);
}

int ut_behind_fcntl64(int fd, int command, void *argument) __attribute__((alias("ut_behind_fcntl")));

long ut_behind_syscall(long number, long a, long b, long c, long d, long e, long f)
{
	return NEXT(syscall)(number, a, b, c, d, e, f);
}
