/*
 * replaced CALL NTH FILE: a program that emits, and puts FILE over one of the client's descriptors, as
 * another thread may at any moment: at the NTH of its calls of a kind, behind or in front of the call.
 * Prints how many records it has emitted, and how many of them are lost.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "utracefs.h"

#define EXPORTED __attribute__((visibility("default")))
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static const char *wanted = "", *path;
static int left;
static __thread int is_inside;

static int over(const char *call, int number)
{
	int file;

	if (number >= 0 && strcmp(call, wanted) == 0 && !is_inside && --left == 0) {
		is_inside = 1;
		file = open(path, O_RDWR | O_APPEND);
		if (file < 0 || dup2(file, number) != number)
			abort();
		if (file != number)
			close(file);
		is_inside = 0;
	}
	return number;
}

EXPORTED long syscall(long number, ...)
{
	va_list list;
	long a[6];

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	a[0] = NEXT(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	return number == SYS_memfd_create ? over("memfd_create", (int)a[0]) : a[0];
}

EXPORTED int fcntl(int fd, int what, ...)
{
	va_list list;
	long argument;
	int result;

	va_start(list, what);
	argument = va_arg(list, long);
	va_end(list);
	result = NEXT(fcntl)(fd, what, argument);
	if (what == F_DUPFD_CLOEXEC)
		over("dup", result);
	else if (what == F_GET_SEALS)
		over("size", fd);
	else if (what == F_ADD_SEALS)
		over("seal", fd);
	return result;
}

EXPORTED int eventfd(unsigned first, int flags)
{
	return over("eventfd", NEXT(eventfd)(first, flags));
}

EXPORTED int socket(int domain, int type, int protocol)
{
	return over("socket", NEXT(socket)(domain, type, protocol));
}

EXPORTED int socketpair(int domain, int type, int protocol, int pair[2])
{
	int result = NEXT(socketpair)(domain, type, protocol, pair);

	over("socketpair", pair[0]);
	over("socketpair", pair[1]);
	return result;
}

EXPORTED void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	over("mmap", fd);
	return NEXT(mmap)(at, bytes, prot, flags, fd, offset);
}

EXPORTED ssize_t recvmsg(int fd, struct msghdr *header, int flags)
{
	ssize_t got = NEXT(recvmsg)(fd, header, flags);
	struct cmsghdr *c = got > 0 ? CMSG_FIRSTHDR(header) : NULL;
	int came;

	if (c && c->cmsg_type == SCM_RIGHTS) {
		memcpy(&came, CMSG_DATA(c), sizeof(came));
		over("recvmsg", came);
	}
	return got;
}

int main(int argc, char **words)
{
	struct utracefs_event *event;
	struct utracefs_event_stats stats;
	unsigned emitted = 0;

	if (argc != 4)
		return 2;
	path = words[3];
	left = atoi(words[2]);
	wanted = words[1];
	event = utracefs_declare("c_count u32 who; u64 i", 0);
	for (int k = 0; k < 5; k++) {
		for (int i = 0; i < 100; i++, emitted++)
			if (utracefs_enabled(event)) {
				struct {
					uint32_t who;
					uint64_t i;
				} __attribute__((packed)) values = {1, emitted};
				struct iovec iov = {&values, sizeof(values)};

				utracefs_emit_iov(event, &iov, 1);
			}
		utracefs_flush(2000);
	}
	if (left > 0)
		return 3; /* it has fewer such calls */
	utracefs_event_stats(event, &stats);
	printf("%u %llu\n", emitted, (unsigned long long)stats.lost);
	return 0;
}
