/*
 * stream: the calls of utracefs_stream.h, for the lines of stdin; a line for each.
 *
 *     open EVENTS|FILTER|INSTANCE|RING_BYTES|WATERMARK|ENDS    "-" for none
 *     each MS        every record, until none came for MS milliseconds
 *     count MS       NAME=RECORDS+LOST of each event, and restarts
 *     file PATH      a file's content, hexadecimal
 *     lost
 */
#include <utracefs_stream.h>

#include "hex.h"

static struct utracefs_stream *stream;
volatile unsigned char seen; /* all bytes of records can be read */

static int answer(int error)
{
	if (error < 0)
		printf("%d %s\n", error, utracefs_stream_error(stream));
	return error;
}

static void open_stream(char *line)
{
	char *parts[6];
	struct utracefs_stream_options options;

	for (int i = 0; i < 6; i++) {
		parts[i] = strsep(&line, "|");
		if (strcmp(parts[i], "-") == 0)
			parts[i] = NULL;
	}
	options = (struct utracefs_stream_options){parts[2], parts[3] ? (uint32_t)atoi(parts[3]) : 0,
						   parts[4] ? (uint32_t)atoi(parts[4]) : 0, parts[5] != NULL};
	if (answer(utracefs_stream_open(stream, parts[0], parts[1], &options)) == 0)
		puts("0");
}

static void show(const struct utracefs_stream_record *r)
{
	if (r->kind == UTRACEFS_STREAM_RESTART) {
		printf("restart;");
	} else if (r->kind == UTRACEFS_STREAM_LOST) {
		printf("lost %s %llu;", r->event ? r->event->name : "?", (unsigned long long)r->lost);
	} else {
		printf("%s:%s %llu %u %d %d %s ", r->event->system, r->event->name, (unsigned long long)r->time_ns,
		       r->cpu, r->pid, r->tid, r->comm);
		print_bytes((const uint8_t *)r->data + 8, r->size > 8 ? r->size - 8 : 0);
		printf(";");
	}
}

static void read_all(int wait_ms, int each)
{
	static struct {
		const struct utracefs_stream_event *event;
		unsigned long long records, lost;
	} counts[64];
	struct utracefs_stream_record record;
	int got, n = 0, restarts = 0;

	memset(counts, 0, sizeof(counts));
	while ((got = utracefs_stream_wait(stream, wait_ms)) > 0) {
		while ((got = utracefs_stream_next(stream, &record)) > 0) {
			int i = 0;

			if (each) {
				show(&record);
				continue;
			}
			if (record.kind == UTRACEFS_STREAM_RESTART) {
				restarts++;
				continue;
			}
			while (i < n && counts[i].event != record.event)
				i++;
			if (i == n && n < 63)
				counts[n++].event = record.event;
			counts[i].records += record.kind == UTRACEFS_STREAM_RECORD;
			counts[i].lost += record.lost;
			for (uint32_t at = 0; at < record.size; at++)
				seen = record.data[at];
		}
		if (got < 0)
			break;
	}
	for (int i = 0; i < n; i++) {
		for (const char *at = counts[i].event ? counts[i].event->name : "?"; *at; at++)
			putchar(*at > ' ' && *at <= '~' ? *at : '?');
		printf("=%llu+%llu ", counts[i].records, counts[i].lost);
	}
	if (!each)
		printf("restarts=%d", restarts);
	if (answer(got) == 0)
		puts("");
}

int main(int argc, char **argv)
{
	static char line[8192];

	stream = utracefs_stream_new(argc > 1 ? argv[1] : NULL);
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (strncmp(line, "open ", 5) == 0) {
			open_stream(line + 5);
		} else if (strncmp(line, "each ", 5) == 0) {
			read_all(atoi(line + 5), 1);
		} else if (strncmp(line, "count ", 6) == 0) {
			read_all(atoi(line + 6), 0);
		} else if (strncmp(line, "file ", 5) == 0) {
			size_t size;
			char *data;

			if (answer(utracefs_stream_read_file(stream, line + 5, &data, &size)) == 0) {
				print_bytes(data, size);
				puts("");
				free(data);
			}
		} else {
			printf("%llu\n", (unsigned long long)utracefs_stream_lost(stream));
		}
		fflush(stdout);
	}
	utracefs_stream_close(stream);
	return 0;
}
