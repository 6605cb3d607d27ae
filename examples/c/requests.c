/*
 * A server in C that answers a thousand made-up requests: what a program with utracefs events looks like.
 *
 *     cc $(pkg-config --cflags utracefs) requests.c -o requests $(pkg-config --libs utracefs)
 *     utracefs record -e 'user_events:req_*' -o trace.dat -- ./requests
 *     utracefs report trace.dat
 *
 * Without a daemon it runs the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <utracefs.h>

UTRACEFS_EVENT(req_begin, (u32, request), (string, path));
UTRACEFS_EVENT(req_end, (u32, request), (u16, status), (u64, bytes));

static unsigned random_state = 1;

static unsigned next_random(unsigned below)
{
	random_state = random_state * 1103515245 + 12345;
	return random_state / 65536 % below;
}

static unsigned answer(const char *path, unsigned long *bytes)
{
	*bytes = path[1] ? 200 + next_random(20000) : 0;
	return path[1] ? 200 : 404;
}

int main(void)
{
	static const char *const paths[] = {"/index.html", "/", "/news", "/prices"};
	unsigned long sent = 0;

	for (unsigned request = 0; request < 1000; request++) {
		const char *path = paths[next_random(4)];
		unsigned long bytes;
		unsigned status;

		UTRACEFS_EMIT(req_begin, request, path);
		status = answer(path, &bytes);
		UTRACEFS_EMIT(req_end, request, status, bytes);
		sent += bytes;
	}
	printf("%lu bytes sent\n", sent);
	return 0;
}
