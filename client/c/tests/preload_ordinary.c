/* ordinary FILE - a program without events makes each call that the preload library wraps, by libc and by
 * syscall(2), valid and invalid. Its system calls from the first getppid on must be the same with and
 * without the library. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile long sink;

int main(int argc, char **argv)
{
	static char bytes[64], buffer[BUFSIZ];
	struct iovec iov = { bytes, 5 };
	FILE *stream;
	int fd;

	if (argc != 2)
		return 2;
	memset(bytes, 'x', sizeof(bytes));
	stream = fopen("/dev/null", "r"); /* for libc's allocation at its first stream */
	fclose(stream);
	sink = getppid();

	fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
	sink = open(argv[1], O_RDWR | O_CREAT | O_EXCL, 0600);
	sink = open("/nonexistent/file", O_RDONLY);
	sink = open((char *)1, O_RDONLY);
	sink = openat(AT_FDCWD, "/", O_RDONLY | O_DIRECTORY);
	sink = creat("/nonexistent/file", 0600);
	sink = write(fd, bytes, 5);
	sink = write(fd, (char *)1, 5);
	sink = write(99, bytes, 5);
	sink = writev(fd, &iov, 1);
	sink = pwrite(fd, bytes, 5, 9);
	sink = pwritev(fd, &iov, 1, 3);
	sink = pwritev2(fd, &iov, 1, -1, 0);
	sink = lseek(fd, 0, SEEK_SET);
	sink = read(fd, bytes, 3);
	sink = dup(fd);
	sink = dup2(fd, 40);
	sink = dup2(fd, fd);
	sink = dup3(fd, 41, O_CLOEXEC);
	sink = fcntl(fd, F_DUPFD, 60);
	sink = fcntl(fd, F_GETFL);
	sink = fcntl(fd, F_SETFD, FD_CLOEXEC);
	sink = ioctl(fd, TIOCGWINSZ, bytes);
	sink = syscall(SYS_write, fd, "z", 1);
	sink = syscall(SYS_close, 41);
	sink = close_range(40, 60, 0);

	stream = fopen(argv[1], "w");
	setvbuf(stream, buffer, _IOFBF, sizeof(buffer));
	fputs("hello", stream);
	fflush(stream);
	fputs("world", stream);
	fclose(stream);
	stream = fdopen(dup(fd), "r+");
	setvbuf(stream, NULL, _IONBF, 0);
	fputs("world", stream);
	fclose(stream);

	if (fork() == 0) {
		sink = write(fd, "c", 1);
		_exit(0);
	}
	wait(NULL);
	if (vfork() == 0)
		_exit(3);
	wait(NULL);
	sink = close(fd);
	sink = close(fd);
	closefrom(3);
	return 0;
}
