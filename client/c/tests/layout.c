/*
 * layout: records in the layout of bpf/layout.h, for the lines of stdin.
 *
 *     format HEX     the text of a daemon's `format`; the answer is the shown one, hexadecimal, or "none"
 *     apply HEX      a record of it: the context, hexadecimal, or "none"
 */
#include "bpf/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Exactly as long as needed, so that a sanitizer sees a read past the end. A NUL is behind it if `text`. */
static uint8_t *bytes_of(const char *hex, size_t *size, int text)
{
	size_t n = strspn(hex, "0123456789abcdef") / 2;
	uint8_t *bytes = calloc(1, n + (text || !n));

	for (size_t i = 0; i < n; i++) {
		unsigned byte;

		sscanf(hex + 2 * i, "%2x", &byte);
		bytes[i] = (uint8_t)byte;
	}
	*size = n;
	return bytes;
}

static void show(const uint8_t *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++)
		printf("%02x", bytes[i]);
	printf("\n");
}

int main(void)
{
	static char line[1 << 20];
	struct bt_layout *layout = NULL;

	while (fgets(line, sizeof(line), stdin)) {
		const char *hex = strchr(line, ' ') + 1;
		size_t size, made;
		uint8_t *bytes = bytes_of(hex, &size, line[0] == 'f');

		if (line[0] == 'f') {
			bt_layout_free(layout);
			layout = bt_layout_new((char *)bytes);
			if (layout)
				show((const uint8_t *)bt_layout_text(layout), strlen(bt_layout_text(layout)));
			else
				puts("none");
		} else {
			const uint8_t *context = bt_layout_apply(layout, bytes, (uint32_t)size, &made);

			if (context)
				show(context, made);
			else
				puts("none");
		}
		free(bytes);
		fflush(stdout);
	}
	bt_layout_free(layout);
	return 0;
}
