/*
 * Shows the records of a running daemon as they come, until it ends.
 *
 *     cc $(pkg-config --cflags utracefs) watch.c -o watch $(pkg-config --libs utracefs)
 *     ./watch 'req_*' 'request < 10'
 */
#include <stdio.h>
#include <utracefs_stream.h>

static void show(const struct utracefs_stream_record *record)
{
	switch (record->kind) {
	case UTRACEFS_STREAM_RECORD:
		printf("%16s-%d %.6f: %s:", record->comm, record->tid, (double)record->time_ns / 1e9,
		       record->event->name);
		/* The fields begin here, at the offsets in record->event->format. */
		for (unsigned at = 8; at < record->size; at++)
			printf(" %02x", record->data[at]);
		printf("\n");
		break;
	case UTRACEFS_STREAM_LOST:
		printf("%llu records of %s are lost\n", (unsigned long long)record->lost,
		       record->event ? record->event->name : "the daemon that has ended");
		break;
	case UTRACEFS_STREAM_RESTART:
		printf("another daemon\n");
		break;
	}
}

int main(int argc, char **argv)
{
	const struct utracefs_stream_options options = {.ends = 1};
	struct utracefs_stream *stream = utracefs_stream_new(NULL);
	struct utracefs_stream_record record;
	int got;

	if (!stream)
		return 1;
	got = utracefs_stream_open(stream, argc > 1 ? argv[1] : "*:*", argc > 2 ? argv[2] : NULL, &options);
	if (got == 0)
		printf("ready\n");
	while (got >= 0) {
		fflush(stdout);
		got = utracefs_stream_wait(stream, -1);
		while (got > 0 && (got = utracefs_stream_next(stream, &record)) > 0)
			show(&record);
	}
	fprintf(stderr, "watch: %s\n", utracefs_stream_error(stream));
	utracefs_stream_close(stream);
	return 0;
}
