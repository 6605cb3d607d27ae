/*
 * A program with user events, told on stdin what to do, a line each; it answers each with a line.
 *
 *   open                            -> file F (a number from 0) or -errno
 *   reg F W BIT SIZE FLAGS COMMAND  -> write_index; W: a word from 0 to 15
 *   unreg F W BIT, del F NAME
 *   write F INDEX HEX               -> bytes; writev of the index and each byte of the payload
 *   word W                          -> its 64 bits, hex
 *   fork                            -> pid; from now on the child reads stdin, the parent waits for it
 *   exec                            -> the program anew
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
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static int files[64];
static int nr_files;
static uint64_t words[16];

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

static long fork_child(void)
{
	pid_t pid = fork();
	int status;

	if (pid <= 0)
		return pid ? -errno : getpid();
	waitpid(pid, &status, 0);
	return 0;
}

int main(int argc, char **argv)
{
	static char line[8192], text[8192];

	if (argc != 2)
		return 2;
	while (fgets(line, sizeof(line), stdin)) {
		int f = 0, w = 0, bit = 0, size = 0, flags = 0;
		long result = -9999;

		text[0] = 0;
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "quit"))
			return 0;
		if (!strcmp(line, "open")) {
			files[nr_files] = open(argv[1], O_RDWR);
			result = files[nr_files] < 0 ? -errno : nr_files++;
		} else if (sscanf(line, "reg %d %d %d %d %d %[^\n]", &f, &w, &bit, &size, &flags, text) >= 5) {
			struct user_reg reg = { sizeof(reg), bit, size, flags, (uintptr_t)&words[w], (uintptr_t)text, 77 };

			result = checked(ioctl(files[f], DIAG_IOCSREG, &reg));
			if (!result)
				result = reg.write_index;
		} else if (sscanf(line, "unreg %d %d %d", &f, &w, &bit) == 3) {
			struct user_unreg unreg = { sizeof(unreg), bit, 0, 0, (uintptr_t)&words[w] };

			result = checked(ioctl(files[f], DIAG_IOCSUNREG, &unreg));
		} else if (sscanf(line, "del %d %s", &f, text) == 2) {
			result = checked(ioctl(files[f], DIAG_IOCSDEL, text));
		} else if (sscanf(line, "write %d %d %s", &f, &w, text) >= 2) {
			result = write_record(f, w, text);
		} else if (sscanf(line, "word %d", &w) == 1) {
			printf("%lx\n", __atomic_load_n(&words[w], __ATOMIC_SEQ_CST));
			fflush(stdout);
			continue;
		} else if (!strcmp(line, "fork")) {
			result = fork_child();
		} else if (!strcmp(line, "exec")) {
			printf("0\n");
			fflush(stdout);
			execv("/proc/self/exe", argv);
			return 1;
		}
		printf("%ld\n", result);
		fflush(stdout);
	}
	return 0;
}
