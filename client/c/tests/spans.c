/* Spans: nested, left by return, in another thread, and of a child. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utracefs.h>
#include "answered.h"

UTRACEFS_SPANS(c_order, (u32, order), (string, who));
UTRACEFS_SPANS_PLAIN(c_pay);

static int evaluated;

static int inner(int early)
{
	UTRACEFS_SPAN(c_pay);
	if (early)
		return 1;
	{
		UTRACEFS_SPAN(c_order, 3, "block");
	}
	return 0;
}

static void *thread(void *unused)
{
	UTRACEFS_SPAN(c_order, 4, "thread");
	return unused;
}

static unsigned number(void)
{
	evaluated++;
	return 1;
}

int main(void)
{
	pthread_t other;
	pid_t child;
	uint64_t ids[3];
	int ends[2];

	answered(&c_order_begin); /* before that they count as on */
	{
		UTRACEFS_SPAN(c_order, number(), "outer");
		inner(1);
		inner(0);
		pthread_create(&other, NULL, thread, NULL);
		pthread_join(other, NULL);
	}
	UTRACEFS_SPAN(c_pay);
	if (pipe(ends))
		return 1;
	for (int i = 0; i < 2; i++) {
		child = i ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
		ids[2] = utracefs_new_span_id();
		if (!child)
			_exit(write(ends[1], &ids[2], sizeof(ids[2])) != sizeof(ids[2]));
		waitpid(child, NULL, 0);
		if (read(ends[0], &ids[i], sizeof(ids[i])) != sizeof(ids[i]))
			return 1;
		printf("differ %d ", ids[i] != ids[2] && (int64_t)ids[i] > 0 && (int64_t)ids[2] > 0);
	}
	printf("evaluated %d\n", evaluated);
	return 0;
}
