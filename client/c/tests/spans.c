/* Spans: nested, left by return, in another thread, and of a child. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utracefs.h>

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
	uint64_t id, childs;
	int ends[2];

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
	child = fork();
	id = utracefs_new_span_id();
	if (!child)
		_exit(write(ends[1], &id, sizeof(id)) != sizeof(id));
	waitpid(child, NULL, 0);
	if (read(ends[0], &childs, sizeof(childs)) != sizeof(childs))
		return 1;
	printf("evaluated %d differ %d positive %d\n", evaluated, id != childs,
	       (int64_t)id > 0 && (int64_t)childs > 0);
	return 0;
}
