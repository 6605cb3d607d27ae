/* A program that knows only the kernel's user_events ABI: the ways to use the file and its descriptors.
 * The event "work" is on at the beginning. Each case exits with 0 and prints nothing. */
#include "preload_cases.h"

#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Like a program that does not use libc for it. */
static long by_instruction(long number, long a, long b, long c)
{
#if defined(__x86_64__)
	long result;

	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return result;
#else
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
	return x0;
#endif
}

static void ways_to_open(int argc, char **argv)
{
	const char *paths[] = { PATH, "/sys/kernel/debug/tracing/user_events_data",
				"/nowhere/there/user_events_data" };
	unsigned i;
	int folder, fd;

	(void)argc, (void)argv;
	for (i = 0; i < sizeof(paths) / sizeof(*paths); i++) {
		CHECK((fd = open(paths[i], O_RDWR)) >= 0);
		CHECK(reg(fd, WORK, i) == 0 && emit(fd, 0, 1, i) == 12);
		CHECK(close(fd) == 0);
		FAILS(emit(fd, 0, 1, i), EBADF);
	}
	CHECK((folder = open("/", O_RDONLY | O_DIRECTORY)) >= 0);
	CHECK((fd = openat(folder, "sys/kernel/tracing/user_events_data", O_WRONLY | O_CLOEXEC)) >= 0);
	CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(reg(fd, WORK, 3) == 0 && emit(fd, 0, 1, 3) == 12);
	CHECK((fd = open(PATH, O_RDONLY)) >= 0);
	CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY && fcntl(fd, F_GETFD) == 0);
	CHECK(reg(fd, WORK, 4) == 0);
	FAILS(emit(fd, 0, 1, 4), EBADF);
	CHECK(creat(PATH, 0600) >= 0);
	FAILS(open(PATH, O_RDWR | O_DIRECTORY), ENOENT);
	FAILS(open("/tmp/user_events_data.", O_RDWR), ENOENT);
	FAILS(open("/tmp/no_user_events_data", O_RDWR), ENOENT);
	FAILS(open((char *)1, O_RDWR), EFAULT);
}

/* A file of that name outside of tracefs is left alone. argv[2]: a folder. */
static void other_files(int argc, char **argv)
{
	char path[PATH_MAX];
	struct stat status;
	int fd;

	(void)argc;
	snprintf(path, sizeof(path), "%s/user_events_data", argv[2]);
	CHECK((fd = open(path, O_RDWR | O_CREAT, 0600)) >= 0);
	CHECK(write(fd, "hello", 5) == 5 && lseek(fd, 0, SEEK_CUR) == 5);
	CHECK(fstat(fd, &status) == 0 && status.st_size == 5);
	CHECK(close(fd) == 0);
	CHECK(unlink(path) == 0 && mkdir(path, 0700) == 0);
	CHECK((fd = open(path, O_RDONLY)) >= 0 && fstat(fd, &status) == 0 && S_ISDIR(status.st_mode));
}

static void descriptors(int argc, char **argv)
{
	int fd = open_work(), copies[6], i;

	(void)argc, (void)argv;
	copies[0] = dup(fd);
	copies[1] = dup2(fd, 100);
	copies[2] = dup3(fd, 101, O_CLOEXEC);
	copies[3] = fcntl(fd, F_DUPFD, 200);
	copies[4] = fcntl(fd, F_DUPFD_CLOEXEC, 3000 > sysconf(_SC_OPEN_MAX) ? 300 : 3000);
	copies[5] = (int)syscall(SYS_dup, fd);
	CHECK(close(fd) == 0);
	for (i = 0; i < 6; i++)
		CHECK(copies[i] > 2 && emit(copies[i], 0, 2, (unsigned)i) == 12);
	/* Registered by one, written by the other. */
	CHECK(reg(copies[1], "other u32 a", 1) == 1 && reg(copies[2], "other u32 a", 2) == 1);
	CHECK(dup2(STDERR_FILENO, copies[0]) == copies[0]);
	FAILS(ioctl(copies[0], DIAG_IOCSREG, NULL), ENOTTY);
	CHECK(dup2(copies[1], copies[1]) == copies[1] && emit(copies[1], 0, 2, 6) == 12);
	CHECK(dup2(copies[1], copies[0]) == copies[0] && emit(copies[0], 0, 2, 7) == 12);
	CHECK(close_range(200, 200, 0) == 0);
	FAILS(emit(copies[3], 0, 2, 8), EBADF);
	CHECK(close_range(100, ~0u, CLOSE_RANGE_CLOEXEC) == 0 && emit(copies[1], 0, 2, 9) == 12);
	closefrom(3);
	for (i = 0; i < 6; i++)
		FAILS(emit(copies[i], 0, 2, 10), EBADF);
}

/* Each file has a table of its own. */
static void files(int argc, char **argv)
{
	static uint32_t words_of_files[20];
	struct user_reg r;
	int fds[20], i;

	(void)argc, (void)argv;
	for (i = 0; i < 20; i++) {
		CHECK((fds[i] = open(PATH, O_RDWR)) >= 0);
		if (i % 2)
			CHECK(reg(fds[i], "first u32 a", (unsigned)i) == 0);
		r = request(WORK, &words_of_files[i], 0);
		CHECK(ioctl(fds[i], DIAG_IOCSREG, &r) == 0 && (int)r.write_index == i % 2);
	}
	for (i = 0; i < 20; i++) {
		CHECK(emit(fds[i], i % 2, 3, (unsigned)i) == 12);
		FAILS(emit(fds[i], 2, 3, 0), ENOENT);
	}
}

static void by_number(int argc, char **argv)
{
	struct user_reg r = request(WORK, &word, 0);
	struct record record = { 0, 4, 0 };
	struct iovec iov = { &record, sizeof(record) };
	long fd = syscall(SYS_openat, AT_FDCWD, PATH, O_RDWR), copy;
	uint64_t how[3] = { O_WRONLY, 0, 0 };

	(void)argc, (void)argv;
	CHECK(fd >= 0 && syscall(SYS_ioctl, fd, DIAG_IOCSREG, &r) == 0 && word == 1);
	CHECK(syscall(SYS_write, fd, &record, sizeof(record)) == 12);
	record.number = 1;
	CHECK(syscall(SYS_writev, fd, &iov, 1) == 12);
	record.number = 2;
	CHECK(syscall(SYS_pwritev2, fd, &iov, 1, 0, 0, 0) == 12);
	CHECK((copy = syscall(SYS_dup3, fd, 77, 0)) == 77 && syscall(SYS_close, fd) == 0);
	record.number = 3;
	CHECK(syscall(SYS_write, copy, &record, sizeof(record)) == 12);
	FAILS(syscall(SYS_write, fd, &record, sizeof(record)), EBADF);
	CHECK((fd = syscall(SYS_openat2, AT_FDCWD, PATH, how, sizeof(how))) >= 0);
	CHECK(reg((int)fd, WORK, 1) == 0);
	CHECK(syscall(SYS_getpid) == getpid());
	if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0)
		_exit(7);
	CHECK(wait(&(int){ 0 }) > 0);
}

static void streams(int argc, char **argv)
{
	struct record record = { 0, 5, 0 };
	FILE *f = fopen(PATH, "r+");
	int fd;

	(void)argc, (void)argv;
	CHECK(f && (fd = fileno(f)) > 2 && reg(fd, WORK, 0) == 0);
	CHECK(fwrite(&record, sizeof(record), 1, f) == 1 && fflush(f) == 0);
	record.number = 1; /* two pieces make one write, as with any file */
	CHECK(fwrite(&record, 4, 1, f) == 1 && fwrite(&record.who, 8, 1, f) == 1 && fflush(f) == 0);
	record.index = 9;
	CHECK(fwrite(&record, sizeof(record), 1, f) == 1);
	FAILS(fflush(f), ENOENT);
	clearerr(f);
	CHECK(fclose(f) == -1 || errno != EBADF);
	FAILS(write(fd, &record, sizeof(record)), EBADF);

	CHECK((f = fopen(PATH, "we")) && setvbuf(f, NULL, _IONBF, 0) == 0);
	CHECK(fcntl(fileno(f), F_GETFD) == FD_CLOEXEC && reg(fileno(f), WORK, 1) == 0);
	record.index = 0;
	record.number = 2;
	CHECK(fwrite(&record, sizeof(record), 1, f) == 1 && fclose(f) == 0);

	CHECK((fd = open(PATH, O_WRONLY)) >= 0 && reg(fd, WORK, 2) == 0);
	CHECK((f = fdopen(fd, "w")));
	record.number = 3;
	CHECK(fwrite(&record, sizeof(record), 1, f) == 1 && fclose(f) == 0); /* written by fclose */
	FAILS(write(fd, &record, sizeof(record)), EBADF);
}

/* The program's descriptor is a sealed file, and another file under its number loses no write. */
static void behind_our_back(int argc, char **argv)
{
	int fd = open_work(), other;
	struct record record = { 0, 6, 0 };
	char text[64];

	(void)argc;
	CHECK(by_instruction(SYS_write, fd, (long)"spoil", 5) == -EPERM);
	CHECK(ftruncate(fd, 0) == -1 && mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	CHECK(emit(fd, 0, 6, 0) == 12);
	CHECK(by_instruction(SYS_close, fd, 0, 0) == 0);
	CHECK((other = open(argv[2], O_RDWR | O_CREAT | O_APPEND, 0600)) == fd);
	CHECK(write(fd, "hello world, this is no record", 30) == 30);
	CHECK(pread(fd, text, sizeof(text), 0) == 30);
	CHECK(emit(fd, 0, 6, 1) == 12); /* into the file */
	CHECK(lseek(fd, 0, SEEK_END) == 42);
	CHECK(close(fd) == 0);

	CHECK((fd = open(PATH, O_RDWR)) >= 0 && reg(fd, WORK, 1) == 0);
	CHECK(by_instruction(SYS_close, fd, 0, 0) == 0);
	CHECK(open(argv[2], O_RDWR) == fd);
	FAILS(ioctl(fd, DIAG_IOCSUNREG, NULL), ENOTTY);
	CHECK(write(fd, &record, sizeof(record)) == 12);
}

/* The table has entries of descriptors that libc has closed, and the core gets their numbers. */
static void closed_within_libc(int argc, char **argv)
{
	int fd = open_work(), other;

	(void)argc, (void)argv;
	CHECK(dup2(fd, 0) == 0 && dup2(fd, 1) == 1);
	fclose(stdin);
	fclose(stdout);
	CHECK(close(fd) == 0);
	CHECK((other = open(PATH, O_RDWR)) >= 0 && reg(other, WORK, 1) == 0);
	CHECK(emit(other, 0, 15, 0) == 12);
}

/* ---- memory */

static void wrong_pointers(int argc, char **argv)
{
	int fd = open_work();
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct user_reg r, *edge;
	struct iovec iov[3];
	int32_t index = 0;

	(void)argc, (void)argv;
	CHECK(page != MAP_FAILED && munmap(page + 4096, 4096) == 0);
	FAILS(write(fd, page + 4096, 12), EFAULT);
	FAILS(write(fd, page + 4094, 12), EFAULT);
	FAILS(write(fd, (void *)-4096l, 12), EFAULT);
	FAILS(write(fd, NULL, 12), EFAULT);
	FAILS(write(fd, page, (size_t)-1), EINVAL);
	iov[0] = (struct iovec){ &index, 4 };
	iov[1] = (struct iovec){ page + 4092, 8 };
	FAILS(writev(fd, iov, 2), EFAULT);
	index = 5;
	FAILS(writev(fd, iov, 2), ENOENT); /* checked before the payload */
	index = -5;
	FAILS(writev(fd, iov, 2), EINVAL);
	index = 0;
	iov[1].iov_len = 5;
	FAILS(writev(fd, iov, 2), EINVAL);
	FAILS(writev(fd, (struct iovec *)(page + 4090), 1), EFAULT);
	FAILS(writev(fd, iov, -1), EINVAL);
	FAILS(writev(fd, iov, IOV_MAX + 1), EINVAL);
	iov[2] = (struct iovec){ page, (size_t)-5 };
	FAILS(writev(fd, iov, 3), EINVAL);
	CHECK(writev(fd, iov, 0) == 0);
	iov[1] = (struct iovec){ page + 4088, 8 };
	CHECK(writev(fd, iov, 2) == 12);

	FAILS(ioctl(fd, DIAG_IOCSREG, NULL), EFAULT);
	FAILS(ioctl(fd, DIAG_IOCSREG, page + 4094), EFAULT);
	FAILS(ioctl(fd, DIAG_IOCSREG, page + 4080), EINVAL);
	*(uint32_t *)(page + 4080) = sizeof(r);
	FAILS(ioctl(fd, DIAG_IOCSREG, page + 4080), EFAULT);
	*(uint32_t *)(page + 4088) = sizeof(struct user_unreg);
	FAILS(ioctl(fd, DIAG_IOCSUNREG, page + 4088), EFAULT);
	memset(page + 4080, 0, 16);
	FAILS(ioctl(fd, DIAG_IOCSDEL, page + 4096), EFAULT);
	r = request(page + 4096, &word, 1);
	FAILS(ioctl(fd, DIAG_IOCSREG, &r), EFAULT);
	memcpy(page + 4096 - sizeof(WORK), WORK, sizeof(WORK)); /* the NUL is the last byte of the page */
	r = request(page + 4096 - sizeof(WORK), &word, 1);
	CHECK(ioctl(fd, DIAG_IOCSREG, &r) == 0 && r.write_index == 0);
	edge = (struct user_reg *)(page + 4096 - sizeof(r));
	*edge = request(WORK, &word, 2);
	CHECK(mprotect(page, 4096, PROT_READ) == 0);
	CHECK(ioctl(fd, DIAG_IOCSREG, edge) == 0 && edge->write_index == 0); /* index 0: it was not stored */

	r = request("unwritable u32 a", page, 0); /* read-only: the event is registered nevertheless */
	FAILS(ioctl(fd, DIAG_IOCSREG, &r), ENOMEM);
	r = request("unwritable u32 a", page + 4096, 0);
	FAILS(ioctl(fd, DIAG_IOCSREG, &r), ENOMEM);
	CHECK(reg(fd, "unwritable u32 a", 3) == 1);
	FAILS(unreg(fd, page, 0), ENOENT);
	r = request(WORK, (void *)-4096l, 0);
	FAILS(ioctl(fd, DIAG_IOCSREG, &r), EFAULT);
	CHECK(unreg(fd, &word, 0) == 0 && !(word & 1));
	FAILS(unreg(fd, &word, 0), ENOENT);
}

static int is_on(void)
{
	return word & 1;
}

static int is_off(void)
{
	return !(word & 1);
}

/* Updated until the event is off and on again. Standard input and output are the test's. */
static void words(int argc, char **argv)
{
	int fd = open_work();
	char *page = mmap(NULL, 12288, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct user_reg r = request(WORK, page, 0);
	uint64_t wide = 0x5555555500000000ull;
	char line[8];
	pid_t child;

	(void)argc, (void)argv;
	CHECK(ioctl(fd, DIAG_IOCSREG, &r) == 0); /* will be unmapped */
	r = request(WORK, page + 4096, 0);
	CHECK(ioctl(fd, DIAG_IOCSREG, &r) == 0); /* will be read-only */
	r = request(WORK, &wide, 63);
	r.enable_size = 8;
	CHECK(ioctl(fd, DIAG_IOCSREG, &r) == 0 && wide == 0xd555555500000000ull);
	CHECK(munmap(page, 4096) == 0 && mprotect(page + 4096, 4096, PROT_READ) == 0);
	CHECK(write(1, "off\n", 4) == 4 && wait_until(is_off));
	CHECK(read(0, line, 1) == 1); /* enable has been written */
	CHECK(*(volatile int *)(page + 4096) == 1 && wide == 0x5555555500000000ull);
	CHECK((child = fork()) >= 0);
	if (child == 0) { /* has its own word, which is still updated */
		CHECK(wait_until(is_on));
		CHECK(emit(fd, 0, 7, 1) == 12);
		CHECK(unreg(fd, &word, 0) == 0 && !word);
		_exit(0);
	}
	CHECK(write(1, "on\n", 3) == 3 && wait_until(is_on));
	CHECK(read(0, line, 1) == 1);
	CHECK(waitpid(child, &(int){ 0 }, 0) == child);
	CHECK(word & 1 && emit(fd, 0, 7, 0) == 12);
}

/* ---- processes and threads */

static void children(int argc, char **argv)
{
	int fd = open_work(), status, i, alive = 0;
	const int count = atoi(argv[2]);

	(void)argc;
	CHECK(emit(fd, 0, 0, 0) == 12);
	for (i = 1; i <= count; i++) {
		const pid_t child = fork();

		CHECK(child >= 0);
		if (child == 0) {
			if (emit(fd, 0, (unsigned)i, 0) == 12)
				CHECK(emit(fd, 0, (unsigned)i, 1) == 12);
			else
				CHECK(errno == EBADF); /* the daemon's queue is full */
			if (i % 2)
				_exit(0);
			kill(getpid(), SIGKILL);
		}
		if (++alive == 20) {
			CHECK(wait(&status) > 0);
			alive--;
		}
	}
	while (wait(&status) > 0) {
	}
	CHECK(emit(fd, 0, 0, 1) == 12);
}

static int register_there(void *fd)
{
	return reg(*(int *)fd, WORK, 4);
}

static void vforks(int argc, char **argv)
{
	static char stack[1 << 18] __attribute__((aligned(16)));
	int fd = open_work(), status;
	char *const nothing[] = { "true", NULL };
	pid_t child;

	(void)argc, (void)argv;
	child = vfork();
	if (child == 0) {
		dup2(STDERR_FILENO, fd + 1);
		dup2(STDERR_FILENO, fd);
		close(fd);
		close_range(3, ~0u, 0);
		execv("/bin/true", nothing);
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(emit(fd, 0, 8, 0) == 12 && reg(fd, WORK, 1) == 0);
	/* One that shares the memory registers for it. */
	child = clone(register_there, stack + sizeof(stack), CLONE_VM | SIGCHLD, &fd);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(word == (1 | 1 << 1 | 1 << 4) && unreg(fd, &word, 4) == 0);
}

/* Executed by `hand_over` with the descriptor as argv[2]. */
static void inherited(int argc, char **argv)
{
	const int fd = atoi(argv[2]), copy = dup(fd);

	(void)argc;
	CHECK(emit(fd, 1, 9, 1) == 12 && emit(copy, 1, 9, 2) == 12);
	FAILS(emit(fd, 2, 9, 3), ENOENT);
	CHECK(reg(copy, "one_more u32 b", 0) == 2);
}

/* The descriptor in another program, and in another process that had no file before. */
static void hand_over(int argc, char **argv)
{
	int pair[2], fd, status;
	char number[16], byte = 0;
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .header = { CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS } };
	struct iovec iov = { &byte, 1 };
	struct msghdr message = { .msg_iov = &iov,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	pid_t child;

	(void)argc;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(recvmsg(pair[1], &message, 0) == 1);
		memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
		CHECK(emit(fd, 1, 9, 0) == 12);
		_exit(0);
	}
	CHECK((fd = open(PATH, argv[2][0] == 'w' ? O_WRONLY : O_RDWR)) >= 0);
	CHECK(reg(fd, "before u32 a", 1) == 0 && reg(fd, WORK, 0) == 1);
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	CHECK(sendmsg(pair[0], &message, 0) == 1);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	snprintf(number, sizeof(number), "%d", fd);
	execl("/proc/self/exe", argv[0], "inherited", number, NULL);
	CHECK(!"exec");
}

/* Executed by `hand_over_stopped` with the descriptor as argv[2]. */
static void inherited_stopped(int argc, char **argv)
{
	const int fd = atoi(argv[2]);
	struct timespec began, ended;

	(void)argc;
	clock_gettime(CLOCK_MONOTONIC, &began);
	CHECK(emit(fd, 1, 10, 1) == 12 && emit(fd, 1, 10, 2) == 12);
	FAILS(emit(fd, 2, 10, 3), ENOENT);
	clock_gettime(CLOCK_MONOTONIC, &ended);
	CHECK(kill(atoi(argv[3]), SIGCONT) == 0);
	CHECK(ended.tv_sec - began.tv_sec + (ended.tv_nsec - began.tv_nsec) * 1e-9 < 1);
	CHECK(reg(fd, "one_more u32 b", 0) == 2);
}

/* The descriptor in another program, whose first write finds the daemon argv[2] stopped. */
static void hand_over_stopped(int argc, char **argv)
{
	char number[16];
	int fd;

	(void)argc;
	CHECK((fd = open(PATH, O_RDWR)) >= 0);
	CHECK(reg(fd, "before u32 a", 1) == 0 && reg(fd, WORK, 0) == 1 && emit(fd, 1, 10, 0) == 12);
	CHECK(kill(atoi(argv[2]), SIGSTOP) == 0);
	snprintf(number, sizeof(number), "%d", fd);
	execl("/proc/self/exe", argv[0], "inherited_stopped", number, argv[2], NULL);
	CHECK(!"exec");
}

static int inherited_fd;
static pthread_barrier_t all_ready;

static void *write_first(void *number)
{
	pthread_barrier_wait(&all_ready);
	CHECK(emit(inherited_fd, 0, 10, (unsigned)(uintptr_t)number) == 12);
	return NULL;
}

/* Executed by `hand_over_to_threads`, and by itself, argv[4] times: all threads write first. */
static void inherited_by_threads(int argc, char **argv)
{
	const unsigned left = (unsigned)atoi(argv[4]) - 1;
	struct timespec now;
	pthread_t writers[8];
	char count[16];
	uintptr_t i;

	(void)argc;
	inherited_fd = atoi(argv[2]);
	CHECK(pthread_barrier_init(&all_ready, NULL, 8) == 0);
	for (i = 0; i < 8; i++)
		CHECK(pthread_create(&writers[i], NULL, write_first, (void *)(8 * left + i)) == 0);
	for (i = 0; i < 8; i++)
		CHECK(pthread_join(writers[i], NULL) == 0);
	if (left) {
		snprintf(count, sizeof(count), "%u", left);
		execl("/proc/self/exe", argv[0], argv[1], argv[2], argv[3], count, argv[5], NULL);
		CHECK(!"exec");
	}
	clock_gettime(CLOCK_MONOTONIC, &now);
	CHECK(kill(atoi(argv[3]), SIGCONT) == 0);
	CHECK(now.tv_sec + now.tv_nsec * 1e-9 - atof(argv[5]) < 1);
}

static void hand_over_to_threads(int argc, char **argv)
{
	char number[16], time[32];
	struct timespec now;
	int fd;

	(void)argc;
	CHECK((fd = open(PATH, O_RDWR)) >= 0 && reg(fd, WORK, 0) == 0);
	CHECK(kill(atoi(argv[2]), SIGSTOP) == 0);
	clock_gettime(CLOCK_MONOTONIC, &now);
	snprintf(number, sizeof(number), "%d", fd);
	snprintf(time, sizeof(time), "%.9f", now.tv_sec + now.tv_nsec * 1e-9);
	execl("/proc/self/exe", argv[0], "inherited_by_threads", number, argv[2], "5", time, NULL);
	CHECK(!"exec");
}

/* Writes find files closed that have much to send, while the daemon argv[2] is stopped; to argv[3]. */
static void strays(int argc, char **argv)
{
	struct timespec began, ended;
	int fds[4];
	unsigned i, n;

	(void)argc;
	for (i = 0; i < 4; i++)
		CHECK((fds[i] = open(PATH, O_RDWR)) >= 0 && reg(fds[i], WORK, i) == 0);
	CHECK(kill(atoi(argv[2]), SIGSTOP) == 0);
	for (i = 0; i < 4; i++)
		for (n = 0; n < 20000; n++)
			CHECK(emit(fds[i], 0, 17, n) == 12);
	clock_gettime(CLOCK_MONOTONIC, &began);
	for (i = 0; i < 4; i++) {
		CHECK(by_instruction(SYS_close, fds[i], 0, 0) == 0);
		CHECK(open(argv[3], O_RDWR | O_CREAT | O_APPEND, 0600) == fds[i]);
		CHECK(write(fds[i], "hello world, this is no record", 30) == 30);
	}
	clock_gettime(CLOCK_MONOTONIC, &ended);
	CHECK(kill(atoi(argv[2]), SIGCONT) == 0);
	CHECK(ended.tv_sec - began.tv_sec + (ended.tv_nsec - began.tv_nsec) * 1e-9 < 1);
}

/* The library's thread must have no arena of malloc. */
static _Atomic int allocated_by_thread;
#ifdef OWN_MALLOC
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);

static void note_thread(void)
{
	char name[16];

	prctl(PR_GET_NAME, name);
	allocated_by_thread += strcmp(name, "utracefs") == 0;
}

void *malloc(size_t size)
{
	note_thread();
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	note_thread();
	return __libc_calloc(count, size);
}
#endif

static int sockets(int must_close)
{
	struct stat status;
	int count = 0, fd;

	for (fd = 3; fd < 100; fd++)
		if (fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode)) {
			count++;
			if (must_close)
				by_instruction(SYS_close, fd, 0, 0);
		}
	return count;
}

/* The library's connections, which its thread makes again. */
static void reconnect(void)
{
	const int before = sockets(1);
	int i;

	for (i = 0; i < 60000 && sockets(0) < before; i++)
		usleep(1000);
	CHECK(sockets(0) == before && allocated_by_thread == 0);
}

/* The write index, of a daemon that was stopped until now: on a busy machine it may answer too late. */
static int reg_again(int fd, const char *command, unsigned bit)
{
	struct user_reg r = request(command, &word, bit);

	if (ioctl(fd, DIAG_IOCSREG, &r) == 0)
		return (int)r.write_index;
	CHECK(errno == ETIMEDOUT);
	return reg(fd, command, bit);
}

/* Registrations that time out, beside the daemon argv[2]. */
static void late(int argc, char **argv)
{
	const pid_t daemon = atoi(argv[2]);
	struct user_reg r = request(WORK, &word, 0), late = request("late u32 a", &word, 1);
	int fd;

	(void)argc;
	CHECK((fd = open(PATH, O_RDWR)) >= 0);
	CHECK(kill(daemon, SIGSTOP) == 0);
	FAILS(ioctl(fd, DIAG_IOCSREG, &r), ETIMEDOUT);
	reconnect();
	CHECK(kill(daemon, SIGCONT) == 0);
	CHECK(reg_again(fd, "before u32 a", 2) == 1 && reg(fd, WORK, 0) == 0 && emit(fd, 0, 19, 0) == 12);
	CHECK(kill(daemon, SIGSTOP) == 0);
	FAILS(ioctl(fd, DIAG_IOCSREG, &late), ETIMEDOUT);
	CHECK(kill(daemon, SIGCONT) == 0);
	CHECK(reg_again(fd, "more u32 a", 3) == 3 && reg(fd, "late u32 a", 1) == 2);
	reconnect();
	CHECK(reg(fd, "last u32 a", 4) == 4 && emit(fd, 0, 19, 1) == 12);
	FAILS(emit(fd, 2, 0, 0), EBADF);
	FAILS(emit(fd, 3, 0, 0), EBADF);
	FAILS(emit(fd, 5, 0, 0), ENOENT);
	CHECK(reg(fd, "late u32 a", 5) == 2 && reg(fd, "more u32 a", 6) == 3);
}

static int shared;
static _Atomic int done;

static void *write_many(void *who)
{
	unsigned i;

	for (i = 0; i < 2000; i++)
		CHECK(emit(shared, 0, (unsigned)(uintptr_t)who, i) == 12);
	return NULL;
}

/* Opens, copies and closes descriptors other than the writers', and writes to them while they are open. */
static void *open_and_close(void *nothing)
{
	while (!done) {
		int fd = open(PATH, O_RDWR), copy;

		CHECK(fd >= 0);
		copy = dup(fd);
		CHECK(close(fd) == 0);
		FAILS(emit(copy, 0, 99, 0), ENOENT);
		CHECK(close(copy) == 0);
	}
	return nothing;
}

static void threads(int argc, char **argv)
{
	pthread_t writers[4], other;
	uintptr_t i;

	(void)argc, (void)argv;
	shared = open_work();
	CHECK(pthread_create(&other, NULL, open_and_close, NULL) == 0);
	for (i = 0; i < 4; i++)
		CHECK(pthread_create(&writers[i], NULL, write_many, (void *)i) == 0);
	for (i = 0; i < 4; i++)
		CHECK(pthread_join(writers[i], NULL) == 0);
	done = 1;
	CHECK(pthread_join(other, NULL) == 0);
}

static _Atomic unsigned handled;

static void on_alarm(int number)
{
	const int saved = errno;

	(void)number;
	errno = 77;
	if (handled < 200)
		CHECK(emit(shared, 0, 11, handled++) == 12 && errno == 77);
	errno = saved;
}

static void handlers(int argc, char **argv)
{
	const struct itimerspec often = { { 0, 200000 }, { 0, 200000 } };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
	timer_t timer;
	unsigned i;

	(void)argc, (void)argv;
	shared = open_work();
	CHECK(signal(SIGALRM, on_alarm) != SIG_ERR && timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
	CHECK(timer_settime(timer, 0, &often, NULL) == 0);
	for (i = 0; handled < 200; i++) {
		errno = 5;
		CHECK(emit(shared, 0, 10, i & 0xfff) == 12 && errno == 5);
		if (i % 16 == 0) { /* takes locks */
			CHECK(reg(shared, WORK, 1) == 0 && unreg(shared, &word, 1) == 0);
			CHECK(close(open(PATH, O_RDWR)) == 0);
		}
	}
}

static void *write_for_ever(void *nothing)
{
	for (;;)
		emit(shared, 0, 12, 0);
	return nothing;
}

static void cancelled(int argc, char **argv)
{
	pthread_t thread;
	void *how;

	(void)argc, (void)argv;
	shared = open_work();
	CHECK(pthread_create(&thread, NULL, write_for_ever, NULL) == 0);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &how) == 0 && how == PTHREAD_CANCELED);
	CHECK(emit(shared, 0, 12, 1) == 12 && close(shared) == 0);
}

/* ---- limits */

static void no_large_files(int argc, char **argv)
{
	const struct rlimit none = { 0, 0 };

	(void)argc, (void)argv;
	CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
	CHECK(emit(open_work(), 0, 13, 0) == 12);
}

static void no_descriptors(int argc, char **argv)
{
	struct rlimit few;
	int i, fd, last = -1;

	(void)argc, (void)argv;
	CHECK(getrlimit(RLIMIT_NOFILE, &few) == 0);
	few.rlim_cur = 64;
	CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
	CHECK(emit(open_work(), 0, 14, 0) == 12);
	for (i = 0; i < 100 && (fd = open(PATH, O_RDWR)) >= 0; i++)
		last = fd;
	/* The kernel's answers without this library are allowed, as without a daemon. */
	CHECK(fd == -1 && (errno == EMFILE || errno == ENOENT || errno == EACCES));
	CHECK(last >= 0 && close(last) == 0);
}

/* A sandbox refuses futex(2), of which a program without threads knows nothing. */
static void no_futex(int argc, char **argv)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { sizeof(filter) / sizeof(*filter), filter };
	struct user_reg work = request(WORK, &word, 0);
	int fd;

	(void)argc, (void)argv;
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	CHECK((fd = open(PATH, O_RDWR)) >= 0);
	FAILS(ioctl(fd, DIAG_IOCSREG, &work), ENOMEM); /* the bit is not writable; the file has the event */
	CHECK(emit(fd, 0, 16, 0) == 12);
}

static const struct test_case cases[] = {
	{ "ways_to_open", ways_to_open },
	{ "other_files", other_files },
	{ "descriptors", descriptors },
	{ "files", files },
	{ "by_number", by_number },
	{ "streams", streams },
	{ "behind_our_back", behind_our_back },
	{ "closed_within_libc", closed_within_libc },
	{ "wrong_pointers", wrong_pointers },
	{ "words", words },
	{ "children", children },
	{ "vforks", vforks },
	{ "inherited", inherited },
	{ "inherited_stopped", inherited_stopped },
	{ "hand_over", hand_over },
	{ "hand_over_stopped", hand_over_stopped },
	{ "inherited_by_threads", inherited_by_threads },
	{ "hand_over_to_threads", hand_over_to_threads },
	{ "strays", strays },
	{ "late", late },
	{ "threads", threads },
	{ "handlers", handlers },
	{ "cancelled", cancelled },
	{ "no_large_files", no_large_files },
	{ "no_descriptors", no_descriptors },
	{ "no_futex", no_futex },
	{ NULL, NULL },
};

int main(int argc, char **argv)
{
	return run_case(cases, argc, argv);
}
