/* A deed that is late since its thread computes, as one that waits for a cpu: it is waited for. One that
 * sleeps is not. */
#define _GNU_SOURCE
#include "deed.h"

#include <assert.h>

static int ends[2];

static void compute(struct deed *d)
{
	struct timespec used;

	do
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	while (used.tv_sec == 0 && used.tv_nsec < 50000000);
	d->result = 1;
}

static void sleep_long(struct deed *d)
{
	d->result = read(ends[0], d->data, 1);
}

int main(void)
{
	struct deed *late = deed_new(compute, 0), *asleep = deed_new(sleep_long, 1);

	alarm(60);
	assert(pipe(ends) == 0);
	assert(deed_run(late, 1) == 1 && late->result == 1);
	assert(deed_run(asleep, 1) == 0);
	assert(write(ends[1], "", 1) == 1);
	while (!deed_is_done(asleep))
		sched_yield();
	assert(asleep->result == 1);
	return 0;
}
