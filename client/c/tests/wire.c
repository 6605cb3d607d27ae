/*
 * wire: the results of wire.h for the bytes of each line of stdin, and the bytes that it writes.
 *
 *     size HEX          ut_object_size
 *     parse HEX         kind and members of a message
 *     registered T HEX  members of a registration's result; T: with a token
 *     mapped HEX        `size` of a result
 *     put WHAT          the bytes of a request, hexadecimal
 */
#include "wire.h"

#include "hex.h"

static void parse(const uint8_t *bytes, size_t size)
{
	static const char *const kinds[] = {"response", "enablers_changed", "write_error", "error", "unknown"};
	struct ut_message message;

	if (ut_parse(bytes, size, &message)) {
		puts("broken");
		return;
	}
	printf("%s %u %d %lld %llu %llu", kinds[message.kind], message.msgid, message.error,
	       (long long)message.write_index, (unsigned long long)message.count, (unsigned long long)message.seq);
	for (uint32_t i = 0; i < message.nr_pairs; i++) {
		uint64_t token;
		int on;

		if (ut_next_pair(&message.result, &token, &on)) {
			printf(" broken");
			break;
		}
		printf(" %llu=%d", (unsigned long long)token, on);
	}
	for (char *at = message.text; *at; at++)
		*at = *at < ' ' ? '?' : *at; /* one line, and text */
	printf(" %s\n", message.text);
}

static void put(const char *what)
{
	uint8_t room[1024];
	struct ut_out out = {.data = room, .room = sizeof(room)};

	if (strcmp(what, "status") == 0)
		ut_put_plain(&out, 0, "mmap_status");
	else if (strcmp(what, "notify") == 0)
		ut_put_notify(&out, 300);
	else if (strcmp(what, "ring") == 0)
		ut_put_adopt_ring(&out, 70000);
	else if (strcmp(what, "register") == 0)
		ut_put_register(&out, UINT32_MAX, "name u32 a; u32 b; u32 c; u32 d", 0, 0, UT_NO_TOKEN, 300);
	else if (strcmp(what, "token") == 0)
		ut_put_register(&out, 5, "name u32 a", 2, 9, INT64_MAX, UINT32_MAX);
	else if (strcmp(what, "delete") == 0)
		ut_put_delete(&out, 5, "name");
	else if (strcmp(what, "unregister") == 0)
		ut_put_unregister(&out, 5, &(uint64_t){200});
	else if (strcmp(what, "written") == 0)
		ut_put_enablers_written(&out, 70000);
	else if (strcmp(what, "full") == 0) {
		out.room = 20;
		ut_put_delete(&out, 5, "a name that is too long");
	}
	print_bytes(room, out.size);
	printf("%s\n", out.failed ? "failed" : "");
}

int main(void)
{
	static char line[300000];

	while (fgets(line, sizeof(line), stdin)) {
		size_t size;
		uint8_t *bytes = NULL;

		line[strcspn(line, "\n")] = 0;
		if (strncmp(line, "size ", 5) == 0) {
			bytes = bytes_of(line + 5, &size);
			printf("%zd\n", ut_object_size(bytes, size));
		} else if (strncmp(line, "parse ", 6) == 0) {
			bytes = bytes_of(line + 6, &size);
			parse(bytes, size);
		} else if (strncmp(line, "registered ", 11) == 0) {
			struct ut_registered r = {0};

			bytes = bytes_of(line + 13, &size);
			if (ut_parse_registered((struct ut_in){bytes, bytes + size}, line[11] == '1', &r)) {
				puts("broken");
			} else {
				printf("%u %u %u %u %u", r.status_index, r.write_index, r.id, r.size, r.enabled);
				for (uint32_t i = 0; i < r.nr_locs; i++)
					printf(" %u:%u", r.locs[i].offset, r.locs[i].flags);
				puts("");
			}
		} else if (strncmp(line, "mapped ", 7) == 0) {
			uint64_t value = 0;

			bytes = bytes_of(line + 7, &size);
			if (ut_parse_number((struct ut_in){bytes, bytes + size}, "size", &value))
				puts("broken");
			else
				printf("%llu\n", (unsigned long long)value);
		} else {
			put(line + 4);
		}
		free(bytes);
		fflush(stdout);
	}
	return 0;
}
