/* Does the same as PROGRAM of test_versions.py, with the C library of some version: for each line of stdin, a
 * first number and how many, it emits so many records of each kind, its child emits CHILDS more and ends. It
 * prints whether all were taken in, how many it lost, and how many the child lost. */
#include <utracefs.h>

#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDS 10

UTRACEFS_EVENT(mixed, (u32, n), (string, text));
#ifdef UTRACEFS_TYPE_array
UTRACEFS_EVENT(listed, (u32, n), (array, values, u32, 4, 16));
#else
UTRACEFS_EVENT(listed, (u32, n), (chars, values, 16));
#endif
UTRACEFS_SPANS(work, (u32, n));

static struct utracefs_event *const events[] = {&mixed, &listed, &work_begin, &work_end};
#define NR_EVENTS (sizeof(events) / sizeof(events[0]))

static void emit(uint32_t n)
{
	static const uint32_t values[4] = {1, 2, 3, 4};

	UTRACEFS_EMIT(mixed, n, "text");
#ifdef UTRACEFS_TYPE_array
	UTRACEFS_EMIT(listed, n, values);
#else
	UTRACEFS_EMIT(listed, n, (const char *)values);
#endif
	{
		UTRACEFS_SPAN(work, n);
	}
}

static void await_answers(void)
{
	for (unsigned i = 0, tries = 0; i < NR_EVENTS && tries < 60000; tries++) {
		if (utracefs_event_error(events[i], NULL, 0) == 0 && utracefs_enabled(events[i]))
			i++;
		else
			usleep(1000);
	}
}

static unsigned long count_lost(void)
{
	unsigned long lost = 0;

	for (unsigned i = 0; i < NR_EVENTS; i++) {
		struct utracefs_event_stats stats;

		utracefs_event_stats(events[i], &stats);
		lost += stats.lost;
	}
	return lost;
}

int main(void)
{
	volatile unsigned long *childs =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned n, count;

	while (scanf("%u %u", &n, &count) == 2) {
		pid_t pid;
		int is_over;

		await_answers();
		for (unsigned end = n + count; n < end; n++)
			emit(n);
		*childs = 0;
		pid = fork();
		if (!pid) {
			for (unsigned i = 0; i < CHILDS; i++)
				emit(n + i);
			is_over = utracefs_flush(60000) == 0;
			*childs = count_lost();
			_exit(!is_over);
		}
		is_over = waitpid(pid, &is_over, 0) == pid && is_over == 0 && utracefs_flush(60000) == 0;
		printf("%s %lu %lu\n", is_over ? "True" : "False", count_lost(), *childs);
		fflush(stdout);
	}
	return 0;
}
