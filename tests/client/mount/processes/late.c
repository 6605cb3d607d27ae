/* A thread that stops late, after it was taken for a sleeping one: its call is restarted nevertheless. Exits
 * with the result of a child's interrupted write: 0, it continued; 1, EINTR. */
#include "stopped_process.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>

static int ends[2];

static int write_to_the_full(void)
{
	struct timeval timeout = {60, 0};
	char bytes[1024] = {0};

	while (send(ends[0], bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	return write(ends[0], bytes, 1) == 1 ? 0 : errno == EINTR ? 1 : 2;
}

static void *stop(void *child)
{
	struct sp_process p = {calloc(1, sizeof(*p.threads)), 1, 1, 1, 0};
	pid_t pid = *(pid_t *)child;
	int proc = open("/proc", O_RDONLY | O_DIRECTORY);
	unsigned flags;

	p.threads[0] = (struct sp_thread){.tid = pid, .interrupted = 1, .asleep = 1};
	ptrace(PTRACE_SEIZE, pid, NULL, NULL);
	while (sp_state(proc, pid, &flags) != 'S')
		sp_pause();
	ptrace(PTRACE_INTERRUPT, pid, NULL, NULL);
	sp_go(&p);
	return NULL;
}

int main(void)
{
	char bytes[1024];
	pthread_t tracer;
	int status;
	pid_t child;

	alarm(60);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0)
		return 3;
	child = fork();
	if (child == 0)
		_exit(write_to_the_full());
	if (pthread_create(&tracer, NULL, stop, &child))
		return 3;
	pthread_join(tracer, NULL);
	while (waitpid(child, &status, WNOHANG) == 0)
		recv(ends[1], bytes, sizeof(bytes), MSG_DONTWAIT);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
}
