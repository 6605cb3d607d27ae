/*
 * A program with user events, told on stdin what to do, a line each; it answers each with a line.
 *
 *   open                            -> file F (a number from 0) or -errno
 *   close F, dup F, read F
 *   reg F W BIT SIZE FLAGS COMMAND  -> write_index; W: a word from 0 to 15
 *   regraw F OFFSET HEX             -> the struct as bytes, OFFSET before the end of readable memory
 *   unreg F W BIT, del F NAME
 *   write F INDEX HEX               -> bytes; writev of the index and each byte of the payload
 *   big F INDEX SIZE, pwrite F OFFSET INDEX
 *   ioctl F NUMBER, timed F INDEX COUNT (-> nanoseconds for each of so many writes)
 *   word W                          -> its 64 bits, hex
 *   protect W RIGHTS                -> of the page that has words 8 to 15: 0, 1 (read), 3
 *   fork                            -> pid; from now on the child reads stdin, the parent waits for it
 *   exec                            -> the program anew
 *   send F                          -> to the socket that is descriptor 3; receive -> file F
 *   quit
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/user_events.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int files[64];
static int nr_files;
static long page;
static uint64_t *own;
static uint64_t *words[16];
static unsigned char *edge; /* one page, then one that cannot be read */
static char buffer[1 << 20];

static long checked(long result)
{
	return result < 0 ? -(long)errno : result;
}

static int unhex(const char *text, unsigned char *to)
{
	int n = 0;
	unsigned byte;

	while (sscanf(text + 2 * n, "%2x", &byte) == 1)
		to[n++] = (unsigned char)byte;
	return n;
}

static long write_record(int file, int32_t index, const char *hex)
{
	static unsigned char payload[65536];
	struct iovec pieces[256];
	int size = unhex(hex, payload), n = 0;

	pieces[n++] = (struct iovec){ &index, 4 };
	for (int i = 0; i < size; i++)
		if (n < 255 || i == size - 1)
			pieces[n++] = (struct iovec){ payload + i, 1 };
	return checked(writev(files[file], pieces, n));
}

static long send_file(int file)
{
	char byte = 0, control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec piece = { &byte, 1 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);

	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(rights), &files[file], sizeof(int));
	return checked(sendmsg(3, &message, 0));
}

static long receive_file(void)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec piece = { &byte, 1 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };

	if (recvmsg(3, &message, 0) < 0)
		return -errno;
	memcpy(&files[nr_files], CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	return nr_files++;
}

static long fork_child(void)
{
	pid_t pid = fork();
	int status;

	if (pid <= 0)
		return pid ? -errno : getpid();
	waitpid(pid, &status, 0);
	return 0;
}

/* Nanoseconds for each of so many writes. */
static long timed(int file, int32_t index, long count)
{
	struct timespec from, to;
	struct { int32_t index; uint32_t value; } record = { index, 7 };

	clock_gettime(CLOCK_MONOTONIC, &from);
	for (long i = 0; i < count; i++)
		if (write(files[file], &record, sizeof(record)) != sizeof(record))
			return -errno;
	clock_gettime(CLOCK_MONOTONIC, &to);
	return ((to.tv_sec - from.tv_sec) * 1000000000L + to.tv_nsec - from.tv_nsec) / count;
}

/* Sixteen words on two pages, and a page behind which nothing is mapped. */
static void map_words(void)
{
	page = sysconf(_SC_PAGESIZE);
	own = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 16; i++)
		words[i] = own + i % 8 + (i < 8 ? 0 : page / 8);
	edge = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(edge + page, page, PROT_NONE);
}

int main(int argc, char **argv)
{
	static char line[8192], text[8192];

	if (argc != 2)
		return 2;
	map_words();
	while (fgets(line, sizeof(line), stdin)) {
		int f = 0, w = 0, bit = 0, size = 0, flags = 0;
		long n = 0, result = -9999;
		unsigned long number = 0;

		text[0] = 0;
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "quit"))
			return 0;
		if (!strcmp(line, "open")) {
			files[nr_files] = open(argv[1], O_RDWR);
			result = files[nr_files] < 0 ? -errno : nr_files++;
		} else if (sscanf(line, "close %d", &f) == 1) {
			result = checked(close(files[f]));
		} else if (sscanf(line, "dup %d", &f) == 1) {
			files[nr_files] = dup(files[f]);
			result = nr_files++;
		} else if (sscanf(line, "read %d", &f) == 1) {
			result = checked(read(files[f], buffer, 10));
		} else if (sscanf(line, "reg %d %d %d %d %d %[^\n]", &f, &w, &bit, &size, &flags, text) >= 5) {
			struct user_reg reg = { sizeof(reg), bit, size, flags, (uintptr_t)words[w], (uintptr_t)text, 77 };

			result = checked(ioctl(files[f], DIAG_IOCSREG, &reg));
			if (!result)
				result = reg.write_index;
		} else if (sscanf(line, "regraw %d %ld %s", &f, &n, text) >= 2) {
			unsigned char *at = edge + page - n;

			unhex(text, at);
			result = checked(ioctl(files[f], DIAG_IOCSREG, at));
		} else if (sscanf(line, "unreg %d %d %d", &f, &w, &bit) == 3) {
			struct user_unreg unreg = { sizeof(unreg), bit, 0, 0, (uintptr_t)words[w] };

			result = checked(ioctl(files[f], DIAG_IOCSUNREG, &unreg));
		} else if (sscanf(line, "del %d %s", &f, text) == 2) {
			result = checked(ioctl(files[f], DIAG_IOCSDEL, text));
		} else if (sscanf(line, "write %d %d %s", &f, &w, text) >= 2) {
			result = write_record(f, w, text);
		} else if (sscanf(line, "big %d %d %ld", &f, &w, &n) == 3) {
			memcpy(buffer, &w, 4);
			result = checked(write(files[f], buffer, n));
		} else if (sscanf(line, "pwrite %d %ld %d", &f, &n, &w) == 3) {
			result = checked(pwrite(files[f], &w, 4, n));
		} else if (sscanf(line, "ioctl %d %lx", &f, &number) == 2) {
			result = checked(ioctl(files[f], number, buffer));
		} else if (sscanf(line, "timed %d %d %ld", &f, &w, &n) == 3) {
			result = timed(f, w, n);
		} else if (sscanf(line, "word %d", &w) == 1) {
			printf("%lx\n", __atomic_load_n(words[w], __ATOMIC_SEQ_CST));
			fflush(stdout);
			continue;
		} else if (sscanf(line, "protect %d %d", &w, &flags) == 2) {
			result = checked(mprotect(own + page / 8, page, flags));
		} else if (!strcmp(line, "fork")) {
			result = fork_child();
		} else if (!strcmp(line, "exec")) {
			printf("0\n");
			fflush(stdout);
			execv("/proc/self/exe", argv);
			return 1;
		} else if (sscanf(line, "send %d", &f) == 1) {
			result = send_file(f);
		} else if (!strcmp(line, "receive")) {
			result = receive_file();
		}
		printf("%ld\n", result);
		fflush(stdout);
	}
	return 0;
}
