/*
 * layout: records in the layout of bpf/layout.h, for the lines of stdin.
 *
 *     format HEX     the text of a daemon's `format`; the answer is the shown one, hexadecimal, or "none"
 *     apply HEX      a record of it: the context, hexadecimal, or "none"
 */
#include "bpf/layout.h"

#include "hex.h"

static void show(const void *bytes, size_t size)
{
	print_bytes(bytes, size);
	printf("\n");
}

int main(void)
{
	static char line[1 << 20];
	struct bt_layout *layout = NULL;

	while (fgets(line, sizeof(line), stdin)) {
		const char *hex = strchr(line, ' ') + 1;
		size_t size, made;
		uint8_t *bytes = bytes_of(hex, &size);

		if (line[0] == 'f') {
			char *text = strndup((char *)bytes, size);

			bt_layout_free(layout);
			layout = bt_layout_new(text);
			free(text);
			if (layout)
				show(bt_layout_text(layout), strlen(bt_layout_text(layout)));
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
