/* provider TREE [SOCKET] - a program that does what lines on stdin say, and answers each with a line.
 *
 *	open            0 or -ERRNO
 *	reg COMMAND     the write_index or -ERRNO; the word lies at one address in all such programs, bit 0
 *	unreg           0 or -ERRNO
 *	word            the word
 *	look            0, or the number of bytes around the word that are not what they were
 *	write INDEX N   what writev of a u32 answers, or -ERRNO
 *	pass            0: the open file is sent over SOCKET
 *	receive         0: an open file came from there
 *	user UID        0: the process is that user's from here on
 *	close           0
 */
#define _GNU_SOURCE
#include "abi.h"

#include <grp.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define MEMORY ((unsigned char *)0x220000000000UL)
#define WORD ((volatile uint32_t *)(MEMORY + 2048))

static int fd = -1;
static int peer = -1;

static long or_errno(long returned)
{
	return returned < 0 ? -errno : returned;
}

static long look(void)
{
	long wrong = 0;

	for (size_t i = 0; i < PAGE; i++)
		wrong += (i < 2048 || i >= 2052) && MEMORY[i] != 0xa5;
	return wrong;
}

static long transfer(int sends)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	char byte = 0;
	struct iovec part = {&byte, 1};
	struct msghdr message = {
	    .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

	if (sends) {
		memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
		return sendmsg(peer, &message, 0) == 1 ? 0 : -errno;
	}
	if (recvmsg(peer, &message, 0) != 1 || !CMSG_FIRSTHDR(&message))
		return -errno;
	memcpy(&fd, CMSG_DATA(&control.head), sizeof(fd));
	return 0;
}

static long become(unsigned user)
{
	if (setgroups(0, NULL) || setgid(user) || setuid(user))
		return -errno;
	return prctl(PR_SET_DUMPABLE, 1);
}

static long obey(const char *line)
{
	unsigned long a, b;

	if (!strcmp(line, "open"))
		return or_errno(fd = open_data()) < 0 ? -errno : 0;
	if (!strncmp(line, "reg ", 4))
		return or_errno(reg_event(fd, line + 4, WORD, 4, 0));
	if (!strcmp(line, "unreg"))
		return or_errno(unreg_word(fd, WORD, 0));
	if (!strcmp(line, "word"))
		return *WORD;
	if (!strcmp(line, "look"))
		return look();
	if (sscanf(line, "write %lu %lu", &a, &b) == 2) {
		uint32_t payload = (uint32_t)b;

		return or_errno(write_record(fd, (long)a, &payload, 4));
	}
	if (!strcmp(line, "pass") || !strcmp(line, "receive"))
		return transfer(*line == 'p');
	if (sscanf(line, "user %lu", &a) == 1)
		return become((unsigned)a);
	if (!strcmp(line, "close"))
		return or_errno(close(fd));
	return -ENOSYS;
}

int main(int argc, char **argv)
{
	const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
	char line[1024];

	if (argc < 2)
		return 2;
	tree = argv[1];
	peer = argc > 2 ? atoi(argv[2]) : -1;
	if (mmap(MEMORY, PAGE, PROT_READ | PROT_WRITE, anonymous, -1, 0) != MEMORY)
		return 2;
	memset(MEMORY, 0xa5, PAGE);
	*WORD = 0;
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = '\0';
		printf("%ld\n", obey(line));
		fflush(stdout);
	}
	return 0;
}
